"""RecordedPass: a stage's forward and backward pass as kernel calls, recorded by `nn/record.py`.

calls     F F F F F  I I I  W W W   the forward pass (F), and the two halves of the backward
                                    pass: gradients of inputs (I) and of parameters (W)
inputs    samples, labels, keys of random numbers, seeds of the backward pass: written before
          a replay
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import progress_hook
from nnmpi.arrays.meta import NumbersReadError
from nnmpi.arrays.meta.log import Call, log_call
from nnmpi.arrays.meta.memory_plan import lifetimes, places_of, plan_in_parts
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import recording
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import variables_set
from nnmpi.nn.record import (
    KeyedPass,
    RecordedKey,
    StandIns,
    checks_first,
    progress,
    ready,
    recorded_calls,
    uses,
)
from nnmpi.parallel.step.stage import outputs_of, seed_of


class RecordedPass(NamedTuple):
    """The recorded kernel calls of a forward and a backward pass. The arrays in them have no data:
    they only stand for arrays with memory, which a replay puts in their place.

    calls      checks of inputs, then the forward pass; the backward pass begins at call number
               `backward`, and its second half, if there is one, at number `second`
    given      pairs (array without data, existing memory that it stands for)
    inputs     the arrays that stand for the inputs of the pass, such as samples and labels
    outputs    the results of the forward pass: a loss, or tensors for another stage
    seeds      for each output the array of its gradient, an input of the backward pass; or None
    gradients  the gradients of those inputs that come from another stage
    adds       True if the backward pass adds to gradients of an earlier one
    halves     True if the backward pass has two halves: gradients of inputs, then of parameters
    unfit      why the calls may not be repeated in the place of the pass; "" if they may
    """

    calls: Sequence[Call]
    backward: int
    second: int
    given: Sequence[tuple[Any, Array]]
    inputs: Sequence[Any]
    keys: Sequence[RecordedKey]
    outputs: Sequence[Any]
    seeds: Sequence[Any]
    gradients: Sequence[Any]
    adds: bool
    halves: bool
    unfit: str = ""


Forward: TypeAlias = Callable[[Sequence[Any]], tuple[Sequence[Tensor], Tensor]]
"""(arrays): runs the forward pass of a stage, and its loss, on input arrays and labels. Returns the
inputs whose gradients another stage gets, and the loss or JoinedOutputs."""


def record(
    parts: Sequence[Module],
    forward: Forward,
    arrays: Sequence[Array],
    current: KeyedPass,
    adds: bool,
    halves: bool,
    edge: Callable[[], object] = lambda: None,
) -> RecordedPass:
    """Records a forward and a backward pass on inputs with the shapes of `arrays`.

    parts     the module of the stage, and the loss function if it is a module
    current   the Pass, which is for this recording alone
    edge      is called where a part of the pass begins or ends
    """
    stand_ins = StandIns(current.stand_in)
    modules = [m for part in parts for m in part.modules()]
    with (
        recorded_calls(parts, (), stand_ins, current) as (calls, reasons),
        on_tape(partial(log_call, progress)),
    ):
        for p in (p for part in parts for p in part.parameters()):
            p.has_grad = adds and p._requires_grad
        changes = [m._changes for m in modules]
        edge()
        given: list[Any] = [*map(current.stand_in, arrays)]
        inputs, root = forward(given)
        edge()
        unfit = ["forward sets an attribute"] * (changes != [m._changes for m in modules])
        unfit += [f"forward {reason}" for reason in reasons()]
        outputs, backward = outputs_of(root), len(calls)
        halves = halves and root._requires_grad and bool(inputs)
        seeds, gradients, second = list[Any](), list[Any](), backward
        if root._requires_grad:
            seeds = [current.stand_in(t.array) if t._requires_grad else None for t in outputs]
            gradients, second = _backward(root, seeds, inputs, halves, edge, calls, unfit)
        else:
            unfit.append("a pass without gradients")
    given, results = [*given, current.samples], [t._array for t in outputs]
    try:
        calls = checks_first(calls, given)
    except NumbersReadError as error:
        unfit.append(str(error))
    places = backward, second, stand_ins.pairs, given, current.keys, results, seeds, gradients
    return RecordedPass(calls, *places, adds, halves, unfit=next(iter(unfit), ""))


def on_tape(poll: Callable[[], object]) -> AbstractContextManager[None]:
    """Returns a context in which autograd records, and kernels call `poll` for messages."""
    return variables_set((recording, True), (progress_hook, poll))


def _backward(
    root: Tensor,
    seeds: Sequence[Any],
    inputs: Sequence[Tensor],
    halves: bool,
    edge: Callable[[], object],
    calls: Sequence[Call],
    unfit: list[str],
) -> tuple[list[Any], int]:
    """Runs the backward pass from `root`, given the gradients of the outputs, and notes in `unfit`
    why it may not be replayed. Returns the gradients of `inputs`, and the number of the call at
    which its second half begins."""

    def on_leaf(leaf: Any) -> None:
        if isinstance(leaf, Parameter):
            log_call(ready, leaf)
        elif leaf not in {*inputs}:
            unfit.append("the gradient of a tensor that is no parameter")

    seed, until = seed_of(root, seeds), inputs if halves else None
    rest = root.backward(seed, on_leaf=on_leaf, until=until)
    gradients, second = taken(inputs), len(calls)
    edge()
    if rest is not None:
        rest.finish(on_leaf)
        edge()
    return gradients, second


def taken(inputs: Sequence[Tensor]) -> list[Any]:
    """Returns inputs' gradients, zeros for unused ones, and removes them."""
    gradients = list[Any]()
    for t in inputs:
        if (array := t.grad_array) is None:
            array = backend.xp_of(t.array).zeros_like(t.array)
        gradients.append(array)
        t.grad_array = None
    return gradients


# ---- places in memory, and units


class PlannedPass:
    """A recorded pass with a plan that gives each array a place in memory. It has three parts:
    forward, and the two halves of backward.

    calls       the number of function calls that run it
    trained     the parameters whose gradients the backward pass computes
    kept        the plan for arrays that live longer than one part; each micro-batch in flight has
                such memory of its own
    scratch     the plan for arrays that live within one part
    in_flight   how many micro-batches are between their forward and backward passes at a time
    units       the parameters of each unit; `absent` and `unrepeated` as in `StageUnits`
    """

    def __init__(
        self,
        recorded: RecordedPass,
        in_flight: int = 1,
        units: Sequence[Collection[Parameter]] = ((),),
        absent: Sequence[Collection[Parameter]] = ((),),
        unrepeated: Sequence[Collection[Parameter]] = ((),),
    ) -> None:
        self.recorded, calls = recorded, recorded.calls
        written = *recorded.inputs, *(key.words for key in recorded.keys)  # before the first call
        others = [(a, 0) for a in written]
        at_edge = *recorded.outputs, *recorded.seeds
        others += [(a, recorded.backward) for a in at_edge if a is not None]
        others += [(a, max(recorded.second - 1, recorded.backward)) for a in recorded.gradients]
        outputs = [(a, 0) for a in recorded.outputs]  # one may be an input that no call uses
        self.used, self.given = {*lifetimes(calls, outputs)}, places_of(recorded.given)
        self.trained = frozenset(call.args[0] for call in calls if call.function is ready)
        alive = [a for key, a in lifetimes(calls, others).items() if key not in self.given]
        starts = 0, recorded.backward, recorded.second
        self.kept, self.scratch = plan_in_parts(alive, starts, in_flight)
        self.calls = sum(call.function is not uses for call in calls)
        self.slices = _slices(recorded, units, absent, unrepeated)


class Slices(NamedTuple):
    """For each unit, its range of the calls: in the forward pass, and in the two halves of the
    backward pass, where the last unit comes first; without halves, `second` has all of it."""

    forward: Sequence[slice]
    first: Sequence[slice]
    second: Sequence[slice]


def _slices(
    recorded: RecordedPass,
    of_units: Sequence[Collection[Parameter]],
    absent: Sequence[Collection[Parameter]],
    unrepeated: Sequence[Collection[Parameter]],
) -> Slices:
    """Divides the calls of a recorded pass among the units of the stage.

    In the forward pass, a unit ends before a parameter of a later unit is used; in the backward
    pass, where all gradients of its parameters are final. With ZeRO 3, unit u ends before the first
    use of one of absent[u]; in a function that runs again in the backward pass, of one of
    unrepeated[u]."""
    begin = recorded.second if recorded.halves else recorded.backward
    forward, second = range(recorded.backward), range(begin, len(recorded.calls))
    first, downwards = range(recorded.backward, begin), (absent[::-1], unrepeated[::-1])
    if any(absent):
        later, ends = absent, _before(recorded, second, *downwards)
    else:
        later = [frozenset[Parameter]().union(*of_units[u:]) for u in range(1, len(of_units) + 1)]
        ends = _behind(recorded, second, of_units)
    return Slices(
        _cut(forward, _before(recorded, forward, later, later)),
        _cut(first, _before(recorded, first, *downwards) if first else ()),
        _cut(second, ends),
    )


def _before(
    recorded: RecordedPass,
    calls: range,
    others: Sequence[Collection[Parameter]],
    unrepeated: Sequence[Collection[Parameter]],
) -> Sequence[int]:
    """Returns, for each unit except the first, the index of the call at which it begins, in the
    range `calls` of a pass or of half of it.

    others[k] has parameters that unit k, counted in the order of this pass, never uses: the first
    use of one of them begins unit k + 1. Without such a use, unit k has all the remaining calls. In
    a function that runs again, unrepeated[k] takes the place of others[k]."""
    begins, left = list[int](), [*zip(others[:-1], unrepeated[:-1], strict=True)]
    for k in calls:
        call = recorded.calls[k]
        while left and call.function is uses and call.args[0] in left[0][call.args[1]]:
            begins.append(k)
            del left[0]
    return begins + [calls.stop] * len(left)


def _behind(
    recorded: RecordedPass, calls: range, of_units: Sequence[Collection[Parameter]]
) -> Sequence[int]:
    """Returns, for each unit except the first that runs backward, the index of the call at which it
    begins: a unit ends when all gradients of its parameters are final. `calls` is the range of the
    backward pass; of_units[u] are the parameters of unit u, in the order of the forward pass."""
    final = {recorded.calls[k].args[0]: k + 1 for k in calls if recorded.calls[k].function is ready}
    ends = ([final.get(p, 0) for p in inside] for inside in of_units[:0:-1])
    return [*accumulate((max([calls.start, *of_unit]) for of_unit in ends), max)]


def _cut(calls: range, places: Sequence[int]) -> list[slice]:
    return [slice(*pair) for pair in pairwise([calls.start, *places, calls.stop])]
