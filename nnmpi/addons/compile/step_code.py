"""StepCode: what a compiled training step (`nnmpi.compile`) uses: modules, optimizers, parameters,
and all values that its code reads besides its arguments."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter, is_
from types import FunctionType, MethodType
from typing import Any

from nnmpi.arrays import backend
from nnmpi.arrays.backend import CPU
from nnmpi.nn.code_reader import CodeReader
from nnmpi.nn.known_values import kind_of
from nnmpi.nn.users_code import ReadValues, UnfitError
from nnmpi.optim.optimizer import Optimizer

USED = ("zero_grad", "step")
"""Methods of optimizers that a step may use."""

_CHANGES = attrgetter("_changes")


class StepCode:
    """Finds, in the bytecode of a compiled training step (`nnmpi.compile`) and of the functions
    that it calls, every object on which the step depends; raises UnfitError if one could change
    unnoticed. Before a replay, `is_same` tells if all variables still refer to the same objects.

    modules      the modules that the step calls; `all_modules` also has their submodules
    optimizers   all optimizers that it uses
    parameters   all parameters that it uses; `loose` has those that are in no module
    on           the device of the parameters, or the CPU if there are none
    state        what decides, besides arguments and parameters, which recording is replayed
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not isinstance(function, FunctionType | MethodType | partial):
            raise UnfitError(f"it takes the function of a whole step, and not {kind_of(function)}")
        self._values = ReadValues()
        reader = CodeReader(self._values, None, (Optimizer,), USED)
        reader.read(function, getattr(function, "__name__", "the step"))
        reader.finish()
        self.modules, self.optimizers = reader.modules, reader.objects
        of_modules = dict.fromkeys(p for m in self.modules for p in m.parameters())
        loose = (*reader.parameters, *(p for o in self.optimizers for p in o.parameters))
        self.loose = [*dict.fromkeys(p for p in loose if p not in of_modules)]
        self.parameters = [*of_modules, *self.loose]
        self.all_modules = reader.all_modules
        if any(m._before_user_call is not None for m in self.all_modules):
            raise UnfitError("the step uses a model that a Trainer has cut")
        # they are drawn now, as lists hold their memory
        devices = {backend.of(p._array) for p in self.parameters}
        if len(devices) > 1:
            raise UnfitError("the step has parameters on several devices")
        self.on = devices.pop() if devices else CPU
        for optimizer in self.optimizers:
            self._values.add_name(vars(optimizer), "parameters")
        for m in self.all_modules:
            for name in m._buffers:
                self._values.add_buffer(m, name)
        self._values.note()
        self._changes = [*map(_CHANGES, self.all_modules)]
        self.state = *self._changes, *self._values.state

    def is_same(self) -> bool:
        """True if all values that the step reads are the same as when it was looked at, and no
        module has changed, so that the recording is still valid."""
        changes = [*map(_CHANGES, self.all_modules)]
        return self._changes == changes and self._values.is_same()

    def has_moved(self) -> bool:
        """True if a parameter is on another device than when the step was looked at."""
        return any(backend.of(p._array) != self.on for p in self.parameters)

    def has_same_parts(self, other: "StepCode") -> bool:
        """True if another StepCode has the same modules, parameters and optimizers."""
        parts, others = (
            [*code.all_modules, *code.parameters, *code.optimizers] for code in (self, other)
        )
        return len(parts) == len(others) and all(map(is_, parts, others))
