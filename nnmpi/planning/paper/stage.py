"""PaperStage: a pipeline stage of a simulated rank, which repeats the exchanges of recorded passes
and computes nothing; and the types of a recording.

record    the layers of a rank run forward and backward on arrays without data; their exchanges, and
          their calls to batch statistics, are recorded
replay    the stage of any rank with the same layers makes these exchanges in each pass of each
          micro-batch, and computes nothing: so a long list costs little
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from nnmpi.arrays import meta
from nnmpi.arrays.backend import META, Array, Backend
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.meta.array import new_array
from nnmpi.arrays.meta.shapes import axis_order
from nnmpi.autograd import Tensor
from nnmpi.autograd.ops.norm import Moments
from nnmpi.collectives.algorithms import Collective
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
"""A method of PaperStage that repeats a call of a recorded pass, and the arguments of the call."""


class TensorShape(NamedTuple):
    """The description of a tensor, from which one without data can be made.

    shape           its shape
    dtype           the type of its elements
    order           the order of its axes in memory
    requires_grad   whether it gets a gradient
    """

    shape: tuple[int, ...]
    dtype: Any
    order: Sequence[int]
    requires_grad: bool

    @classmethod
    def of(cls, t: Tensor) -> Self:
        return cls(t.shape, t.dtype, axis_order(t.array), t.requires_grad)

    def tensor(self) -> Tensor:
        """Makes a tensor of this shape, without data."""
        return Tensor(new_array(self.shape, self.dtype, self.order), self.requires_grad)


class PassBytes(NamedTuple):
    """The bytes of activations that the passes of a stage keep and need, for one micro-batch.

    enters   its input
    inside   kept for the backward pass, besides input and output
    out      its output, unless that is a loss
    read     the part of its input that its own backward pass reads
    out_read the part of its output that its own backward pass reads
    through  the part of its input that is also output
    left     kept between the two halves of the backward pass
    more     a dict: kind of pass -> how far its peak is above the bytes that are kept when it
             begins
    calls    how many array functions the forward and backward pass call; 0 if a run cannot record
             these calls, to make them again without autograd
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
        """The bytes that the stage keeps from its forward pass to its backward pass. The output
        counts only if its own backward pass reads it."""
        return self.enters + self.inside + self.out_read


NO_BYTES = PassBytes(0, 0, 0, 0, 0)


class RecordedExchange(NamedTuple):
    """An exchange in a recorded pass, along an axis of the mesh. `places` are the indices of its
    ranks on that axis, so that another rank can repeat the exchange with its own group."""

    axis: str
    exchange: Exchange
    places: tuple[int, ...]


class Events(NamedTuple):
    """The record of one pass through a stage.

    exchanges   a dict: collective or message -> how often it was made in the pass
    calls       (method, arguments) of each call by which BatchNorm exchanged statistics, in order
    """

    exchanges: Mapping[RecordedExchange, int] = {}
    calls: Sequence[Event] = ()


class PassEvents(NamedTuple):
    """The records of all passes of a pipeline stage over one micro-batch, made by running its
    layers on arrays without data.

    outputs             the shapes of the stage's outputs
    nbytes              the bytes of activations that the passes keep and need
    forward, backward   the exchanges in the passes F and B
    inputs, weights     the exchanges in the two halves of B: gradients of inputs, gradients of
                        parameters
    """

    outputs: Sequence["TensorShape"]
    nbytes: PassBytes
    forward: Events
    backward: Events = Events()
    inputs: Events = Events()
    weights: Events = Events()


class PassRecorder:
    """Records, while a pass through a stage runs, its exchanges (collectives and messages) and the
    calls by which BatchNorm exchanges statistics over ranks."""

    def __init__(self) -> None:
        self.exchanges, self._calls = Counter[RecordedExchange](), list[Event]()

    def __call__(self, do: Callable[..., None], *arguments: Any) -> None:
        self._calls.append((do, arguments))

    def drain(self) -> Events:
        """Returns the exchanges and the calls of BatchNorm that were recorded since the last call
        of `drain`, which are those of one pass, and clears them."""
        events = Events(self.exchanges, self._calls)
        self.exchanges, self._calls = Counter(), []
        return events


class ExchangeRecorder(StepLog):
    """A StepLog that a simulated rank has while its passes are recorded: `note` adds the exchange
    to a PassRecorder instead of storing it. `groups` has the ranks along each axis of the mesh; the
    ranks of the exchange become indices into these."""

    def __init__(self, recorder: PassRecorder, groups: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self._recorder, self._groups = recorder, groups

    def note(self, axis: str, exchange: Exchange, started: bool = False, times: int = 1) -> None:
        places = tuple(map(self._groups[axis].index, exchange.group))
        self._recorder.exchanges[RecordedExchange(axis, exchange, places)] += 1


def placeholder(on: Backend, shape: Sequence[int], dtype: Any) -> Array:
    """Returns an array for recording passes: on META one without data. On other backends: zeros for
    integers (classes, tokens, lengths), and small random floats, like weights, which do not
    overflow."""
    if on is META:
        return on.xp.empty(shape, dtype)
    if not is_float(np.dtype(dtype)):
        return on.xp.zeros(shape, dtype)
    return on.asarray((np.random.default_rng(0).standard_normal(shape) / 100).astype(dtype))


class SharedMemoryStore(SingleStore):
    """The memory of one parameter while passes are recorded. It claims that other parameters share
    this memory, as they do in a run with ZeRO 2 or 3, so that autograd ops call the same functions
    as in such a run."""

    rotates = is_shared = True

    def __init__(self, value: Array) -> None:
        super().__init__(value)
        self.grad_memory(0)[...] = 0  # allocated now, so that no pass is charged for it


class RecordedStats:
    """Takes the place of the statistics over ranks that BatchNorm asks for, in a recording: records
    each call, and returns the values of this rank alone."""

    def __init__(self, recorder: PassRecorder) -> None:
        self._recorder = recorder

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        self._recorder(PaperStage.moments, local)
        return local._replace(n=max(local.n, 2))

    def sum(self, sums: Array) -> Array:
        self._recorder(PaperStage.sum, sums)
        return sums


class PaperRoot(JoinedOutputs):
    """The outputs of a stage in a simulated step. A backward pass from them repeats the recorded
    backward pass: it logs exchanges and computes nothing."""

    __slots__ = ("_events", "_leaves", "_stage", "_stats")

    def __init__(
        self, stage: "PaperStage", events: PassEvents, outputs: Sequence[Tensor], leaves: Any
    ) -> None:
        super().__init__(outputs)
        self._stage, self._events, self._leaves = stage, events, leaves
        self._stats = _pass().batch_stats
        self.requires_grad = True

    def begun(self, seed: Any) -> "_RestOfPass":  # type: ignore[override]
        """Returns the whole recorded backward pass as an object; iterating over its `in_parts`
        repeats the pass. `seed`, the gradient of the outputs, is not used."""
        return _RestOfPass(self._stage, self._events.backward, self._stats, self._give_back)

    def backward(  # type: ignore[override]
        self, gradient: Any = None, *, until: Any = None, **options: Any
    ) -> "_RestOfPass":
        """Repeats I, the first half of the recorded backward pass (gradients of inputs); returns an
        object whose `in_parts` repeats W, the second half (gradients of parameters). The arguments
        are not used."""
        self._stage.replay(self._events.inputs, self._stats)
        self._give_back()
        return _RestOfPass(self._stage, self._events.weights, self._stats, lambda: None)

    def _give_back(self) -> None:
        for x in self._leaves:
            x.receive(lambda g, out, x=x: meta.like(x.array) if out is None else out, None)


class _RestOfPass(NamedTuple):
    """A simulated backward pass of a stage that is still to be made: all of it, or only W, the
    gradients of parameters.

    stage    the stage
    events   the record of the pass, whose exchanges are repeated
    stats    the object through which BatchNorm exchanges statistics in it
    end      a function that is called at the end of the pass
    """

    stage: "PaperStage"
    events: Events
    stats: BatchStats
    end: Callable[[], None]

    def leaves(self) -> Sequence[Any]:
        """Returns an empty sequence: in a simulated backward pass there are no input tensors whose
        gradients have to be computed."""
        return ()

    def in_parts(self, parts: Sequence[object], *others: object) -> Iterator[None]:
        """Repeats the backward pass, whose units (usually layers) are `parts`: logs the exchanges
        of all units, and then yields as often as a real pass, which yields between units."""
        self.stage.replay(self.events, self.stats)
        self.stage.note_gradients()
        yield from (None for _ in parts[1:])
        self.end()


def _pass() -> Pass:
    return current_pass.get() or Pass(0)


class PaperStage(Module):
    """A pipeline stage of a simulated rank: in each pass it repeats the exchanges that were
    recorded in such a pass, and computes nothing. It has the parameters of its rank.

    recorded     a function of n: returns the records of the passes over n samples
    comms        a dict: axis of the mesh -> the simulated Comm of this rank along it
    """

    _recorded: Callable[[int], PassEvents]
    _comms: Mapping[str, PaperComm]
    _exchanges: dict[RecordedExchange, Exchange]
    _stats: BatchStats

    def __init__(
        self,
        recorded: Callable[[int], PassEvents],
        parameters: Mapping[int, Parameter],
        comms: Mapping[str, PaperComm],
    ) -> None:
        vars(self).update(_recorded=recorded, _comms=comms)
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
        """Repeats the recorded pass `events`: logs its exchanges, and makes the calls by which
        BatchNorm exchanged statistics again, on `stats`."""
        vars(self).update(_stats=stats)
        for recorded, times in events.exchanges.items():
            self._exchange(recorded, times)
        for do, arguments in events.calls:
            do(self, *arguments)

    def note_gradients(self) -> None:
        """Marks all parameters of the stage as having gradients, as a backward pass does."""
        for p in self._parameters.values():
            p.has_grad = True

    # ---- calls

    def moments(self, local: Moments) -> None:
        """Repeats a recorded exchange of BatchNorm in a forward pass: sums moments over ranks.
        `local` are the recorded moments of this rank."""
        self._stats.moments(local, lambda summed: None)

    def sum(self, sums: Array) -> None:
        """Repeats a recorded exchange of BatchNorm in a backward pass: sums the array `sums` over
        ranks."""
        self._stats.sum(sums)

    def _exchange(self, recorded: RecordedExchange, times: int) -> None:
        """Logs a recorded exchange, `times` times, among the ranks of this stage."""
        axis, exchange, places = recorded
        if recorded not in self._exchanges:
            comm = self._comms[axis]
            if exchange.operation is Collective.ALL_REDUCE:
                comm.window(exchange.algorithm, exchange.elements, exchange.dtype)
            group = tuple(comm.members[i] for i in places)
            self._exchanges[recorded] = exchange._replace(group=group)
        self._comms[axis].state.log.note(axis, self._exchanges[recorded], times=times)
