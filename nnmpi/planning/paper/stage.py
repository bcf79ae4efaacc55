"""PaperStage: a stage that repeats what its recorded passes did, and the types of a recording.

record    the layers of a rank run forward and backward on arrays without data; recorded are their
          exchanges, uses of parameters, and gradients in the order in which they become final
replay    a stage of any rank with the same layers makes the same calls to its store, statistics
          and Comms in each pass of each micro-batch: so a long program costs little
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
"""A method of PaperStage that repeats a call of a recorded pass, and its arguments."""


class TensorShape(NamedTuple):
    """The shape of a tensor without data; `order` is the order of its axes in memory."""

    shape: tuple[int, ...]
    dtype: Any
    order: Sequence[int]
    requires_grad: bool

    @classmethod
    def of(cls, t: Tensor) -> Self:
        return cls(t.shape, t.dtype, axis_order(t.data), t.requires_grad)

    def tensor(self) -> Tensor:
        """A new tensor of this shape, without data."""
        return Tensor(new_array(self.shape, self.dtype, self.order), self.requires_grad)


class PassBytes(NamedTuple):
    """Bytes of the activations of a stage, for one micro-batch.

    enters   of its input
    inside   kept for the backward pass besides input and output
    out      of its output, unless that is a loss
    read, out_read   the parts of input and output that the backward pass of this stage reads
    through  the part of its input that is also output
    left     kept between the two halves of the backward pass
    more     by pass, how far its peak is above the bytes that are kept when it begins
    calls    the number of calls of forward and backward pass; 0 if they cannot be replayed
    """

    enters: int
    inside: int
    out: int
    read: int
    out_read: int
    through: int = 0
    left: int = 0
    more: Mapping[Kind, int] = {}
    calls: int = 0

    @property
    def kept(self) -> int:
        """The bytes that the stage keeps from its forward pass to its backward pass; its output,
        which it sends, only where its backward pass reads it."""
        return self.enters + self.inside + self.out_read


NO_BYTES = PassBytes(0, 0, 0, 0, 0)


class RecordedExchange(NamedTuple):
    """An exchange along an axis, with its ranks as places on that axis, so that other ranks can
    repeat it."""

    axis: str
    exchange: Exchange
    places: tuple[int, ...]
    started: bool


class Events(NamedTuple):
    """The log of a pass: how often it made each exchange, and its calls to store and statistics in
    order."""

    exchanges: Mapping[RecordedExchange, int] = {}
    calls: Sequence[Event] = ()


class PassEvents(NamedTuple):
    """The events of the passes of a stage, the bytes that they take, and the outputs of the forward
    pass.

    forward, backward   events of the passes F and B
    inputs, weights     events of the two halves of B: gradients of inputs, gradients of parameters
    """

    outputs: Sequence["TensorShape"]
    nbytes: PassBytes
    forward: Events
    backward: Events = Events()
    inputs: Events = Events()
    weights: Events = Events()


class PassRecorder:
    """Records what the running pass of a stage does: exchanges, uses of parameters, final
    gradients."""

    def __init__(self) -> None:
        self.exchanges, self._calls = Counter[RecordedExchange](), list[Event]()

    def __call__(self, do: Callable[..., None], *arguments: Any) -> None:
        self._calls.append((do, arguments))

    def take(self) -> Events:
        """Returns the events that were recorded since the last call, and forgets them."""
        events = Events(self.exchanges, self._calls)
        self.exchanges, self._calls = Counter(), []
        return events


class ExchangeRecorder(StepLog):
    """A StepLog that passes each exchange on to a PassRecorder, with its ranks as places along the
    axis."""

    def __init__(self, recorder: PassRecorder, groups: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self._recorder, self._groups = recorder, groups

    def note(self, axis: str, exchange: Exchange, started: bool, times: int = 1) -> None:
        places = tuple(map(self._groups[axis].index, exchange.group))
        self._recorder.exchanges[RecordedExchange(axis, exchange, places, started)] += 1


def placeholder(on: Backend, shape: Sequence[int], dtype: Any) -> Array:
    """An array without data on META; on other backends zeros for integers (classes, tokens,
    lengths), and small random floats, like weights, which do not overflow."""
    if on is META:
        return on.xp.empty(shape, dtype)
    if not is_float(np.dtype(dtype)):
        return on.xp.zeros(shape, dtype)
    return on.asarray((np.random.default_rng(0).standard_normal(shape) / 100).astype(dtype))


class RecordedStore(SingleStore):
    """A store of one parameter that records each use of its values and of its gradient."""

    rotates = is_shared = True

    def __init__(self, variable: int, value: Array, recorder: PassRecorder) -> None:
        super().__init__(value)
        super().grad_memory(0)[...] = 0  # allocated now, so that no pass is charged for it
        self._variable, self._recorder = variable, recorder

    def value(self, i: int) -> Array:
        self._recorder(PaperStage.use, self._variable)
        return super().value(i)

    def grad_memory(self, i: int) -> Array:
        self._recorder(PaperStage.contribute, self._variable)
        return super().grad_memory(i)


class RecordedStats:
    """Batch statistics that record each call, and return the values of this rank alone."""

    def __init__(self, recorder: PassRecorder) -> None:
        self._recorder = recorder

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        self._recorder(PaperStage.moments, local)
        return local._replace(n=max(local.n, 2))

    def sum(self, sums: Array) -> Array:
        self._recorder(PaperStage.sum, sums)
        return sums


class PaperRoot(JoinedOutputs):
    """The outputs of a stage on paper; a backward pass from them replays the recorded one."""

    __slots__ = ("_events", "_leaves", "_stage", "_stats")

    def __init__(
        self, stage: "PaperStage", events: PassEvents, outputs: Sequence[Tensor], leaves: Any
    ) -> None:
        super().__init__(outputs)
        self._stage, self._events, self._leaves = stage, events, leaves
        self._stats = _pass().batch_stats
        self.requires_grad = True

    def begun(self, seed: Any) -> "_RestOfPass":  # type: ignore[override]
        """The whole backward pass."""
        return _RestOfPass(self._stage, self._events.backward, self._stats, self._give_back)

    def backward(  # type: ignore[override]
        self, gradient: Any = None, *, until: Any = None, **options: Any
    ) -> "_RestOfPass":
        """Replays the first half of the backward pass; returns the second one."""
        self._stage.replay(self._events.inputs, self._stats)
        self._give_back()
        return _RestOfPass(self._stage, self._events.weights, self._stats, lambda: None)

    def _give_back(self) -> None:
        for x in self._leaves:
            x.receive(lambda g, out, x=x: meta.like(x.data) if out is None else out, None)


class _RestOfPass(NamedTuple):
    """A backward pass, or its second half: the gradients of parameters."""

    stage: "PaperStage"
    events: Events
    stats: BatchStats
    end: Callable[[], None]

    def leaves(self) -> Sequence[Any]:
        """Returns none: on paper, nobody uses others than parameters."""
        return ()

    def in_parts(
        self,
        parts: Sequence[Collection[Parameter]],
        absent: Sequence[Collection[Parameter]],
        unrepeated: Sequence[Collection[Parameter]],
    ) -> Iterator[None]:
        """Replays the events part by part: each ends with the last gradient of its parameters or,
        if parameters are absent, before the first use of one that nothing repeats, or before its
        gradient."""
        yield from self.stage.replayed(self.events, self.stats, parts, absent, unrepeated)
        self.end()


def _pass() -> Pass:
    return current_pass.get() or Pass(0)


class PaperStage(Module):
    """A stage that repeats its recorded passes, with the parameters and the store of any rank.

    recorded     returns the events of passes over n samples
    parameters   by their numbers in the graph
    comms        of this rank, by axis
    """

    _recorded: Callable[[int], PassEvents]
    _parameters_by_variable: Mapping[int, Parameter]
    _comms: Mapping[str, PaperComm]
    _exchanges: dict[RecordedExchange, Exchange]
    _stats: BatchStats

    def __init__(
        self,
        recorded: Callable[[int], PassEvents],
        parameters: Mapping[int, Parameter],
        comms: Mapping[str, PaperComm],
    ) -> None:
        vars(self).update(_recorded=recorded, _parameters_by_variable=parameters, _comms=comms)
        vars(self).update(_exchanges=dict[RecordedExchange, Exchange]())
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

    def replay(self, events: Events, stats: BatchStats) -> None:
        """Repeats the events of a pass."""
        for _ in self.replayed(events, stats):
            pass

    def replayed(
        self,
        events: Events,
        stats: BatchStats,
        parts: Sequence[Collection[Parameter]] = (),
        absent: Sequence[Collection[Parameter]] = (),
        unrepeated: Sequence[Collection[Parameter]] = (),
    ) -> Iterator[None]:
        """Repeats the events of a pass; stops between the parts (see `_RestOfPass.in_parts`)."""
        vars(self).update(_stats=stats)
        for recorded, times in events.exchanges.items():
            self._exchange(recorded, times)
        at = 0
        for end in self._ends(events, parts, absent, unrepeated):
            for do, arguments in events.calls[at:end]:
                do(self, *arguments)
            yield
            at = end
        for do, arguments in events.calls[at:]:
            do(self, *arguments)

    def _ends(
        self,
        events: Events,
        parts: Sequence[Collection[Parameter]],
        absent: Sequence[Collection[Parameter]],
        unrepeated: Sequence[Collection[Parameter]],
    ) -> Iterator[int]:
        """Where the events of each part end, but for the last one."""
        of = self._parameters_by_variable
        final = {
            of[arguments[0]]: k + 1
            for k, (do, arguments) in enumerate(events.calls if len(parts) > 1 else ())
            if do is PaperStage.ready
        }
        end, nobody = 0, [frozenset[Parameter]()] * len(parts)
        sets = parts[:-1], absent or nobody, unrepeated or nobody
        for part, others, unread in zip(*sets, strict=False):
            stops = {PaperStage.use: unread, PaperStage.contribute: others}
            end = max([end, *(final.get(p, 0) for p in part)])
            while others and end < len(events.calls):
                do, arguments = events.calls[end]
                if do in stops and of[arguments[0]] in stops[do]:
                    break
                end += 1
            yield end

    # ---- events

    def use(self, variable: int) -> None:
        """Asks the store for the values of a parameter, as an op does, or the vjps of its node."""
        _ = self._parameters_by_variable[variable].operand

    def contribute(self, variable: int) -> None:
        """Asks for the memory of a gradient, as an op does that writes or adds to it."""
        p = self._parameters_by_variable[variable]
        _ = p.grad_memory
        p.has_grad = True

    def ready(self, variable: int) -> None:
        """Stands where the gradient of a parameter is final."""

    def moments(self, local: Moments) -> None:
        """Asks the batch statistics for moments over all ranks."""
        self._stats.moments(local, lambda summed: None)

    def sum(self, sums: Array) -> None:
        """Asks the batch statistics for sums over all ranks."""
        self._stats.sum(sums)

    def _exchange(self, recorded: RecordedExchange, times: int) -> None:
        """Logs a recorded exchange among the ranks of this stage."""
        axis, exchange, places, started = recorded
        if recorded not in self._exchanges:
            comm = self._comms[axis]
            if exchange.operation is Collective.ALL_REDUCE:
                comm.window(exchange.algorithm, exchange.numbers, exchange.dtype)
            group = tuple(comm.members[i] for i in places)
            self._exchanges[recorded] = exchange._replace(group=group)
        self._comms[axis].state.log.note(axis, self._exchanges[recorded], started, times)
