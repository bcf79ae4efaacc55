"""Signals: numbers that stages tell each other about each micro-batch, besides its arrays.

    stage s     wish     F ──────────────────► F     stage s + 1
                report   B ◄────────────────── B

A wish to stop rides forward, so the last stage knows who wants to stop when it computes the loss.
Both come back in the report, before the gradient, so all stages learn the same from the same
micro-batch. Receives are started where those of the arrays are.
"""

from collections import defaultdict, deque
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from nnmpi.comm import Comm, Work
from nnmpi.parallel.pipeline.channels import Sends
from nnmpi.parallel.recorder import Recorder
from nnmpi.schedules import Kind, Op


class Report(NamedTuple):
    """What the last stage knows of a micro-batch."""

    loss: float
    stop: bool  # whether some stage wants to end the run


class Signal(IntEnum):
    """A kind of message; its value is how many numbers it has."""

    WISH = 1
    REPORT = 2


class Signals:
    """Those of one stage; each rank of `comm` is a stage."""

    def __init__(self, comm: Comm, sends: Sends, recorder: Recorder) -> None:
        self._comm, self._sends, self._recorder = comm, sends, recorder
        self._is_first, self._is_last = comm.rank == 0, comm.rank == comm.size - 1
        self._arriving = defaultdict[Signal, deque[tuple[Work, np.ndarray]]](deque)

    def start(self, op: Op) -> None:
        """Starts a receive beside that of an array."""
        if op.kind is Kind.RECV_F:
            self._receive(Signal.WISH, op.peer)
        elif op.kind is Kind.RECV_B:
            self._receive(Signal.REPORT, op.peer)

    def wish(self, own: bool, micro: int) -> bool:
        """Whether this stage or one before it wants to stop; in the forward pass."""
        before = not self._is_first and self._next(Signal.WISH, micro)[0] > 0
        wish = own or before
        if not self._is_last:
            self._send(Signal.WISH, self._comm.rank + 1, (wish,))
        return wish

    def report(self, own: Report | None, micro: int) -> Report:
        """What the last stage knows, which gives it as `own`; in the backward pass."""
        found = own
        if found is None:
            loss, stop = self._next(Signal.REPORT, micro)
            found = Report(loss, stop > 0)
        if not self._is_first:
            self._send(Signal.REPORT, self._comm.rank - 1, found)
        return found

    def _tag(self, signal: Signal) -> int:
        return 2 * self._comm.size + signal  # behind those of the channels

    def _receive(self, signal: Signal, peer: int) -> None:
        array = np.empty(signal.value)
        self._arriving[signal].append((self._comm.irecv(array, peer, self._tag(signal)), array))

    def _next(self, signal: Signal, micro: int) -> list[float]:
        """Waits for the next one."""
        work, array = self._arriving[signal].popleft()
        began = self._recorder.now()
        work.wait()
        self._recorder.add("signal", began, micro, self._comm.rank)
        numbers: list[float] = array.tolist()
        return numbers

    def _send(self, signal: Signal, peer: int, numbers: tuple[float, ...]) -> None:
        self._sends.add(self._comm.isend(np.array(numbers, float), peer, self._tag(signal)))
