"""PassList: the forward and backward pass of a module as a list of kernel calls, which is recorded
once and then replayed without autograd. It is recorded on arrays that have a shape but no data.

    calls     F F F F F  I I I  W W W   kernels and array functions, in the order of autograd: the
                                        forward pass (F), and the two halves of the backward pass:
                                        gradients of inputs (I) and of parameters (W)
    given     parameters, gradients, buffers: existing memory, which the calls read and write
    inputs    samples, labels, keys of random numbers, seeds of the backward pass: written before a
              replay
    others    new arrays, which get places in memory that is planned for all calls

The list is valid for a step of any number, with inputs of these shapes. So code that reads a value
or the number of the step in Python raises NumbersReadError while it is recorded, unless it is
recorded on arrays with numbers (`StandIn`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MethodType
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from nnmpi.arrays import keyed, meta
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import progress_hook
from nnmpi.arrays.meta.log import Call, arrays_in, assign, log_call, logged_calls, refused
from nnmpi.arrays.meta.shapes import NumbersReadError, axis_order, owner, refuse
from nnmpi.autograd import Tensor
from nnmpi.autograd.ops.norm import Moments
from nnmpi.autograd.recording import recording
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import LOCAL, Pass, current_pass
from nnmpi.nn.registries import buffers_of
from nnmpi.nn.single_store import SingleStore
from nnmpi.nn.tracing import unchanged


class RecordedKey(NamedTuple):
    """A key of random numbers in a recorded pass. The key depends on the step: a replay computes it
    from seed, purpose, names and step number, and writes it to the array that `words` stands for.
    """

    seed: int
    purpose: str
    names: tuple[str, ...]
    words: Any


class PassList(NamedTuple):
    """The recorded calls of a forward and a backward pass. The arrays in them have no data: they
    only stand for arrays with memory, which a replay puts in their place.

    calls      checks of inputs, then the forward pass; the backward pass begins at call number
               `backward`, and its second half, if there is one, at number `second`
    given      pairs (array without data, existing memory that it stands for)
    inputs     the arrays that stand for the inputs of the pass, such as samples and labels
    keys       the keys of random numbers
    outputs    the arrays of the results of the forward pass: a loss, or tensors for another stage
    seeds      for each output the array of its gradient, an input of the backward pass; or None
    gradients  the arrays of the results of the backward pass: the gradients of those inputs that
               come from another stage
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


class RecordedPass(Protocol):
    """The interface of what `record` records: the forward pass of a pipeline stage, and the tensor
    (root) from which its backward pass starts. It runs on arrays without data."""

    def inputs(self, arrays: Sequence[Any]) -> Sequence[Tensor]:
        """Returns the tensors that the stage takes, given the input arrays."""

    def run(self, module: Any, inputs: Sequence[Tensor], arrays: Sequence[Any]) -> Tensor:
        """Runs the forward pass of `module` on `inputs` (the tensors that the method `inputs` has
        returned) and the further input `arrays`, such as labels; returns the tensor from which the
        backward pass starts."""

    def outputs(self, root: Any) -> Sequence[Tensor]:
        """Returns the results of the forward pass, given the tensor `root` that `run` has
        returned."""

    def seed(self, root: Any, gradients: Sequence[Any]) -> Array:
        """Returns the gradient of `root` with which the backward pass starts, given the gradients
        of the outputs."""

    def gradients(self, inputs: Sequence[Tensor]) -> Sequence[Any]:
        """Returns the gradients of those inputs that come from another stage, after the backward
        pass."""


def uses(p: Parameter, again: bool) -> None:
    """A marker in a recorded list of calls; it does nothing when it is called. It says that calls
    after it read the values of p; with `again`, to run a function a second time in the backward
    pass (activation checkpointing). With ZeRO 3, which gathers values unit by unit, a replay finds
    by these markers the call at which each unit begins."""


def ready(p: Parameter) -> None:
    """A marker in a recorded list of calls; it does nothing when it is called. It says that the
    gradient of p is complete."""


def progress() -> None:
    """Lets communication in the background advance, by the progress hook that the current thread
    has set. It is recorded as a call of its own, so that a replay does the same."""
    progress_hook.get()()


class KeyedPass(Pass):
    """A Pass (state on which random numbers depend) for recording: it has no step number, and the
    keys of its random numbers are arrays, which a replay fills with the keys of its step."""

    keys: list[RecordedKey]
    stand_in = staticmethod(meta.like)

    def _replace(self, **changes: Any) -> "KeyedPass":
        new: KeyedPass = super()._replace(**changes)
        vars(new).update(vars(self))
        return new

    def key(self, seed: int, purpose: str, *names: str) -> keyed.Key:
        words = self.stand_in(np.zeros(4, np.uint32))
        self.keys.append(RecordedKey(seed, purpose, names, words))
        return keyed.Key(*(words[i, ...] for i in range(4)))

    def is_in_first(self, steps: int) -> bool:
        """Returns False, since the recording is for steps of any number."""
        return False

    @property
    def step(self) -> int:
        if self.stand_in is meta.like:
            refuse("the number of the step")
        return 0


def join_moments(n: int, mean: Array, m2: Array, total: int, means: Array, m2s: Array) -> None:
    """A marker in a recorded list of calls; it does nothing when it is called. It says that ranks
    combine the mean and sum of squares `m2` of their `n` values per channel into those of all
    `total` values, written to `means` and `m2s`."""


def sum_over_ranks(sums: Array, total: Array) -> None:
    """A marker in a recorded list of calls; it does nothing when it is called. It says that ranks
    add up the arrays `sums` into `total`."""


class _StatsOfRanks:
    """The BatchStats (from which BatchNorm gets batch statistics) while a pass is recorded whose
    statistics are not computed from this rank's samples alone: other ranks have samples of the
    batch, or the pass runs a second time. A request for statistics adds a marker to the list of
    calls and returns arrays without data, which a replay fills when it reaches the marker.

    counts   the number of values in the moments of each BatchNorm layer
    tracks   False in a second run, since the first one has updated the running statistics
    """

    def __init__(self, counts: Iterable[int], tracks: bool) -> None:
        self._counts, self._tracks = iter(counts), tracks

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        joined = Moments(next(self._counts), _like(local.mean), _like(local.m2))
        log_call(join_moments, *local, *joined)
        if self._tracks:
            track(joined)
        return joined

    def sum(self, sums: Array) -> Array:
        total = _like(sums)
        log_call(sum_over_ranks, sums, total)
        return total


def _like(array: Array) -> Any:
    """Makes an array like `array`, without data unless that has some."""
    return meta.like(array) if meta.is_meta(array) else array.copy()


StandIn: TypeAlias = Callable[[Array], Any]
"""A function that makes the array that stands for an existing one while a pass is recorded: without
data (`meta.like`), or with numbers, for layers that read some."""


class StandIns:
    """Collects, while a pass is recorded, pairs of arrays: one without data, which occurs in the
    recorded calls, and the existing memory (such as a parameter's) that takes its place in a
    replay. `make` makes the first one."""

    def __init__(self, make: StandIn = meta.like) -> None:
        self.pairs, self._make = list[tuple[Any, Array]](), make

    def of(self, array: Array) -> Any:
        """Makes a new array without data, which stands for `array` in recorded calls; adds the pair
        (new array, `array`) to the collected pairs, and returns the new array."""
        if not array.transpose(axis_order(array)).flags.c_contiguous:
            refuse(f"an array of shape {array.shape} with gaps in memory")
        self.pairs.append((self._make(array), array))
        return self.pairs[-1][0]


class _StandInStore(SingleStore):
    """The Store of one parameter while a pass is recorded: arrays without data, which stand for the
    parameter's memory in its real store."""

    def __init__(self, p: Parameter, stand_ins: StandIns) -> None:
        if not p.is_drawn:
            p.draw()
        assert p.store is not None
        self.rotates = self.is_shared = p.store.rotates  # ops run as on the values of that store
        super().__init__(stand_ins.of(p.store.fixed_value(p.index)))
        if p.needs_grad:
            self._slot = stand_ins.of(p.store.fixed_gradient(p.index))
        self._p = p

    def value(self, i: int) -> Array:
        current = current_pass.get()
        log_call(uses, self._p, current is not None and current.again)
        return super().value(i)


class Recording(NamedTuple):
    """Facts that decide which calls are recorded, besides the module and shapes of inputs.

    samples   the row numbers of the samples in the data set
    batch     the number of samples of the whole batch
    counts    for each layer of BatchNorm, the number of values in its moments; None unless other
              ranks have samples of the same batch, or the pass runs a second time
    again     True if the pass runs a second time
    adds      True if the backward pass adds to gradients that another one has computed
    halves    True if the backward pass has two halves: gradients of inputs, then of parameters
    stand_in  makes the arrays on which the pass is recorded
    edge      is called where a part of the pass begins or ends
    """

    samples: Array
    batch: int | None
    counts: Iterable[int] | None
    again: bool
    adds: bool
    halves: bool
    stand_in: StandIn = meta.like
    edge: Callable[[], object] = lambda: None


FILLS = None, 0x3F, 0xFB
"""A pass is recorded on arrays without data at addresses without memory, which are zeros to read,
and again at addresses with memory of these bytes, which are positive and negative numbers of all
types."""


def same_calls(first: Sequence[Call], second: Sequence[Call]) -> bool:
    """True if two recordings make the same calls on the same memory, with the same constants, so
    that one list of calls can stand for both."""
    numbers = dict[int, int](), dict[int, int]()

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, meta.MetaArray) and isinstance(b, meta.MetaArray):
            return _described(a, numbers[0]) == _described(b, numbers[1])
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        if isinstance(a, tuple | list) and type(a) is type(b):
            return len(a) == len(b) and all(map(same, a, b))
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
        if isinstance(a, MethodType) and isinstance(b, MethodType) and a.__self__ is not b.__self__:
            of = a.__self__, b.__self__  # objects that each recording has made
            alike = a.__func__ is b.__func__ and type(of[0]) is type(of[1])
            return alike and all(hasattr(one, "__dict__") for one in of) and same(*map(vars, of))
        return a is b or (type(a) is type(b) and bool(a == b or (a != a and b != b)))

    return same([*first], [*second])


def _described(array: Any, numbers: dict[int, int]) -> tuple[Any, ...]:
    """Describes a view of an array without data as (number of its memory, offset, shape, strides,
    dtype), for comparison. Memories are numbered in the order of their first use; `numbers` has the
    numbers given so far."""
    memory = owner(array)
    offset = array.ctypes.data - memory.ctypes.data
    number = numbers.setdefault(id(memory), len(numbers))
    return number, offset, array.shape, array.strides, array.dtype


@contextmanager
def without_data(
    parts: Sequence[Module], others: Iterable[Parameter], stand_ins: StandIns
) -> Iterator[Callable[[], bool]]:
    """A context in which the parameters and buffers of `parts`, and the parameters `others`, are
    replaced by arrays that have a shape but no data; `stand_ins` collects what stands for which
    memory. It yields a function that tells whether a buffer was assigned meanwhile."""
    modules = dict.fromkeys(m for part in parts for m in part.modules())
    parameters = dict.fromkeys((*(p for part in parts for p in part.parameters()), *others))
    stores = [(p, _StandInStore(p, stand_ins)) for p in parameters]
    buffers = [(m, name, stand_ins.of(t.operand)) for m, name, t in buffers_of(modules)]
    stores_of_others = [(p, p.store, p.index, p.has_grad) for p in others]
    with ExitStack() as restored:
        for part in parts:
            restored.enter_context(unchanged(part))
        restored.callback(_put_back, stores_of_others)
        for p, store in stores:
            p.move(store, 0)
        for m, name, array in buffers:
            setattr(m, name, array)
        expected = [id(array) for _, _, array in buffers]
        yield lambda: expected != [id(t.operand) for _, _, t in buffers_of(modules)]


def _put_back(parameters: Iterable[tuple[Parameter, Any, int, bool]]) -> None:
    for p, store, index, has_grad in parameters:
        p.move(store, index)
        p.has_grad = has_grad


@contextmanager
def _as_current(current: Pass) -> Iterator[None]:
    """A context in which a pass is recorded: `current` is the current Pass, autograd is on, and
    calls of `progress` are recorded as calls of their own."""
    tokens = (
        (current_pass, current_pass.set(current)),
        (recording, recording.set(True)),
        (progress_hook, progress_hook.set(partial(log_call, progress))),
    )
    try:
        yield
    finally:
        for variable, token in tokens:
            variable.reset(token)  # type: ignore[arg-type]


def record(
    parts: Sequence[Module], recorded: RecordedPass, arrays: Sequence[Array], how: Recording
) -> PassList:
    """Records a forward and a backward pass of a module on inputs with the shapes of `arrays`.

    parts      the module, and the loss function if it is a module
    recorded   what is run on arrays without data
    how        further facts on which the calls depend
    """
    stand_ins, current = StandIns(how.stand_in), _current(how)
    modules = [m for part in parts for m in part.modules()]
    with (
        without_data(parts, (), stand_ins) as buffer_was_assigned,
        logged_calls() as calls,
        np.errstate(all="ignore"),
        _as_current(current),
    ):
        for p in (p for part in parts for p in part.parameters()):
            p.has_grad = how.adds and p.needs_grad
        changes = [m._changes for m in modules]
        how.edge()
        given = [*map(how.stand_in, arrays)]
        inputs = recorded.inputs(given)
        root = recorded.run(parts[0], inputs, given)
        how.edge()
        has_set = changes != [m._changes for m in modules]
        reasons = _reasons(has_set, buffer_was_assigned(), calls, root)
        outputs, backward = recorded.outputs(root), len(calls)
        back = _Backward([], [], backward, False)
        if root.needs_grad:
            back = _backward(recorded, root, outputs, inputs, how, calls, reasons)
    given, results = [*given, current.samples], [t.operand for t in outputs]
    try:
        calls = checks_first(calls, given)
    except NumbersReadError as error:
        reasons.append(str(error))
    places = backward, back.second, stand_ins.pairs, given, current.keys
    facts = back.seeds, back.gradients, how.adds, back.halves
    return PassList(calls, *places, results, *facts, unfit=next(iter(reasons), ""))


def _current(how: Recording) -> KeyedPass:
    """Returns the Pass of a recording, on which random numbers and statistics depend."""
    stats = LOCAL if how.counts is None else _StatsOfRanks(how.counts, not how.again)
    current = KeyedPass(0, how.stand_in(how.samples), stats, batch=how.batch)
    current.keys = []
    vars(current)["stand_in"] = how.stand_in
    return current


def _reasons(has_set: bool, has_assigned: bool, calls: Sequence[Call], root: Tensor) -> list[str]:
    """Returns the reasons why a forward pass may not be replayed from its recorded `calls`."""
    reasons = {
        "forward sets an attribute": has_set,
        "forward assigns a buffer instead of writing into it": has_assigned,
        "forward reads values, and goes on if that is refused": any(
            call.function is refused for call in calls
        ),
        "a pass without gradients": not root.needs_grad,
    }
    return [reason for reason, is_so in reasons.items() if is_so]


class _Backward(NamedTuple):
    """A recorded backward pass: the gradients of outputs (`seeds`) and of inputs, the number of the
    call at which its second half begins, and whether it has two halves."""

    seeds: Sequence[Any]
    gradients: Sequence[Any]
    second: int
    halves: bool


def _backward(
    recorded: RecordedPass,
    root: Tensor,
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    how: Recording,
    calls: Sequence[Call],
    reasons: list[str],
) -> _Backward:
    """Runs the backward pass from `root`, which adds to `calls`; if it may not be replayed, adds
    the reason to `reasons`."""

    def on_leaf(leaf: Any) -> None:
        if isinstance(leaf, Parameter):
            log_call(ready, leaf)
        elif leaf not in {*inputs}:
            reasons.append("the gradient of a tensor that is no parameter")

    seeds = [how.stand_in(t.array) if t.needs_grad else None for t in outputs]
    seed, leaves = recorded.seed(root, seeds), [t for t in inputs if t.needs_grad]
    halves = how.halves and bool(leaves)
    if halves:
        rest = root.backward(seed, until=leaves)
        assert rest is not None
        gradients, second = recorded.gradients(inputs), len(calls)
        how.edge()
        rest.finish(on_leaf)
    else:
        root.backward(seed, on_leaf=on_leaf)
        gradients, second = recorded.gradients(inputs), len(calls)
    how.edge()
    return _Backward(seeds, gradients, second, halves)


def checks_first(calls: Sequence[Call], given: Sequence[Any]) -> list[Call]:
    """Returns the calls with all checks of input values (such as the range of labels) moved to the
    front, so that a failing check leaves everything unchanged. `given` are the arrays that stand
    for the inputs, whose values are known before a replay."""
    known, first = {*map(id, given)}, list[Call]()
    checked = {id(owner(array)) for c in calls if c.is_check for array in arrays_in(c.args)}
    for call in calls:
        if call.function is assign and id(owner(call.args[0])) in checked - known:
            if not known.issuperset(id(owner(array)) for array in arrays_in(call.args[1:])):
                break
            known.add(id(owner(call.args[0])))
            first.append(call)
        elif call.is_check:
            first.append(call)
    if not known.issuperset(checked):
        refuse("a check of computed values")
    return [*first, *(call for call in calls if not any(call is other for other in first))]
