"""Channels: send activations from one pipeline stage to the next, and their gradients back.

    stage s     Outlet   SEND_F ── activation ──► RECV_F   Inlet   stage s + 1
                         RECV_B ◄── gradient ──── SEND_B

Both ends know the shapes of the tensors between them and their axes in memory order (`Boundary`).
So an array is sent as it is in memory, as one message. Each boundary and direction has a tag. Its
messages arrive in the order in which they were sent: micro-batch by micro-batch, and in each the
tensors in the order of the boundary.

Between two stages of one rank, as at the turn of a pipeline in a V, nothing is sent: the Outlet
gives its activations to the Inlet, and the Inlet its gradients to the Outlet.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from nnmpi.arrays.backend import CPU, Array, Backend
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm
from nnmpi.data.inputs import parts
from nnmpi.nn.graph import Edge
from nnmpi.nn.passes import BatchStats
from nnmpi.parallel.model.parts import Boundary, ModelPart
from nnmpi.parallel.recorder import Do, waiting
from nnmpi.parallel.step.buffers import Buffer, Pool, Received
from nnmpi.parallel.step.ports import LossSink, Port, Samples, Sink, Source, Task, Tensors
from nnmpi.parallel.step.stage import JoinedOutputs, Stage, joined
from nnmpi.parallel.step_list.chain import StageUnits
from nnmpi.parallel.wire import Transfer, Wire, wire_of
from nnmpi.schedules.op import MESSAGES, Kind, Op

if TYPE_CHECKING:
    from nnmpi.parallel.stores.unit_values import UnitValues

POLL_SECONDS = 5e-4
"""The least number of seconds between two polls. A poll takes some microseconds, and kernels call
the progress hook several times a millisecond."""


class Sends:
    """The messages that a rank has started to send, and that are not complete yet."""

    def __init__(self) -> None:
        self._works: deque[tuple[Transfer, Buffer | None]] = deque()

    def add(self, work: Transfer, buffer: Buffer | None = None) -> None:
        """Adds a started send; its `buffer` goes back to the pool when it is complete."""
        while self._works and self._works[0][0].done:
            self._end()
        self._works.append((work, buffer))

    def poll(self) -> bool:
        """Polls the oldest send, which progresses all messages; returns True if it is
        incomplete."""
        return bool(self._works) and not self._works[0][0].poll()

    def finish(self) -> None:
        """Waits until all sends that were added are complete."""
        while self._works:
            self._works[0][0].wait()
            self._end()

    def _end(self) -> None:
        _, buffer = self._works.popleft()
        if buffer is not None:
            buffer.give_back()


Outgoing: TypeAlias = list[tuple[Edge, Array, Buffer | None]]
"""The tensors that leave a stage, as (edge, array, buffer or None)."""


class Here:
    """Stands for a Transfer of an array that is on this rank already: always complete."""

    done = True

    def poll(self) -> bool:
        return True

    def wait(self) -> None:
        return


class BoundaryEnd(Port):
    """A side of the boundary between two stages: exchanges tensors with the neighbour.

    away   -1 if the neighbour is the previous stage, 1 if it is the next
    give   (micro-batch, tensors): stores the tensors that leave the stage until `send`; if the
           neighbour is on this rank too, it is its method `accept`
    """

    has_memory = True

    def __init__(
        self, stage: int, away: int, boundary: Boundary, comm: Wire, sends: Sends, on: Backend
    ) -> None:
        forward = 2 * min(stage, stage + away)  # the tag of activations
        tags = (forward, forward + 1)
        self._receive_tag, self._send_tag = tags if away < 0 else reversed(tags)
        self._comm, self.stage = comm, stage
        self._sends = sends
        self._pools = [Pool(edge, on) for edge in boundary]
        self._receives = [pool for pool in self._pools if away < 0 or pool.edge.requires_grad]
        self._arriving: dict[int, list[tuple[Transfer, Buffer]]] = {}
        self._used: dict[int, list[Buffer]] = {}
        self._outgoing: dict[int, Outgoing] = {}
        self.give: Callable[[int, Outgoing], None] = self._outgoing.__setitem__

    def accept(self, micro: int, outgoing: Outgoing) -> None:
        """Takes the tensors of a micro-batch from a neighbouring stage on this rank, without a
        message; copies those that the neighbour will overwrite."""
        self._arriving[micro] = []
        for pool, (_, array, buffer) in zip(self._receives, outgoing, strict=True):
            if buffer is None:
                buffer = pool.acquire(self._samples(micro))
                buffer.array[...] = array
            self._arriving[micro].append((Here(), buffer))

    def receive(self, micro: int, peer: int) -> None:
        """Starts to receive the tensors of micro-batch `micro` from rank `peer`."""
        self._arriving[micro] = []
        for pool in self._receives:
            buffer = pool.acquire(self._samples(micro))
            array = buffer.array.transpose(pool.edge.order)
            work = self._comm.irecv(array, peer, self._receive_tag)
            self._arriving[micro].append((work, buffer))

    def send(self, micro: int, peer: int) -> None:
        """Starts to send micro-batch `micro` to rank `peer`, with axes in memory order."""
        for edge, array, buffer in self._outgoing.pop(micro):
            work = self._comm.isend(array.transpose(edge.order), peer, self._send_tag)
            self._sends.add(work, buffer)

    def under_way(self) -> Transfer | None:
        """Returns a receive on this boundary that is not complete yet; None if there is none."""
        for row in self._arriving.values():
            for work, _ in row:
                if not work.done:
                    return work
        return None

    def done(self, micro: int) -> None:
        """Gives the buffers of micro-batch `micro` back to their pools."""
        for buffer in self._used.pop(micro):
            buffer.give_back()

    def _samples(self, micro: int) -> int:
        """Returns the number of samples of a micro-batch on this rank."""
        return len(self._load.micro[micro].samples)

    def _arrived(self, micro: int, name: str) -> list[Array]:
        """Waits for a micro-batch's tensors, valid until `done`; `name` is for traces."""
        buffers, arrays = list[Buffer](), list[Array]()
        with waiting(name, micro, self.stage):
            for work, buffer in self._arriving.pop(micro):
                work.wait()
                buffers.append(buffer)
                arrays.append(buffer.array)
        self._used[micro] = buffers
        return arrays


class Inlet(BoundaryEnd, Source):
    """The input of every stage but the first: receives activations, sends gradients back."""

    def next_input(self, micro: int) -> Tensors:
        samples = self._samples(micro)
        tensors = tuple(
            Received(array, partial(pool.acquire, samples))
            if pool.edge.requires_grad
            else Tensor(array)
            for array, pool in zip(self._arrived(micro, "wait F"), self._pools, strict=True)
        )
        return tensors if len(tensors) != 1 else tensors[0]

    def give_back(self, micro: int, x: Any) -> None:
        back = [t.gradient() for _, t in parts(x) if isinstance(t, Received)]
        self.give(micro, [(buffer.pool.edge, buffer.array, buffer) for buffer in back])


class Outlet(BoundaryEnd, Sink):
    """The output of every stage but the last: sends activations, receives gradients."""

    def root(self, micro: int, y: Any) -> JoinedOutputs:
        return joined(y)

    def put(self, micro: int, outputs: Sequence[Array]) -> None:
        outgoing: Outgoing = []
        for array, pool in zip(outputs, self._pools, strict=True):
            self._check(pool.edge.dtype, pool.shape(self._samples(micro)), array)
            # a gradient that has come back proves that the memory was sent; where none comes back,
            # it may be reused earlier, so it is copied
            sent = array if self._receives else array.copy(order="K")
            outgoing.append((pool.edge, sent, None))
        self.give(micro, outgoing)

    def evaluate(self, micro: int, y: Any) -> None:
        self.put(micro, [t.array for t in (y if isinstance(y, tuple) else (y,))])

    def seeds(self, micro: int, outputs: Sequence[Array]) -> Sequence[Array | None]:
        arrived = iter(self._arrived(micro, "wait B"))
        return [next(arrived) if pool.edge.requires_grad else None for pool in self._pools]

    def _check(self, dtype: Any, wanted: tuple[int, ...], array: Array) -> None:
        """Raises ValueError unless an array has the receiver's shape and dtype."""
        if array.shape != wanted or array.dtype != dtype:
            raise ValueError(
                f"stage {self.stage} returns {array.dtype} of shape {array.shape} in training, but "
                f"{dtype} of shape {wanted} in evaluation mode: make `forward` return the same "
                "dtype and shape in both"
            )


class Channels:
    """Sends and receives the activations and gradients of a rank's stages; `comm` is that of the
    ranks along pp, and `ops` has the function for each kind of operation."""

    def __init__(
        self, boundaries: Sequence[Boundary], stages: Iterable[int], comm: Comm, on: Backend = CPU
    ) -> None:
        self.sends, self._next_poll, self._clock = Sends(), 0.0, comm.system.clock
        end = wire_of(comm, on), self.sends, on
        self.inlets = {s: Inlet(s, -1, boundaries[s - 1], *end) for s in stages if s > 0}
        self.outlets = {s: Outlet(s, 1, boundaries[s], *end) for s in stages if s < len(boundaries)}
        inside = [s for s in self.outlets if s + 1 in self.inlets]  # both stages are on this rank
        for s in inside:
            outlet, inlet = self.outlets[s], self.inlets[s + 1]
            outlet.give, inlet.give = inlet.accept, outlet.accept
        ends: list[BoundaryEnd] = [end for s, end in self.inlets.items() if s - 1 not in inside]
        ends += [end for s, end in self.outlets.items() if s not in inside]
        self._ends = sorted(ends, key=lambda end: end.stage)
        self.is_needed = bool(ends)
        self.ops: Mapping[Kind, Do] = dict.fromkeys(MESSAGES, self.start)

    def poll(self) -> None:
        """Polls one incomplete message, which progresses all, at most once in POLL_SECONDS."""
        now = self._clock()
        if now < self._next_poll:
            return
        self._next_poll = now + POLL_SECONDS
        if self.sends.poll():
            return
        for end in self._ends:
            work = end.under_way()
            if work is not None:
                work.poll()
                return

    def start(self, op: Op) -> None:
        """Starts the send or receive of RECV_F, SEND_F, RECV_B or SEND_B."""
        is_inlet = op.kind in (Kind.RECV_F, Kind.SEND_B)
        end = self.inlets[op.at] if is_inlet else self.outlets[op.at - 1]
        if op.kind in (Kind.RECV_F, Kind.RECV_B):
            end.receive(op.micro, op.peer)
        else:
            end.send(op.micro, op.peer)


class Ports(NamedTuple):
    """The stages of a rank, each with its ports, the channels between stages, the side that
    computes the loss, and what sums BatchNorm statistics."""

    stages: dict[int, Stage]
    channels: Channels
    loss: LossSink
    stats: BatchStats

    @classmethod
    def of(
        cls,
        task: Task,
        part: ModelPart,
        channels: Channels,
        stats: BatchStats,
        units: Mapping[int, StageUnits],
        values: "UnitValues | None",
    ) -> Self:
        samples, scaler, objective = Samples(task.on), task.scaler, task.objective
        loss = LossSink(objective)
        if scaler is not None:
            from nnmpi.parallel.step.scaling import ScaledLossSink  # of 16-bit runs

            loss = ScaledLossSink(objective, scaler)
        stages = {
            s: Stage(
                module,
                channels.inlets.get(s, samples),
                channels.outlets.get(s, loss),
                frozenset(module.parameters()),
                *units[s],
                values=values,
            )
            for s, module in part.stages.items()
        }
        return cls(stages, channels, loss, stats)
