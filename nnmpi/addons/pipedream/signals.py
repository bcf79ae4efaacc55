"""Signals that accompany the arrays of a micro-batch between stages: a wish to stop, and a
report."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nnmpi.arrays.backend import Backend
from nnmpi.comm import Comm, Work
from nnmpi.parallel.model.parts import Boundary
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.step.channels import Channels
from nnmpi.schedules.op import Kind, Op

WISH, REPORT = 1, 2
"""The signals that accompany the arrays of a micro-batch. Each constant is the signal's tag, and
also the number of its values."""


class StageReport(NamedTuple):
    """The last stage's report on a micro-batch, which travels back to all others."""

    loss: float
    stop: bool  # whether some stage wants to end the run


class SignalChannels(Channels):
    """Channels that carry, besides activations and gradients, two signals for each micro-batch.
    Each rank of `comm` is a stage.

        stage s     wish     F ──────────────────► F     stage s + 1
                    report   B ◄────────────────── B

    A wish to stop travels forward with the activations, so the last stage knows it when it computes
    the loss. Loss and wish come back in the report, before the gradient, so all stages learn of the
    wish at the same micro-batch.
    """

    def __init__(self, boundaries: Sequence[Boundary], comm: Comm, on: Backend) -> None:
        super().__init__(boundaries, [comm.rank], comm, on)
        self._comm = comm
        self._signals: dict[int, deque[tuple[Work, np.ndarray]]] = {WISH: deque(), REPORT: deque()}

    def start(self, op: Op) -> None:
        """Starts the send or receive `op`. If it is a receive, it first starts to receive the
        signal (a wish to stop, or a report) that comes with the array."""
        if op.kind in (Kind.RECV_F, Kind.RECV_B):
            signal = WISH if op.kind is Kind.RECV_F else REPORT
            array = np.empty(signal)
            work = self._comm.irecv(array, op.peer, self._tag(signal))
            self._signals[signal].append((work, array))
        super().start(op)

    def wish(self, wishes: bool, micro: int) -> bool:
        """Returns True if this stage (`wishes`) or an earlier one wants to stop the run, and sends
        that to the next stage. Called in the forward pass of each micro-batch."""
        rank = self._comm.rank
        earlier = rank > 0 and self._next(WISH, micro)[0] > 0
        wish = wishes or earlier
        if rank < self._comm.size - 1:
            self._send(rank + 1, [wish])
        return wish

    def report(self, report: StageReport | None, micro: int) -> StageReport:
        """Passes a report on to the previous stage, and returns it; called in each backward pass.
        The last stage gives its own report, the others None, and receive it."""
        agreed = report
        if agreed is None:
            loss, stop = self._next(REPORT, micro)
            agreed = StageReport(loss, stop > 0)
        if self._comm.rank > 0:
            self._send(self._comm.rank - 1, agreed)
        return agreed

    def _tag(self, signal: int) -> int:
        return 2 * self._comm.size + signal  # after the tags of the arrays

    def _next(self, signal: int, micro: int) -> list[float]:
        """Waits for a neighbouring stage's next signal, WISH or REPORT; returns its values."""
        work, array = self._signals[signal].popleft()
        with waiting("signal", micro, self._comm.rank):
            work.wait()
        numbers: list[float] = array.tolist()
        return numbers

    def _send(self, peer: int, signal: Sequence[float]) -> None:
        work = self._comm.isend(np.array(signal, float), peer, self._tag(len(signal)))
        self.sends.add(work)
