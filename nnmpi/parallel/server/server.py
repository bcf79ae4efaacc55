"""A parameter server: BSP waits for all gradients, ASP for none, SSP for those too far behind.

One rule for the three: whoever has pushed gets an answer, and goes on, as soon as it is no more
than `bound` steps ahead of the slowest. BSP is a bound of 0, and sums the gradients of a step
before one step is made of them. ASP has no bound. In both ASP and SSP each push is a step.

The learning rate follows what all have done: push number i, whoever makes it, has that of step
i // workers. So no fast worker reaches the end of a schedule while a slow one is at its start.

bound 1      worker 0   push 0 ─ push 1 ─ waits ───────── push 2
             worker 1   ................. ─── push 0 ────┘
"""

import math
from collections.abc import Generator, Sequence
from typing import Protocol

import numpy as np

from nnmpi.backend import Array
from nnmpi.comm import Comm
from nnmpi.data import Loader
from nnmpi.optim.clip import clip_factor
from nnmpi.parallel.executor import Stepped
from nnmpi.parallel.server.clocks import Book
from nnmpi.parallel.server.exchange import Desk, Patience, Purpose
from nnmpi.parallel.server.member import Seated
from nnmpi.parallel.server.topology import Seat, SliceStore, Totals, told


class SliceMover:
    """Moves this server's slice of the parameters by a gradient."""

    def __init__(self, seat: Seat, store: SliceStore) -> None:
        self.store, self.optimizer = store, seat.optimizer(store.parameters)
        self._rate, self._clip_norm = seat.wishes.rate, seat.clip_norm

    def squares(self, gradient: Array) -> float:
        """The sum of the squares of the slice."""
        own = gradient[self.store.own]
        return float(np.dot(own, own))

    def step(self, gradient: Array, squares: float, used: Array, number: int) -> bool:
        """Makes the step, if all is finite; `squares` are of the whole gradient, used up here."""
        if not math.isfinite(squares):
            return False
        if self._clip_norm is not None:
            gradient[self.store.own] *= clip_factor(squares**0.5, self._clip_norm)
        for p, times in zip(self.store.parameters, used.tolist(), strict=True):
            p.has_grad = times > 0
        self.store.flat_grad = gradient
        self.optimizer.lr = self._rate(number)
        self.optimizer.step()
        return True


class Rule(Protocol):
    """When a gradient becomes a step."""

    def push(self, w: int) -> None:
        """That of worker w has come."""


class EachAlone:
    """At once, on its own."""

    def __init__(self, mover: SliceMover, desks: Sequence[Desk], book: Book) -> None:
        self._mover, self._desks, self._book = mover, desks, book

    def push(self, w: int) -> None:
        desk = self._desks[w]
        ask = desk.ask
        made = None
        if ask.samples:
            finite = ask.squares if math.isfinite(ask.loss) else math.nan
            made = self._mover.step(desk.gradient, finite, desk.used, self._book.step)
        self._book.moved([w], made)


class AllTogether:
    """When all have come, as their sum in the order of ranks."""

    def __init__(self, mover: SliceMover, desks: Sequence[Desk], book: Book, servers: Comm) -> None:
        self._mover, self._desks, self._book = mover, desks, book
        self._servers, self._came = servers, 0
        flat = mover.store.flat
        self._sum = np.zeros(flat.shape, flat.dtype)  # where nothing is written takes no memory

    def push(self, w: int) -> None:
        self._came += 1
        if self._came < len(self._desks):
            return
        self._came = 0
        desks, own = self._desks, self._mover.store.own
        total = self._sum[own]
        total[...] = desks[0].gradient[own]
        for desk in desks[1:]:
            total += desk.gradient[own]
        loss = sum(desk.ask.loss for desk in desks)
        used = np.sum([desk.used for desk in desks], axis=0)
        squares = np.array([self._mover.squares(self._sum)])
        self._servers.all_reduce(squares, "doubling")
        finite = float(squares[0]) if math.isfinite(loss) else math.nan
        made = self._mover.step(self._sum, finite, used, self._book.step)
        self._book.moved(range(len(desks)), made)


class Server(Seated):
    """The strategy of a rank that holds parameters: it serves until an epoch is over."""

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        workers = range(seat.roles.workers)
        mover = SliceMover(seat, self._store)
        self.optimizer = mover.optimizer
        self._book = Book(len(workers), seat.bound)
        self._desks = [Desk(seat.comm, w, self._by, len(self._store.parameters)) for w in workers]
        self._rule: Rule = (
            AllTogether(mover, self._desks, self._book, self._peers)
            if seat.synchronous
            else EachAlone(mover, self._desks, self._book)
        )
        self._turn = 0

    def steps(self, loader: Loader, epoch: int) -> Generator[Stepped, None, None]:
        """Serves, and tells at the end what all workers have done."""
        self._seat.check_shares(loader)
        book, workers, patience = self._book, len(self._desks), Patience()
        book.begin(workers * min(len(loader), self._seat.wishes.steps - self._done))
        for desk in self._desks:
            desk.listen()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            while not book.is_over:
                if self._look():
                    patience.found()
                else:
                    patience.pause()
        for desk in self._desks:
            desk.answer(book.answer(False), self._store.flat)
        for desk in self._desks:
            desk.close()
        self._done += -(-book.totals.pushes // workers)
        yield from told(Totals(), book.totals, self._done, book.stop)

    def _look(self) -> bool:
        """Hears those who have asked, and answers those who may go on; whether there were any."""
        self._turn = (self._turn + 1) % len(self._desks)
        self._desks[self._turn].poll()  # one look moves the messages of all
        asked = [w for w, desk in enumerate(self._desks) if desk.has_come()]
        for w in asked:
            self._hear(w)
        for w, answer in self._book.answers() if asked else ():
            stop = answer.stop or self._seat.wishes.stop()  # workers tell it to all servers
            self._desks[w].answer(answer._replace(stop=stop), self._store.flat)
            self._desks[w].listen()
        return bool(asked)

    def _hear(self, w: int) -> None:
        ask, book = self._desks[w].heard(), self._book
        if ask.purpose == Purpose.START:
            book.started(w)
        elif ask.purpose == Purpose.DONE:
            book.left(w, ask.stop > 0)
        else:
            book.pushed(w, ask)
            self._rule.push(w)

    def share(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        """Its parameters are old but for its slice: workers evaluate."""
        return ()

    def close(self) -> None:
        """The end of its part; it tells the others how stale gradients were."""
        self._leave(self._book.staleness)
