"""A worker under a parameter server: it computes gradients by its own clock, and pushes them.

clock c: batch number c of the endless sequence of epochs, of which the worker takes its share.
Where workers need not wait for each other, a fast one gets further than a slow one. An epoch ends
after as many pushes as it has for workers in step, so that a run sees as many samples whatever the
speeds are; but what a fast worker has computed more of are its shares of later batches, and of the
slow worker's share of the data fewer rows are seen.
"""

from collections.abc import Generator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from nnmpi.data import Load, Loader
from nnmpi.data.loader import Cut
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import ALONE
from nnmpi.optim import Optimizer
from nnmpi.parallel.checks.slow_ranks import Delay
from nnmpi.parallel.data.batch_stats import Together
from nnmpi.parallel.data.buckets import fill_unused
from nnmpi.parallel.executor import Facts, Stepped, Worker
from nnmpi.parallel.server.exchange import Answer, Ask, Line, Purpose
from nnmpi.parallel.server.member import Seated
from nnmpi.parallel.server.topology import Seat, Totals, average_buffers, told


class Gathered:
    """Gradients of one step, complete when it ends; nothing leaves earlier."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def begin(self) -> None:
        """A new step."""
        self._optimizer.zero_grad()

    def reduce(self, loss: Any, stop: bool) -> None:
        """The last backward pass is next."""
        self._loss, self._stop = loss, stop

    def ready(self, p: Parameter) -> None:
        """The gradient of p is final."""

    def push(self) -> None:
        """Nothing is under way during a backward pass."""

    def update(self, lr: float) -> Facts:
        """All gradients are."""
        fill_unused(self._optimizer.parameters)
        return Facts(float(self._loss), self._stop, True)

    def close(self) -> None:
        """Nothing was shared."""


@dataclass(frozen=True)
class Filled:
    """The parts of a cut that are not empty: a worker on its own can do nothing with the others."""

    cut: Cut

    def __call__(self, rows: np.ndarray) -> list[np.ndarray]:
        return [part for part in self.cut(rows) if len(part)]


class Remote(Seated):
    """The strategy of a worker; `cut` is its share of a training batch, `share` of a test batch."""

    def __init__(self, seat: Seat, cut: Cut, share: Cut, delay: Delay) -> None:
        super().__init__(seat)
        self.share = share
        self.optimizer = seat.optimizer(self._store.parameters)
        joined = seat.synchronous and self._peers.size > 1
        across = Together(self._peers) if joined else ALONE
        self._worker = Worker(
            seat.task._replace(across=across),
            Gathered(self.optimizer),
            cut if seat.synchronous else Filled(cut),
            seat.wishes,
            delay,
        )
        self._line = Line(seat.comm, seat.roles, self._by, self._store)
        self._loads: Generator[Load, None, None] | None = None
        self._stop = False

    def steps(self, loader: Loader, epoch: int) -> Generator[Stepped, None, None]:
        """What all workers do in an epoch, as this one learns of it."""
        self._seat.check_shares(loader)
        self._loads = self._loads or _endless(loader, epoch, self._worker.cut)
        try:
            yield from self._epoch()
        except Exception:  # who may not come as far as `close`
            self._loads.close()
            raise

    def _epoch(self) -> Generator[Stepped, None, None]:
        assert self._loads is not None
        workers, seen = self._seat.roles.workers, Totals()
        answer = self._line.ask(Ask(Purpose.START))
        while answer.go:
            answer = self._push(next(self._loads))
            if answer.go:
                now = answer.totals
                yield from told(seen, now, self._done + now.pushes // workers)
                seen = now
        answer = self._line.ask(Ask(Purpose.DONE, stop=self._stop))
        if not self._seat.synchronous:
            average_buffers(self._peers, self._seat.task.model)
        now = answer.totals
        self._done += -(-now.pushes // workers)
        yield from told(seen, now, self._done, bool(answer.stop))

    def _push(self, load: Load) -> Answer:
        """One step of this worker's own."""
        n = sum(len(batch.y) for batch in load.micro)
        if load.micro:
            _, _, loss, stop, _ = self._worker.run(load)
        else:
            loss, stop = self._rest()
        with np.errstate(over="ignore", invalid="ignore"):
            grad = self._store.flat_grad
            squares = 0.0 if self._seat.synchronous else float(np.dot(grad, grad))
        self._stop = self._stop or stop or self._seat.wishes.stop()
        answer = self._line.ask(Ask(Purpose.PUSH, n, loss, self._stop, squares))
        self._stop = answer.stop > 0 or self._seat.wishes.stop()
        return answer

    def _rest(self) -> tuple[float, bool]:
        """A batch of which nothing falls to this worker."""
        self._worker.step += 1
        self.optimizer.zero_grad()
        return 0.0, False

    def close(self) -> None:
        """The end of its data, and of its part."""
        if self._loads is not None:
            self._loads.close()
        self._leave([])


def _endless(loader: Loader, epoch: int, cut: Cut) -> Generator[Load, None, None]:
    for e in count(epoch):
        yield from loader.loads(e, cut)
