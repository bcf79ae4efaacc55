"""Channels: activations to the next stage and their gradients back, as ports of the two stages.

    stage s     Outlet   SEND_F ── activation ──► RECV_F   Inlet   stage s + 1
                         RECV_B ◄── gradient ──── SEND_B

Both ends know the shapes of the tensors that cross and the order of their axes in memory
(`Boundary`), so an array is sent as it lies in memory, and received into a buffer of the same
order. Each is a message. Messages of a boundary and a direction have a tag of their own and arrive
in the order in which they were sent: that of the boundary, and of micro-batches.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.comm import Comm, Work
from nnmpi.data import Load
from nnmpi.data.inputs import parts
from nnmpi.kernels import Vjp
from nnmpi.nn.graph import Edge
from nnmpi.nn.parameter import inverse
from nnmpi.parallel.model.boundary import Boundary
from nnmpi.parallel.pipeline.joined import Joined
from nnmpi.parallel.recorder import Recorder
from nnmpi.parallel.step.ports import Sink, Source, Tensors
from nnmpi.schedules import Kind, Op

PAUSE = 5e-4
"""A poll takes some microseconds, and computations ask for one several times a millisecond."""


class Pool:
    """Buffers for arrays of an edge, which are used again."""

    def __init__(self, edge: Edge) -> None:
        self.edge, self._free = edge, list[np.ndarray]()
        self._inverse = inverse(edge.order)

    def take(self, samples: int) -> "Buffer":
        """A buffer for so many samples."""
        shape = self.edge.shape(samples)
        n = math.prod(shape)
        memory = self._free.pop() if self._free else np.empty(0, self.edge.dtype)
        if len(memory) < n:
            memory = np.empty(n, self.edge.dtype)
        there = memory[:n].reshape([shape[k] for k in self.edge.order])
        return Buffer(memory, there, there.transpose(self._inverse))

    def put(self, buffer: "Buffer") -> None:
        """Nobody uses the buffer any more."""
        self._free.append(buffer.memory)


class Buffer(NamedTuple):
    """Memory, what of it is used in C order, and the same with the axes of the model."""

    memory: np.ndarray
    there: np.ndarray
    array: np.ndarray


class Received(Tensor):
    """An activation from another stage; its gradient is computed where it is sent from."""

    __slots__ = ("_pool", "_samples", "buffer")

    def __init__(self, data: np.ndarray, pool: Pool, samples: int) -> None:
        super().__init__(data, requires_grad=True)
        self._pool, self._samples = pool, samples
        self.buffer: Buffer | None = None  # of the gradient

    def receive(self, vjp: Vjp, g: Any) -> None:
        if self.buffer is not None:
            self.buffer.array[...] += vjp(g, None)
            return
        self.buffer = self._pool.take(self._samples)
        slot = self.grad = self.buffer.array
        new = vjp(g, slot)
        if new is not slot:
            slot[...] = new


class Sends:
    """The sends of a rank that are under way."""

    def __init__(self) -> None:
        self._works: deque[tuple[Work, Pool | None, Buffer | None]] = deque()

    def add(self, work: Work, pool: Pool | None = None, buffer: Buffer | None = None) -> None:
        """A send that was started; its buffer goes back to the pool when it is complete."""
        while self._works and self._works[0][0].done:
            self._give_back()
        self._works.append((work, pool, buffer))

    def poll(self) -> bool:
        """Moves all messages, if one of them is a send."""
        return bool(self._works) and not self._works[0][0].poll()

    def finish(self) -> None:
        """Waits for all sends."""
        while self._works:
            self._works[0][0].wait()
            self._give_back()

    def _give_back(self) -> None:
        _, pool, buffer = self._works.popleft()
        if pool and buffer:
            pool.put(buffer)


class End:
    """One end of a boundary: what it receives, and what it sends."""

    def __init__(
        self,
        receives: Sequence[Pool],
        comm: Comm,
        peer: int,
        tags: tuple[int, int],
        sends: Sends,
        recorder: Recorder,
        stage: int,
    ) -> None:
        self._receives, self._comm, self._peer, self._sends = receives, comm, peer, sends
        self._receive_tag, self._send_tag = tags
        self._recorder, self.stage = recorder, stage
        self._arriving: dict[int, list[tuple[Work, Buffer]]] = {}
        self._used: dict[int, list[Buffer]] = {}

    def begin(self, load: Load) -> None:
        """Starts a step."""
        self._micro = load.micro

    def samples(self, micro: int) -> int:
        """How many samples a micro-batch has here."""
        return len(self._micro[micro].samples)

    def receive(self, micro: int) -> None:
        """Starts to receive."""
        buffers = [pool.take(self.samples(micro)) for pool in self._receives]
        self._arriving[micro] = [
            (self._comm.irecv(buffer.there, self._peer, self._receive_tag), buffer)
            for buffer in buffers
        ]

    def under_way(self) -> Work | None:
        """One of the receives that are not complete yet, if any."""
        works = (work for row in self._arriving.values() for work, _ in row)
        return next((work for work in works if not work.done), None)

    def arrived(self, micro: int, name: str) -> list[np.ndarray]:
        """Waits for what was sent; it stays until `done`."""
        arriving = self._arriving.pop(micro)
        began = self._recorder.now()
        for work, _ in arriving:
            work.wait()
        self._recorder.add(name, began, micro, self.stage)
        self._used[micro] = [buffer for _, buffer in arriving]
        return [buffer.array for _, buffer in arriving]

    def done(self, micro: int) -> None:
        """What was received for a micro-batch is not needed any more."""
        for pool, buffer in zip(self._receives, self._used.pop(micro), strict=True):
            pool.put(buffer)

    def send(self, pool: Pool, array: np.ndarray, buffer: Buffer | None = None) -> None:
        """Starts to send an array as it lies in memory."""
        work = self._comm.isend(array.transpose(pool.edge.order), self._peer, self._send_tag)
        self._sends.add(work, pool, buffer)


class Inlet:
    """The source of a stage that is not the first."""

    def __init__(self, end: End, pools: Sequence[Pool]) -> None:
        self._end, self._pools = end, pools
        self._gradients = dict[int, list[tuple[Pool, Buffer]]]()
        self.begin, self.done, self.receive = end.begin, end.done, end.receive

    def take(self, micro: int) -> Tensors:
        samples = self._end.samples(micro)
        arrays = zip(self._end.arrived(micro, "wait F"), self._pools, strict=True)
        found = tuple(
            Received(array, pool, samples) if pool.edge.requires_grad else Tensor(array)
            for array, pool in arrays
        )
        return found if len(found) != 1 else found[0]

    def give_back(self, micro: int, x: Any) -> None:
        self._gradients[micro] = []
        for (_, t), pool in zip(parts(x), self._pools, strict=True):
            if not isinstance(t, Received):
                continue
            if t.buffer is None:  # the stage does not use it
                t.receive(lambda g, out: g, np.zeros_like(t.data))
            assert t.buffer is not None
            self._gradients[micro].append((pool, t.buffer))

    def send(self, micro: int) -> None:
        """Starts to send the gradients."""
        for pool, buffer in self._gradients.pop(micro):
            self._end.send(pool, buffer.array, buffer)


class Outlet:
    """The sink of a stage that is not the last."""

    def __init__(self, end: End, pools: Sequence[Pool]) -> None:
        self._end, self._pools, self._outputs = end, pools, dict[int, list[np.ndarray]]()
        self._gets_back = [pool.edge.requires_grad for pool in pools]
        self.begin, self.done, self.receive = end.begin, end.done, end.receive

    def root(self, micro: int, y: Any) -> Tensor:
        root: Tensor = Joined(y) if isinstance(y, tuple) else y
        return root

    def put(self, micro: int, root: Tensor) -> None:
        parts = root.parts if isinstance(root, Joined) else (root,)
        arrays = [t.data for t in parts]
        for array, pool in zip(arrays, self._pools, strict=True):
            self._check(pool.edge, self._end.samples(micro), array)
        if not any(self._gets_back):  # nothing tells when the memory has been sent
            arrays = [array.copy(order="K") for array in arrays]
        self._outputs[micro] = arrays

    def send(self, micro: int) -> None:
        """Starts to send the outputs."""
        for pool, array in zip(self._pools, self._outputs.pop(micro), strict=True):
            self._end.send(pool, array)

    def seed(self, micro: int, root: Tensor) -> np.ndarray:
        arrived = iter(self._end.arrived(micro, "wait B"))
        if not isinstance(root, Joined):
            return next(arrived, np.zeros(()))
        back = [next(arrived) if comes else None for comes in self._gets_back]
        start: np.ndarray = root.seed(back)
        return start

    def loss(self) -> float:
        return 0.0

    def _check(self, edge: Edge, samples: int, array: np.ndarray) -> None:
        """Raises ValueError for an array that the other end has no buffer for."""
        wanted = edge.shape(samples)
        if array.shape != wanted or array.dtype != edge.dtype:
            raise ValueError(
                f"stage {self._end.stage} returns {array.dtype} of shape {array.shape}, and "
                f"{edge.dtype} of shape {wanted} in evaluation mode: both must be the same in "
                "training"
            )


class Channels:
    """The `Messages` of a rank: the ends of all boundaries of its stages."""

    def __init__(
        self, boundaries: Sequence[Boundary], stages: Sequence[int], comm: Comm, recorder: Recorder
    ) -> None:
        self.sends, self._next_poll = Sends(), 0.0
        self.finish = self.sends.finish
        self.inlets, self.outlets = dict[int, Inlet](), dict[int, Outlet]()
        self._ends: list[End] = []
        for s in stages:
            if s > 0:
                peer, tags = (s - 1) % comm.size, (2 * s - 2, 2 * s - 1)
                pools = [*map(Pool, boundaries[s - 1])]
                end = End(pools, comm, peer, tags, self.sends, recorder, s)
                self.inlets[s] = Inlet(end, pools)
                self._ends.append(end)
            if s < len(boundaries):
                peer, tags = (s + 1) % comm.size, (2 * s + 1, 2 * s)
                pools = [*map(Pool, boundaries[s])]
                back = [pool for pool in pools if pool.edge.requires_grad]
                end = End(back, comm, peer, tags, self.sends, recorder, s)
                self.outlets[s] = Outlet(end, pools)
                self._ends.append(end)

    def poll(self) -> None:
        """Moves all messages, as polling one does; not more often than every PAUSE seconds."""
        now = time.perf_counter()
        if now < self._next_poll:
            return
        self._next_poll = now + PAUSE
        if self.sends.poll():
            return
        for end in self._ends:
            work = end.under_way()
            if work is not None:
                work.poll()
                return

    def start(self, op: Op) -> None:
        match op.kind:
            case Kind.RECV_F:
                self.inlets[op.stage].receive(op.micro)
            case Kind.SEND_F:
                self.outlets[op.stage].send(op.micro)
            case Kind.RECV_B:
                self.outlets[op.stage].receive(op.micro)
            case Kind.SEND_B:
                self.inlets[op.stage].send(op.micro)

    def source(self, stage: int, first: Source) -> Source:
        """The source of a stage: `first` of stage 0."""
        return self.inlets.get(stage, first)

    def sink(self, stage: int, last: Sink) -> Sink:
        """The sink of a stage: `last` of the last stage."""
        return self.outlets.get(stage, last)
