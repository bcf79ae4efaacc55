"""Channels: activations to the next stage and their gradients back, as ports of the two stages.

    stage s     Outlet   SEND_F ── activation ──► RECV_F   Inlet   stage s + 1
                         RECV_B ◄── gradient ──── SEND_B

Both ends know the shape of a sample and the order of the axes in memory (`Boundary`), so an array
is sent as it lies in memory, and received into a buffer of the same order. Messages of a boundary
and a direction have a tag of their own and arrive in the order in which they were sent.
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
from nnmpi.kernels.result import Vjp
from nnmpi.nn.parameter import inverse
from nnmpi.parallel.model.boundary import Boundary
from nnmpi.parallel.recorder import Recorder
from nnmpi.parallel.step.ports import Sink, Source
from nnmpi.schedules import Kind, Op

PAUSE = 5e-4
"""A poll takes some microseconds, and computations ask for one several times a millisecond."""


class Pool:
    """Buffers for arrays of a boundary, which are used again."""

    def __init__(self, boundary: Boundary) -> None:
        self._boundary, self._free = boundary, list[np.ndarray]()
        self._inverse = inverse(boundary.order)

    def take(self, samples: int) -> "Buffer":
        """A buffer for so many samples."""
        shape, order, dtype = self._boundary
        whole = (samples, *shape)
        n = math.prod(whole)
        memory = self._free.pop() if self._free else np.empty(0, dtype)
        if len(memory) < n:
            memory = np.empty(n, dtype)
        there = memory[:n].reshape([whole[k] for k in order])
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

    __slots__ = ("_pool", "buffer")

    def __init__(self, data: np.ndarray, pool: Pool) -> None:
        super().__init__(data, requires_grad=True)
        self._pool = pool
        self.buffer: Buffer | None = None  # of the gradient

    def receive(self, vjp: Vjp, g: Any) -> None:
        if self.buffer is not None:
            self.buffer.array[...] += vjp(g, None)
            return
        self.buffer = self._pool.take(len(self.data))
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
        boundary: Boundary,
        comm: Comm,
        peer: int,
        tags: tuple[int, int],
        sends: Sends,
        recorder: Recorder,
        stage: int,
    ) -> None:
        self._comm, self._peer, self._sends = comm, peer, sends
        self._receive_tag, self._send_tag = tags
        self._recorder, self._stage = recorder, stage
        self._boundary = boundary
        self.pool = Pool(boundary)
        self._arriving: dict[int, tuple[Work, Buffer]] = {}
        self._used: dict[int, Buffer] = {}

    def begin(self, load: Load) -> None:
        """Starts a step."""
        self._micro = load.micro

    def receive(self, micro: int) -> None:
        """Starts to receive."""
        buffer = self.pool.take(len(self._micro[micro].samples))
        work = self._comm.irecv(buffer.there, self._peer, self._receive_tag)
        self._arriving[micro] = work, buffer

    def under_way(self) -> Work | None:
        """One of the receives that are not complete yet, if any."""
        return next((work for work, _ in self._arriving.values() if not work.done), None)

    def arrived(self, micro: int, name: str) -> np.ndarray:
        """Waits for what was sent; it stays until `done`."""
        work, buffer = self._arriving.pop(micro)
        began = self._recorder.now()
        work.wait()
        self._recorder.add(name, began, micro, self._stage)
        self._used[micro] = buffer
        return buffer.array

    def done(self, micro: int) -> None:
        """What was received for a micro-batch is not needed any more."""
        self.pool.put(self._used.pop(micro))

    def check(self, micro: int, array: np.ndarray) -> None:
        """Raises ValueError for an array that the other end has no buffer for."""
        shape, _, dtype = self._boundary
        wanted = (len(self._micro[micro].samples), *shape)
        if array.shape != wanted or array.dtype != dtype:
            raise ValueError(
                f"stage {self._stage} returns {array.dtype} of shape {array.shape}, and "
                f"{dtype} of shape {wanted} in evaluation mode: both must be the same in training"
            )

    def send(self, array: np.ndarray, buffer: Buffer | None = None) -> None:
        """Starts to send an array as it lies in memory."""
        work = self._comm.isend(array.transpose(self._boundary.order), self._peer, self._send_tag)
        self._sends.add(work, self.pool, buffer)


class Inlet:
    """The source of a stage that is not the first."""

    def __init__(self, end: End) -> None:
        self._end, self._gradients = end, dict[int, Buffer]()
        self.begin, self.done, self.receive = end.begin, end.done, end.receive

    def take(self, micro: int) -> Tensor:
        return Received(self._end.arrived(micro, "wait F"), self._end.pool)

    def give_back(self, micro: int, x: Tensor) -> None:
        assert isinstance(x, Received)
        if x.buffer is None:  # the stage does not use its input
            x.receive(lambda g, out: g, np.zeros_like(x.data))
        assert x.buffer is not None
        self._gradients[micro] = x.buffer

    def send(self, micro: int) -> None:
        """Starts to send the gradient."""
        buffer = self._gradients.pop(micro)
        self._end.send(buffer.array, buffer)


class Outlet:
    """The sink of a stage that is not the last."""

    def __init__(self, end: End) -> None:
        self._end, self._outputs = end, dict[int, np.ndarray]()
        self.begin, self.done, self.receive = end.begin, end.done, end.receive

    def root(self, micro: int, y: Tensor) -> Tensor:
        return y

    def put(self, micro: int, root: Tensor) -> None:
        self._end.check(micro, root.data)
        self._outputs[micro] = root.data

    def send(self, micro: int) -> None:
        """Starts to send the output."""
        self._end.send(self._outputs.pop(micro))

    def seed(self, micro: int, root: Tensor) -> np.ndarray:
        return self._end.arrived(micro, "wait B")

    def loss(self) -> float:
        return 0.0


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
                end = End(boundaries[s - 1], comm, peer, tags, self.sends, recorder, s)
                self.inlets[s] = Inlet(end)
                self._ends.append(end)
            if s < len(boundaries):
                peer, tags = (s + 1) % comm.size, (2 * s + 1, 2 * s)
                end = End(boundaries[s], comm, peer, tags, self.sends, recorder, s)
                self.outlets[s] = Outlet(end)
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
