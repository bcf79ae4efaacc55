"""Passes of a stage, run once without numbers, and PaperStage, which repeats what they did.

record    the layers of a rank run forward and back on arrays without numbers; recorded: exchanges,
          uses of parameters, and gradients in the order in which they become final
replay    a stage of any rank with the same layers asks its store, its statistics and its Comms for
          the same again, in each pass of each micro-batch: so a long program costs little
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from nnmpi.arrays import meta
from nnmpi.arrays.backend import META, Array, Backend
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.meta.array import new_array
from nnmpi.arrays.meta.shapes import axis_order
from nnmpi.autograd import Tensor
from nnmpi.autograd.ops.norm import Moments
from nnmpi.collectives.step import Collective
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import BatchStats, Pass, current_pass
from nnmpi.nn.single_store import SingleStore
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.step.ports import JoinedOutputs
from nnmpi.planning.paper.comm import PaperComm
from nnmpi.planning.paper.log import StepLog
from nnmpi.schedules.op import Kind

Event: TypeAlias = tuple[Callable[..., None], tuple[Any, ...]]
"""A method of PaperStage, which does again what a pass has done, and its arguments."""


class TensorShape(NamedTuple):
    """The shape of a tensor without numbers; `order` is that of its axes in memory."""

    shape: tuple[int, ...]
    dtype: Any
    order: Sequence[int]
    requires_grad: bool

    @classmethod
    def of(cls, t: Tensor) -> Self:
        """The shape of a tensor."""
        return cls(t.shape, t.dtype, axis_order(t.data), t.requires_grad)

    def tensor(self) -> Tensor:
        """A new tensor."""
        return Tensor(new_array(self.shape, self.dtype, self.order), self.requires_grad)


class PassBytes(NamedTuple):
    """Bytes of activations of a stage, of one micro-batch.

    enters   what comes into it
    inside   what it keeps for its backward pass besides what enters and what goes out
    out      what goes out, but a loss
    read, out_read   of what enters and goes out, what the backward pass of this stage reads
    left     what it keeps between the halves of the backward pass
    more     by how much the most within each pass is above what it keeps when that pass begins
    """

    enters: int
    inside: int
    out: int
    read: int
    out_read: int
    left: int = 0
    more: Mapping[Kind, int] = {}

    @property
    def kept(self) -> int:
        """The bytes that the stage keeps from its forward pass to its backward pass."""
        return self.enters + self.inside + self.out


class RecordedExchange(NamedTuple):
    """An exchange of the ranks in these places along an axis."""

    axis: str
    exchange: Exchange
    places: tuple[int, ...]
    started: bool


class Events(NamedTuple):
    """A pass as a log: its exchanges, each with how often it happened, and the rest in order."""

    exchanges: Mapping[RecordedExchange, int] = {}
    calls: Sequence[Event] = ()


class PassEvents(NamedTuple):
    """The events of the passes of a stage over so many samples, and the bytes that they take.

    outputs   of a forward pass
    forward, backward; inputs, weights   of the passes F and B, and of the halves of B
    """

    outputs: Sequence["TensorShape"]
    nbytes: PassBytes
    forward: Events
    backward: Events = Events()
    inputs: Events = Events()
    weights: Events = Events()


class PassRecorder:
    """The events of the pass that is under way."""

    def __init__(self) -> None:
        self.exchanges, self._calls = Counter[RecordedExchange](), list[Event]()

    def __call__(self, do: Callable[..., None], *arguments: Any) -> None:
        self._calls.append((do, arguments))

    def take(self) -> Events:
        """The events since the last call."""
        events = Events(self.exchanges, self._calls)
        self.exchanges, self._calls = Counter(), []
        return events


class ExchangeRecorder(StepLog):
    """Notes each exchange as an event, with the places of its ranks along the axis."""

    def __init__(self, recorder: PassRecorder, groups: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self._recorder, self._groups = recorder, groups

    def note(self, axis: str, exchange: Exchange, started: bool, times: int = 1) -> None:
        places = tuple(map(self._groups[axis].index, exchange.group))
        self._recorder.exchanges[RecordedExchange(axis, exchange, places, started)] += 1


def placeholder(on: Backend, shape: Sequence[int], dtype: Any) -> Array:
    """An array without numbers; on other backends with any, by which experts get their tokens.

    Integers are 0 there: a number of a class, a token, or the length of a sequence. Floats are
    small, as weights are, so that none overflows.
    """
    if on is META:
        return on.xp.empty(shape, dtype)
    if not is_float(np.dtype(dtype)):
        return on.xp.zeros(shape, dtype)
    return on.asarray((np.random.default_rng(0).standard_normal(shape) / 100).astype(dtype))


class RecordedStore(SingleStore):
    """The store of one parameter, which notes when its values and its gradient are asked for."""

    rotates = True

    def __init__(self, variable: int, value: Array, recorder: PassRecorder) -> None:
        super().__init__(value)
        super().grad_memory(0)[...] = 0  # no pass takes this memory
        self._variable, self._recorder = variable, recorder

    def value(self, i: int) -> Array:
        self._recorder(PaperStage.use, self._variable)
        return super().value(i)

    def refresh(self, i: int, made: int) -> None:
        self._recorder(PaperStage.use_again, self._variable, made)

    def grad_memory(self, i: int) -> Array:
        self._recorder(PaperStage.contribute, self._variable)
        return super().grad_memory(i)


class RecordedStats:
    """Batch statistics that note what they are asked for."""

    def __init__(self, recorder: PassRecorder) -> None:
        self._recorder = recorder

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        self._recorder(PaperStage.moments, local)
        return local._replace(n=max(local.n, 2))

    def sum(self, sums: Array) -> Array:
        self._recorder(PaperStage.sum, sums)
        return sums


class PaperRoot(JoinedOutputs):
    """The outputs of a stage on paper, and the way back."""

    __slots__ = ("_events", "_leaves", "_stage", "_stats")

    def __init__(
        self, stage: "PaperStage", events: PassEvents, outputs: Sequence[Tensor], leaves: Any
    ) -> None:
        super().__init__(outputs)
        self._stage, self._events, self._leaves = stage, events, leaves
        self._stats = _pass().batch_stats
        self.requires_grad = True

    def backward(  # type: ignore[override]
        self, gradient: Any = None, *, on_leaf: Any = None, until: Any = None, **options: Any
    ) -> "_SecondHalf | None":
        """Does what the backward pass did, or with `until` what its first half did."""
        events = self._events.backward if until is None else self._events.inputs
        self._stage.replay(events, self._stats, on_leaf)
        for x in self._leaves:
            x.receive(lambda g, out, x=x: meta.like(x.data) if out is None else out, None)
        return None if until is None else _SecondHalf(self._stage, self._events, self._stats)


class _SecondHalf(NamedTuple):
    """The second half of a backward pass."""

    stage: "PaperStage"
    events: PassEvents
    stats: BatchStats

    def finish(self, on_leaf: Any = None) -> None:
        """Does what it did."""
        self.stage.replay(self.events.weights, self.stats, on_leaf)


def _pass() -> Pass:
    """The forward pass that is under way."""
    return current_pass.get() or Pass(0)


class PaperStage(Module):
    """A stage that does what recorded passes of it did, with parameters of any store.

    recorded     the events of passes over so many samples
    parameters   by their numbers in the graph
    comms        of this rank, by axis
    """

    _recorded: Callable[[int], PassEvents]
    _parameters_by_variable: Mapping[int, Parameter]
    _comms: Mapping[str, PaperComm]
    _exchanges: dict[RecordedExchange, Exchange]
    _replays: Iterator[int]
    _replay: int  # the number of the pass that is under way, with its statistics and its hook
    _stats: BatchStats
    _on_leaf: Callable[[Any], None] | None

    def __init__(
        self,
        recorded: Callable[[int], PassEvents],
        parameters: Mapping[int, Parameter],
        comms: Mapping[str, PaperComm],
    ) -> None:
        vars(self).update(_recorded=recorded, _parameters_by_variable=parameters, _comms=comms)
        vars(self).update(_replays=count(), _exchanges=dict[RecordedExchange, Exchange]())
        for v, p in parameters.items():
            self._parameters[f"variable_{v}"] = vars(self)[f"variable_{v}"] = p

    def forward(self, *inputs: Any, **named: Any) -> Any:
        current = _pass()
        assert current.samples is not None
        events = self._recorded(len(current.samples))
        self.replay(events.forward, current.batch_stats)
        outputs = [shape.tensor() for shape in events.outputs]
        leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
        return PaperRoot(self, events, outputs, leaves)

    def replay(
        self,
        events: Events,
        stats: BatchStats,
        on_leaf: Callable[[Any], None] | None = None,
    ) -> None:
        """Does again what a pass did; `on_leaf` gets parameters whose gradient is final."""
        vars(self).update(_stats=stats, _on_leaf=on_leaf, _replay=next(self._replays))
        for recorded, times in events.exchanges.items():
            self._exchange(recorded, times)
        for do, arguments in events.calls:
            do(self, *arguments)

    # ---- events

    def use(self, variable: int) -> None:
        """Asks for values."""
        _ = self._parameters_by_variable[variable].operand

    def use_again(self, variable: int, made: int) -> None:
        """Asks for values again, for the node number `made`."""
        self._parameters_by_variable[variable].refresh((self._replay << 32) + made)

    def contribute(self, variable: int) -> None:
        """Writes a gradient, or adds to it."""
        p = self._parameters_by_variable[variable]
        _ = p.grad_memory
        p.has_grad = True

    def ready(self, variable: int) -> None:
        """A gradient is final."""
        if self._on_leaf is not None:
            self._on_leaf(self._parameters_by_variable[variable])

    def moments(self, local: Moments) -> None:
        """Asks for statistics."""
        self._stats.moments(local, lambda summed: None)

    def sum(self, sums: Array) -> None:
        """Sums over the batch."""
        self._stats.sum(sums)

    def _exchange(self, recorded: RecordedExchange, times: int) -> None:
        """Logs an exchange among the ranks of this stage."""
        axis, exchange, places, started = recorded
        if recorded not in self._exchanges:
            comm = self._comms[axis]
            if exchange.operation is Collective.ALL_REDUCE:
                comm.window(exchange.algorithm, exchange.numbers, exchange.dtype)
            group = tuple(comm.members[i] for i in places)
            self._exchanges[recorded] = exchange._replace(group=group)
        self._comms[axis].state.log.note(axis, self._exchanges[recorded], started, times)
