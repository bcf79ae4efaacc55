"""What goes between workers and servers: questions and answers, gradients and parameters.

worker                                                        server
  ask       a few float64, and which parameters were used  ─►
  gradient  the server's slice of flat_grad                ─►
                                 a few float64  ◄─  answer
                   the server's slice of flat  ◄─  parameters

Questions and answers are messages. Gradients and parameters are messages too, or lie in memory
that both see: then a worker computes there, and whose turn it is passes with question and answer.
"""

import time
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from nnmpi.backend import Array
from nnmpi.comm import Comm
from nnmpi.comm.progress.work import Work
from nnmpi.parallel.server.topology import Roles, SliceStore, Totals
from nnmpi.parallel.server.transfer import Carrier

ASK, ANSWER = 0, 1  # tags; what carriers send has others
LOOKS, PAUSE = 20, 5e-5  # looks in vain before the first pause, and seconds of each


class Purpose(IntEnum):
    """What a worker wants. Every answer brings the parameters as they are then."""

    START = 0  # to begin an epoch
    PUSH = 1  # here is a gradient; may there be another one?
    DONE = 2  # the end of the epoch, when all have come to it


class Ask(NamedTuple):
    """What a worker says."""

    purpose: float
    samples: float = 0
    loss: float = 0  # the sum over them
    stop: float = 0
    squares: float = 0  # of the whole gradient


class Answer(NamedTuple):
    """What a server says; that of the first one counts, and any wish to stop."""

    go: float  # whether to make another step in this epoch
    stop: float  # whether somebody wants to end the run
    pushes: float = 0
    samples: float = 0
    loss: float = 0
    skipped: float = 0

    @property
    def totals(self) -> Totals:
        """What all workers have done by now."""
        return Totals(int(self.pushes), int(self.samples), self.loss, int(self.skipped))


class Patience:
    """Pauses between looks in vain: a rank that spins takes a core from those that compute."""

    def __init__(self) -> None:
        self._looks = 0

    def found(self) -> None:
        """There was something."""
        self._looks = 0

    def pause(self) -> None:
        """There was nothing: the first times another look is worth more than a pause."""
        self._looks += 1
        time.sleep(0 if self._looks < LOOKS else PAUSE)


def finish(works: Sequence[Work]) -> None:
    """Waits for all, patiently."""
    patience = Patience()
    for work in works:
        while not work.poll():
            patience.pause()


class Line:
    """A worker's line to all servers."""

    def __init__(self, comm: Comm, roles: Roles, by: Carrier, store: SliceStore) -> None:
        self._comm, self._by, self._store = comm, by, store
        self._ranks = range(roles.first, roles.first + roles.servers)
        self._question = np.zeros(len(Ask._fields) + len(store.parameters))
        self._answers = [np.zeros(len(Answer._fields)) for _ in self._ranks]

    def ask(self, ask: Ask) -> Answer:
        """Asks all servers the same; when all have answered, the parameters are theirs."""
        comm, by, flat, grad = self._comm, self._by, self._store.flat, self._store.flat_grad
        self._question[: len(ask)] = ask
        self._question[len(ask) :] = [p.has_grad for p in self._store.parameters]
        works = []
        for k, rank in enumerate(self._ranks):
            works += [comm.irecv(self._answers[k], rank, ANSWER), *by.pull(flat, k)]
        by.sync()
        for k, rank in enumerate(self._ranks):
            works.append(comm.isend(self._question, rank, ASK))
            if ask.purpose == Purpose.PUSH:
                works += by.push(grad, k)
        finish(works)
        by.sync()
        first, *others = (Answer(*row.tolist()) for row in self._answers)
        return first._replace(stop=max(first.stop, *(a.stop for a in others), 0))


class Desk:
    """Where a server hears one worker."""

    def __init__(self, comm: Comm, w: int, by: Carrier, parameters: int) -> None:
        self._comm, self._w, self._by = comm, w, by
        self._question = np.zeros(len(Ask._fields) + parameters)
        self._answer = np.zeros(len(Answer._fields))
        self._sent: Sequence[Work] = ()

    def listen(self) -> None:
        """From here on the worker may ask."""
        self._works: Sequence[Work] = [self._comm.irecv(self._question, self._w, ASK)]
        self._is_whole = self._is_heard = False

    def poll(self) -> None:
        """Pushes everything that is under way on this rank."""
        for work in self._works:
            work.poll()

    def has_come(self) -> bool:
        """Whether there is a question that was not heard yet, and the gradient with it."""
        if self._is_heard or not all(work.done for work in self._works):
            return False
        if not self._is_whole:
            self._by.sync()
            self._is_whole = True
            self._works = self._by.take(self._w) if self.ask.purpose == Purpose.PUSH else ()
        return all(work.done for work in self._works)

    def heard(self) -> Ask:
        """The question; there is no other before it is answered."""
        self._is_heard = True
        return self.ask

    @property
    def ask(self) -> Ask:
        """The question."""
        return Ask(*self._question[: len(Ask._fields)].tolist())

    @property
    def used(self) -> Array:
        """For each parameter, whether the gradient has a part for it."""
        return self._question[len(Ask._fields) :]

    @property
    def gradient(self) -> Array:
        """What came with it."""
        return self._by.gradient(self._w)

    def answer(self, answer: Answer, flat: Array) -> None:
        """Answers it, with the parameters as they are now."""
        finish(self._sent)
        self._answer[...] = answer
        given = self._by.give(flat, self._w)
        self._by.sync()
        self._sent = [*given, self._comm.isend(self._answer, self._w, ANSWER)]

    def close(self) -> None:
        """Until the last answer has gone."""
        finish(self._sent)
