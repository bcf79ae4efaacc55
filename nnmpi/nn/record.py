"""Records what a program with modules computes, on arrays that have a shape but no data, as a list
of kernel calls, which is replayed without autograd.

    calls     kernels and array functions, in the order in which modules and autograd call them
    given     parameters, gradients, buffers: existing memory, which the calls read and write
    others    new arrays, which get places in memory that is planned for all calls

The list is valid for a step of any number, with inputs of these shapes. So code that reads a value
or the number of the step in Python raises NumbersReadError while it is recorded, unless it is
recorded on arrays with numbers (`StandIn`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np

from nnmpi.arrays import keyed, meta
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import progress_hook
from nnmpi.arrays.meta.log import Call, arrays_in, assign, log_call, logged_calls, refused
from nnmpi.arrays.meta.shapes import addresses_filled_with, axis_order, owner, refuse
from nnmpi.autograd.ops.norm import Moments
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import BatchStats, Pass, current_pass, variables_set
from nnmpi.nn.registries import buffers_of
from nnmpi.nn.single_store import SingleStore
from nnmpi.nn.tracing import unchanged

T = TypeVar("T")


StandIn: TypeAlias = Callable[[Array], Any]
"""A function that makes the array that stands for an existing one while a pass is recorded: without
data (`meta.like`), or with numbers, for layers that read some."""


class RecordedKey(NamedTuple):
    """A key of random numbers in a recorded pass, which a replay computes from the number of the
    step, and writes to the array that `words` stands for."""

    seed: int
    purpose: str
    names: tuple[str, ...]
    words: Any


def uses(p: Parameter, again: bool) -> None:
    """A marker in a list of calls: calls after it read the values of p; with `again`, in a function
    that runs again. With ZeRO 3 a replay finds by it where each unit begins."""


def ready(p: Parameter) -> None:
    """Marks in a list of calls that the gradient of p is complete; does nothing."""


def progress() -> None:
    """Lets communication advance by the thread's progress hook, also in a replay."""
    progress_hook.get()()


class KeyedPass(Pass):
    """A Pass for recording: keys are arrays that a replay fills, and there is no step."""

    keys: list[RecordedKey]
    stand_in = staticmethod(meta.like)

    @classmethod
    def of(cls, samples: Array, batch: int | None, stats: BatchStats, stand_in: StandIn) -> Self:
        """Returns the Pass of one recording: `samples` are the row numbers in the data set, `batch`
        the size of the whole batch; `stand_in` makes the arrays on which the pass is recorded."""
        new = cls(0, stand_in(samples), stats, batch=batch)
        new.keys = []
        vars(new)["stand_in"] = stand_in
        return new

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
    """Marks in a list of calls that ranks combine the moments of their `n` values."""


def sum_over_ranks(sums: Array, total: Array) -> None:
    """Marks in a list of calls that ranks add up `sums` into `total`; does nothing."""


class StatsOfRanks:
    """The BatchStats while a pass is recorded whose statistics other ranks share, or that runs a
    second time: a request adds a marker to the calls, and returns arrays that a replay fills.

    counts   the number of values in the moments of each BatchNorm layer
    tracks   False in a second run, since the first one has updated the running statistics"""

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


class StandIns:
    """Collects pairs of arrays while a pass is recorded: one without data (by `make`), which occurs
    in the calls, and the existing memory that takes its place in a replay."""

    def __init__(self, make: StandIn = meta.like) -> None:
        self.pairs, self._make = list[tuple[Any, Array]](), make

    def of(self, array: Array) -> Any:
        """Returns a new array without data that stands for `array` in calls, and keeps the pair."""
        if not array.transpose(axis_order(array)).flags.c_contiguous:
            refuse(f"an array of shape {array.shape} with gaps in memory")
        self.pairs.append((self._make(array), array))
        return self.pairs[-1][0]


class _StandInStore(SingleStore):
    """A parameter's Store while a pass is recorded: arrays without data."""

    def __init__(self, p: Parameter, stand_ins: StandIns) -> None:
        if not p.is_drawn:
            p.draw()
        assert p.store is not None
        self.rotates = self.is_shared = p.store.rotates  # ops run as on the values of that store
        super().__init__(stand_ins.of(p.store.fixed_value(p.index)))
        if p._requires_grad:
            self._slot = stand_ins.of(p.store.fixed_gradient(p.index))
        self._p = p

    def value(self, i: int) -> Array:
        current = current_pass.get()
        log_call(uses, self._p, current is not None and current.again)
        return super().value(i)


FILLS = None, 0x3F, 0xFB
"""The bytes in memory under arrays without data, for recordings that must be equal."""


def repeated(record: Callable[[], T], times: int = len(FILLS)) -> list[T]:
    """Returns recordings that differ if the computation reads values of arrays itself."""
    recordings = list[T]()
    for byte in FILLS[:times]:
        with addresses_filled_with(byte):
            recordings.append(record())
    return recordings


def same_calls(first: Sequence[Call], second: Sequence[Call]) -> bool:
    """True if two recordings make the same calls on the same memory and constants."""
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
    """Describes a view as (number of its memory by first use, offset, shape, strides, dtype)."""
    memory = owner(array)
    offset = array.ctypes.data - memory.ctypes.data
    number = numbers.setdefault(id(memory), len(numbers))
    return number, offset, array.shape, array.strides, array.dtype


@contextmanager
def recorded_calls(
    parts: Sequence[Module], others: Collection[Parameter], stand_ins: StandIns, current: Pass
) -> Iterator[tuple[list[Call], Callable[[], Iterator[str]]]]:
    """A context in which calls of kernels are recorded, with `current` as the current Pass: arrays
    without data take the place of the parameters and buffers of `parts`, and of the parameters
    `others`; `stand_ins` collects what stands for which memory.

    It yields the list of calls, and a function that returns the reasons why they may not be
    repeated in the place of what was recorded.
    """
    modules = dict.fromkeys(m for part in parts for m in part.modules())
    parameters = dict.fromkeys((*(p for part in parts for p in part.parameters()), *others))
    stores = [(p, _StandInStore(p, stand_ins)) for p in parameters]
    buffers = [(m, name, stand_ins.of(t._array)) for m, name, t in buffers_of(modules)]
    expected = [id(array) for _, _, array in buffers]
    with (
        unchanged(*parts, others=others),
        logged_calls() as calls,
        np.errstate(all="ignore"),
        variables_set((current_pass, current)),
    ):
        for p, store in stores:
            p.move(store, 0)
        for m, name, array in buffers:
            setattr(m, name, array)

        def reasons() -> Iterator[str]:
            if expected != [id(t._array) for _, _, t in buffers_of(modules)]:
                yield "assigns a buffer instead of writing into it"
            if any(call.function is refused for call in calls):
                yield "reads values, and goes on if that is refused"

        yield calls, reasons


def checks_first(calls: Sequence[Call], given: Sequence[Any]) -> list[Call]:
    """Returns the calls with checks of inputs first, so that a failing one changes nothing."""
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
