"""The modules that a recorded step calls, and the random numbers that they use."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nnmpi.addons.compile.step_code import StepCode
from nnmpi.arrays import keyed, meta
from nnmpi.arrays.meta.shapes import refuse
from nnmpi.nn.module import Module
from nnmpi.nn.passes import LOCAL, Pass, current_pass
from nnmpi.nn.record import (
    KeyedPass,
    RecordedKey,
    StandIn,
)
from nnmpi.nn.seeding import SeedState


class RootCalls:
    """Records which modules a step calls directly (not from within another module) while it is
    recorded. Each such call is a Pass by itself, with its own random numbers.

    calls     a list of pairs (module, whether its call counts as a pass)
    draws     arrays for the keys of random tensors, which a replay fills
    stand_in  makes these arrays, and those of the keys of modules
    """

    def __init__(self, code: StepCode, stand_in: StandIn = meta.like) -> None:
        self._known, self.calls = {*code.all_modules}, list[tuple[Module, bool]]()
        self._passes = list[tuple[list[RecordedKey], Module, int]]()
        self.draws, self._stand_in = list[Any](), stand_in

    def outside(self) -> Pass:
        """Returns the Pass of the step outside of the calls of its modules."""
        return self._prepared(_OutsidePass(0, None, LOCAL, True, None, self.around))

    def _prepared(self, new: "_StepPass") -> "_StepPass":
        new.keys, new.draws = [], self.draws
        vars(new)["stand_in"] = self._stand_in
        return new

    @property
    def keys(self) -> Iterator[tuple[RecordedKey, Module, int]]:
        """For each key of random numbers: the key, the module that used it, and how many earlier
        calls of this module count as passes. Known when the step is recorded, since functions that
        run again in the backward pass use keys then."""
        for keys, module, earlier in self._passes:
            yield from ((key, module, earlier) for key in keys)

    def around(self, module: Module, forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Calls the forward method of a module in a Pass of its own (with its own random numbers),
        and records the call."""
        if module not in self._known and any(True for _ in module.parameters()):
            refuse(f"a {type(module).__name__} that the step makes")
        earlier = sum(counted for other, counted in self.calls if other is module)
        kind = _StepPass if module in self._known else _OutsidePass
        current = self._prepared(kind(0, None, LOCAL, module.training))
        token = current_pass.set(current)
        try:
            return forward(*args, **named)
        finally:
            last: Any = current_pass.get()
            # a loss overrides the method that counts passes
            counts = type(module).__call__ is Module.__call__
            self.calls.append((module, counts and (module.training or last.counted)))
            self._passes.append((current.keys, module, earlier))
            current_pass.reset(token)


class _StepPass(KeyedPass):
    """The Pass of a module that a recorded training step calls. The keys of random tensors that are
    drawn in it are recorded too."""

    draws: list[Any]

    def tensor_key(self, drawn: SeedState) -> keyed.Key:
        words = self.stand_in(np.zeros(4, np.uint32))
        self.draws.append(words)
        return keyed.Key(*(words[i, ...] for i in range(4)))


class _OutsidePass(_StepPass):
    """The Pass of a recorded training step outside of the calls of its modules, or of a call of a
    module that the step makes. Random numbers of a module, such as those of dropout, are refused
    here: a module counts its calls for them."""

    def key(self, seed: int, purpose: str, *names: str) -> keyed.Key:
        refuse("random numbers of a module that is not called, or that the step makes")
