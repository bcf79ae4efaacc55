"""Records a step of a user's training loop (`nnmpi.compile`) as a list of kernel calls on arrays
without data, which `step_replay.py` replays. `compiled.py` decides which list is replayed."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count, repeat
from operator import setitem
from typing import Any, Literal, NamedTuple

import numpy as np

from nnmpi.addons.compile.number import Number, Numbers, filled
from nnmpi.addons.compile.root_calls import RootCalls
from nnmpi.addons.compile.step_code import StepCode
from nnmpi.arrays import meta
from nnmpi.arrays.backend import Array, is_array
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.log import (
    Call,
    arrays_in,
    assign,
    assign_result,
    log_call,
)
from nnmpi.arrays.meta.shapes import owner, refuse
from nnmpi.arrays.native.table import Kernel
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import recording
from nnmpi.nn.graph import leaves, mapped
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import variables_set
from nnmpi.nn.record import (
    StandIn,
    StandIns,
    checks_first,
    recorded_calls,
    same_calls,
    uses,
)
from nnmpi.nn.seeding import seed_state
from nnmpi.nn.users_code import compared, is_plain
from nnmpi.optim.optimizer import Optimizer, instead_of_step

WRITING = assign, assign_result, setitem, np.copyto, np.put_along_axis
"""Functions that write into their first argument, besides kernels and functions with `out`."""


class UnrecordedError(Exception):
    """Raised if a training step failed while it was being recorded."""


NUMBERS = int, float
"""The types of numbers that may be inputs of a recorded step."""


class RecordedStep(NamedTuple):
    """A recorded training step: the calls of kernels, and the arrays without data that stand for
    arguments, parameters and results.

    given      pairs of an array without data and the memory that it stands for
    inputs     the arrays of the arguments
    outputs    the arrays in the step's `result`, also those of tensors
    made       the number of modules that the step constructs, such as losses. A replay adds it to
               the counter of constructed modules, on which initial weights of later modules depend
    written    parameters whose values the step writes itself, apart from optimizers
    numbers    the numbers among the arguments that are inputs too, and what is computed of them
    """

    calls: Sequence[Call]
    given: Sequence[tuple[Any, Array]]
    inputs: Sequence[Any]
    roots: RootCalls
    result: Any
    outputs: Sequence[Any]
    made: int
    written: Sequence[Parameter]
    numbers: Numbers

    @property
    def checks(self) -> int:
        """The number of calls, from the first one on, that check arguments."""
        return max((k + 1 for k, call in enumerate(self.calls) if call.is_check), default=0)

    @property
    def plain(self) -> list[Any]:
        """The numbers and texts that the step returns."""
        return [leaf for leaf in leaves(self.result) if not is_computed(leaf)]

    def is_same(self, other: "RecordedStep") -> bool:
        """True if another recording makes the same calls, and returns the same numbers."""
        if [*map(compared, self.plain)] != [*map(compared, other.plain)]:
            return False
        examples = self.numbers.examples
        calls = ([filled(call, examples) for call in step.calls] for step in (self, other))
        return same_calls(*calls)


def record_step(
    function: Callable[..., Any],
    code: StepCode,
    args: Sequence[Any],
    named: dict[str, Any],
    free: Collection[int] = (),
) -> RecordedStep:
    """Runs a user's training step `function` once with arrays without data in place of its
    arguments `args` and `named`, and returns the recorded calls of kernels as a RecordedStep.
    `code` lists the modules and parameters that the step uses. Those numbers among the arguments
    whose places are in `free` are inputs of the recording, as arrays are."""
    stand_ins, arguments, roots = StandIns(), Arguments(args, named, free), RootCalls(code)
    gradients, first = Gradients(code), seed_state.get()
    with (
        recorded_calls(code.modules, code.loose, stand_ins, roots.outside()) as (calls, reasons),
        _restored(code) as facts,
        variables_set((instead_of_step, gradients.update), (seed_state, first)),
    ):
        result = function(*arguments.given[0], **arguments.given[1])
        made = seed_state.get().number - first.number
        written = {id(owner(array)) for call in calls for array in _written(call)}
        _refuse_where(
            facts != _facts(code) and "changes a mode, an option or a module",
            *reasons(),
            *arguments.reasons(calls, written),
        )
        gradients.note()
    _check_result(result)
    outputs = [array_of_argument(leaf) for leaf in leaves(result) if is_computed(leaf)]
    calls = checks_first([call for call in calls if call.function is not uses], arguments.arrays)
    arrays = {id(array) for stand_in, array in stand_ins.pairs if id(stand_in) in written}
    changed = [p for p in code.parameters if id(p._array) in arrays]
    of_step = stand_ins.pairs, arguments.arrays, roots, result, outputs, made, changed
    return RecordedStep(calls, *of_step, arguments.numbers)


class Gradients:
    """Records which parameters have a gradient (kernels write its memory only), and steps of
    optimizers."""

    def __init__(self, code: StepCode, log: Callable[..., None] = log_call) -> None:
        self._code, self._present = code, [p.has_grad for p in code.parameters]
        self._log = log

    def note(self) -> None:
        """Records which parameters have a gradient now, if others had one before."""
        last, self._present = self._present, [p.has_grad for p in self._code.parameters]
        if self._present != last:
            self._log(set_gradients, self._code.parameters, self._present)

    def update(self, optimizer: Optimizer, lr_factor: float) -> None:
        """Records a step of an optimizer as one call."""
        if optimizer not in self._code.optimizers:
            refuse("a step of an optimizer that the step makes")
        self.note()
        self._log(optimizer.step, lr_factor=lr_factor)


class Arguments:
    """Stand-ins for the arguments `args` and `named` of a step: arrays that `stand_in` makes, and
    Numbers for the numbers whose places among all numbers are in `free`.

    given     the arguments with their stand-ins, as (args, named)
    arrays    the stand-ins of arrays, one for each place at which an argument has an array
    numbers   the Numbers
    """

    def __init__(
        self,
        args: Sequence[Any],
        named: dict[str, Any],
        free: Collection[int],
        stand_in: StandIn = meta.like,
    ) -> None:
        self.arrays, self.numbers = list[Any](), Numbers()
        self._free, self._place, self._make = free, count(), stand_in
        self._known = dict[int, tuple[Any, Any]]()  # an argument may be there twice
        self.given = mapped(self._stand_in, (tuple(args), named))
        self._at_first = _described(self.given)

    def reasons(self, calls: Sequence[Call], written: Collection[int]) -> Iterator[str]:
        """Yields why a step with these arguments may not be replayed, given its recorded calls, and
        the memory that they write to, by id."""
        if any(id(owner(array)) in written for array in self.arrays):
            yield "writes into an argument"
        if self._at_first != _described(self.given):
            yield "changes an argument"
        # `**` of NumPy takes other functions for some exponents, such as 2.0
        if any(call.function is np.power and has_number(call) for call in calls):
            yield "raises to a number that differs from call to call"

    def _stand_in(self, value: Any) -> Any:
        """Returns what the recorded step gets in place of a part of an argument."""
        if type(value) in NUMBERS and next(self._place) in self._free:
            return self.numbers.new(value)
        if not isinstance(value, Tensor) and not is_array(value):
            return value
        if id(value) not in self._known:
            array = self._make(array_of_argument(value))
            stand = Tensor(array) if isinstance(value, Tensor) else array
            self._known[id(value)] = array, stand
        array, stand = self._known[id(value)]
        self.arrays.append(array)
        return stand


def _check_result(result: Any) -> None:
    """Refuses to record a step that returns what is neither plain nor computed by it."""
    for leaf in leaves(result):
        is_result = is_plain(leaf) or (is_computed(leaf) and not isinstance(leaf, Parameter))
        kind = type(leaf).__name__
        _refuse_where(
            not is_result
            and f"returns a {kind}, which it does not compute from its arguments and parameters"
        )


def _refuse_where(*reasons: str | Literal[False]) -> None:
    """Raises NumbersReadError, which refuses to record the step, with the first of these reasons
    that is not empty; does nothing if all are empty or False."""
    if reason := next(filter(None, reasons), ""):
        raise NumbersReadError(f"the step {reason}")


def _written(call: Call) -> Sequence[Any]:
    """Returns the arrays that a recorded call writes to."""
    function = call.function
    if isinstance(function, Kernel):
        marked = zip(call.args, chain(function.marks, repeat(function.marks[-1])), strict=False)
        return [*arrays_in([argument for argument, mark in marked if mark])]
    name, of = getattr(function, "__name__", ""), getattr(function, "__self__", function)
    if function in WRITING or (isinstance(of, np.ufunc) and name == "at"):
        return [*arrays_in(call.args[0])]
    if function in (np.dot, np.concatenate):
        return [*arrays_in(call.args[2])]
    return [*arrays_in(call.options.get("out", ()))]


def has_number(call: Sequence[Any]) -> bool:
    """True if a Number is among the arguments of a call."""
    return any(type(leaf) is Number for leaf in leaves(call))


def _described(tree: Any) -> Any:
    """Describes the nested arguments of a step by the identities of their objects. If the
    descriptions before and after the step are equal, the step has changed none of its arguments."""
    if isinstance(tree, tuple | list):
        return type(tree), [*map(_described, tree)]
    if isinstance(tree, dict):
        return dict, [*tree], [*map(_described, tree.values())]
    if isinstance(tree, Tensor):
        return id(tree), id(tree._array), tree.requires_grad, tree.grad_array is None
    return id(tree)


def _facts(code: StepCode) -> list[Any]:
    """Returns the state of the modules, parameters and optimizer options that a step uses (`code`).
    It is compared before and after the step is recorded: a step that changes any of these is
    refused."""
    of_modules = [(m, m._changes, m.training, m._hooks) for m in code.all_modules]
    of_parameters = [(p, p._requires_grad) for p in code.parameters]
    groups = [group for optimizer in code.optimizers for group in optimizer.param_groups]
    options = [(group, dict(group)) for group in groups]
    return [of_modules, of_parameters, options, recording.get()]


@contextmanager
def _restored(code: StepCode) -> Iterator[list[Any]]:
    """A context after which the state that a step may change is as before; yields that state."""
    facts = _facts(code)
    try:
        yield facts
    finally:
        _, of_parameters, groups, records = facts
        recording.set(records)
        for p, requires_grad in of_parameters:
            p._requires_grad = requires_grad
        for group, options in groups:
            group.clear()
            group.update(options)


def set_gradients(parameters: Sequence[Parameter], present: Sequence[bool]) -> None:
    """Sets `has_grad` of each parameter as `present` says. A recorded step calls it, since kernels
    write only the memory of gradients, and do not mark which parameters have one."""
    for p, is_there in zip(parameters, present, strict=True):
        p.has_grad = is_there


def is_computed(leaf: Any) -> bool:
    """True for a tensor or an array without data among the results of a recorded step."""
    return isinstance(leaf, Tensor | meta.MetaArray)


def array_of_argument(value: Any) -> Array:
    """Returns the array of a tensor, or an array itself."""
    array: Array = value._array if isinstance(value, Tensor) else value
    return array
