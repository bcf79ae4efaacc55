"""An MPI that begins and completes operations late, as the standard permits; for jobs of tests.

    NNMPI_CHAOS=SEED mpirun -n 4 python -m helpers.chaos -m nnmpi.train ...

isend ── held ── Test: no ── held ── begun ── Test: no ── complete ── Test: no ── Test: yes

Messages with the same peer and tag begin in their order, as do collectives of a communicator; all
others overtake each other. A rank that blocks begins all that it holds. What a rank does late is
drawn from the seed, the rank, and how many operations its communicator has had: a seed repeats the
delays, but not the order of events, which the machine decides.

It takes the places of the two names by which nnmpi reaches other processes: `start_mpi.MPI`, and
`node_barrier.Barrier` for shared memory.
"""

import os
import runpy
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Self

from nnmpi.comm.transport import node_barrier, start_mpi
from nnmpi.comm.transport.base import ShortSum

SEED = "NNMPI_CHAOS"
LONGEST_PAUSE = 1e-4  # seconds
MPI = start_mpi.MPI


class Denials:
    """How often a test still denies that an operation is complete."""

    def __init__(self, left: int = 0) -> None:
        self._left = left

    def deny(self) -> bool:
        """Counts a test of an operation that is complete; True if it denies that."""
        if not self._left:
            return False
        self._left -= 1
        RANK.counts["denied"] += 1
        return True


class Late:
    """A request of an operation that begins later, and denies for a while that it is complete."""

    def __init__(self, begin: Callable[[], MPI.Request], number: int, denials: Denials) -> None:
        self.number = number  # of the operations of this rank
        self._begin: Callable[[], MPI.Request] | None = begin
        self._denials = denials
        self._request: MPI.Request | None = None
        self._error: MPI.Exception | None = None
        self._done = False

    def begin(self) -> None:
        """Starts the operation; an error is that of this request, whoever begins it."""
        begin, self._begin = self._begin, None  # nothing is to view its buffer for longer
        try:
            self._request = begin()
        except MPI.Exception as error:
            self._error = error

    def Test(self, status: MPI.Status | None = None) -> bool:  # noqa: N802 - MPI's name
        RANK.turn()
        is_complete = self._begin is None and self._complete("Test", status)
        return is_complete and not self._denials.deny()

    def Wait(self, status: MPI.Status | None = None) -> bool:  # noqa: N802 - MPI's name
        RANK.begin_all()
        return self._complete("Wait", status)

    def _complete(self, how: str, status: MPI.Status | None) -> bool:
        if self._error is not None:
            raise self._error
        if self._request is not None and getattr(self._request, how)(status):
            self._request, self._done = None, True
        return self._done

    def __bool__(self) -> bool:
        """True until it is complete, as of a request of mpi4py."""
        return not self._done


class Draws:
    """What is done late on one communicator or in one shared memory."""

    def __init__(self, name: str) -> None:
        rank = Random(f"{os.environ[SEED]} {MPI.COMM_WORLD.Get_rank()}")  # alike in all its draws
        self._held, self._longest = rank.choice((0.1, 0.4, 0.8)), rank.choice((2, 10, 50))
        self._denied, self._paused = rank.choice((0.1, 0.4)), rank.choice((0.0, 0.02, 0.2))
        self._random = Random(f"{rank.random()} {name}")

    def turns(self) -> int:
        """For how many tests of this rank an operation is held."""
        is_held = self._random.random() < self._held
        return self._random.randint(1, self._longest) if is_held else 0

    def denials(self) -> Denials:
        return Denials(self._random.randint(1, 5) if self._random.random() < self._denied else 0)

    def pause(self) -> None:
        if self._random.random() < self._paused:
            RANK.counts["paused"] += 1
            time.sleep(self._random.random() * LONGEST_PAUSE)

    def shuffled(self, values: Sequence[Any]) -> list[Any]:
        return self._random.sample(values, len(values))


class Rank:
    """The operations that this rank holds, in queues whose order is kept.

    Several threads of a rank may use it.
    """

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.communicators = 0
        self._draws = Draws("rank")
        self._queues: dict[object, deque[tuple[int, Late]]] = {}
        self._lock = threading.RLock()
        self._turn = self._newest = 0

    def started(self, queue: object, begin: Callable[[], MPI.Request], draws: Draws) -> Late:
        """The request of an operation, which is held for a while, or behind others of a queue."""
        draws.pause()
        turns = draws.turns()
        with self._lock:
            self.counts["operations"] += 1
            late = Late(begin, self.counts["operations"], draws.denials())
            if turns or queue in self._queues:
                self.counts["held"] += 1
                self._queues.setdefault(queue, deque()).append((self._turn + turns, late))
            else:
                self._begin(late)
        return late

    def turn(self) -> None:
        """Begins what has been held for long enough."""
        self._turn += 1
        if self._queues:
            with self._lock:
                for key in self._draws.shuffled([*self._queues]):
                    self._begin_until(key, self._turn)

    def begin_all(self) -> None:
        """Begins everything: this rank may block, and others may wait for it."""
        self._draws.pause()
        with self._lock:
            for key in self._draws.shuffled([*self._queues]):
                self._begin_until(key, sys.maxsize)

    def _begin_until(self, key: object, turn: int) -> None:
        queue = self._queues[key]
        while queue and queue[0][0] <= turn:
            self._begin(queue.popleft()[1])
        if not queue:
            del self._queues[key]

    def _begin(self, late: Late) -> None:
        self.counts["overtaken"] += late.number < self._newest
        self._newest = max(self._newest, late.number)
        late.begin()


class LateComm(MPI.Intracomm):
    """A communicator whose operations begin and complete late."""

    def __init__(self, comm: MPI.Comm) -> None:
        RANK.communicators += 1
        self._number = RANK.communicators
        self._draws = Draws(f"communicator {self._number}")

    def Isend(self, data: Any, to: int, tag: int = 0) -> Any:  # noqa: N802 - MPI's name
        return self._started(("send", to, tag), partial(super().Isend, data, to, tag))

    def Issend(self, data: Any, to: int, tag: int = 0) -> Any:  # noqa: N802 - MPI's name
        return self._started(("send", to, tag), partial(super().Issend, data, to, tag))

    def Irecv(self, data: Any, source: int, tag: int) -> Any:  # noqa: N802 - MPI's name
        return self._started(("receive", source, tag), partial(super().Irecv, data, source, tag))

    def Ibarrier(self) -> Any:  # noqa: N802 - MPI's name
        return self._started(("collective",), super().Ibarrier)

    def Iallreduce(self, *arguments: Any) -> Any:  # noqa: N802 - MPI's name
        return self._started(("collective",), partial(super().Iallreduce, *arguments))

    def Sendrecv(self, out: Any, to: int, tag: int, into: Any, source: int, tag2: int) -> None:  # type: ignore[override] # noqa: N802
        late_waitall([self.Isend(out, to, tag), self.Irecv(into, source, tag2)])

    def Iprobe(self, *arguments: Any, **named: Any) -> bool:  # noqa: N802 - MPI's name
        RANK.turn()
        return super().Iprobe(*arguments, **named)

    def _started(self, queue: tuple[object, ...], begin: Callable[[], Any]) -> Late:
        return RANK.started((self._number, *queue), begin, self._draws)


class LateWin(MPI.Win):
    """A window of shared memory, which ranks make and free together."""


class LateBarrier(node_barrier.Barrier):
    """A barrier in shared memory at which ranks arrive and leave late."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._denials = Denials()
        RANK.counts["windows"] += 1
        self._draws = Draws(f"window {RANK.counts['windows']}")

    def arrive(self, mark: int = 0) -> Self:
        self._draws.pause()
        self._denials = self._draws.denials()
        super().arrive(mark)
        return self

    def test(self) -> bool:
        RANK.turn()
        return super().test() and not self._denials.deny()

    def _wait(self, count: int) -> None:
        RANK.begin_all()
        super()._wait(count)
        self._draws.pause()

    def short_sum(self, *arguments: Any) -> ShortSum | None:
        made = super().short_sum(*arguments)
        if made is None:
            return None

        def call(array: Any) -> bool:
            self._draws.pause()
            return made.call(array)

        return made._replace(call=call)


def late_waitall(requests: Sequence[Late]) -> None:
    for request in requests:
        request.Wait()


def late_testall(requests: Sequence[Late]) -> bool:
    answers = [request.Test() for request in requests]  # each of them is to move
    return all(answers)


def blocking(kind: type, name: str) -> Callable[..., Any]:
    """A method that blocks until other ranks call it, so this one holds nothing meanwhile."""
    plain = getattr(kind, name)

    def method(*arguments: Any, **named: Any) -> Any:
        RANK.begin_all()
        return plain(*arguments, **named)

    return method


RANK = Rank()


def install() -> None:
    """Lets nnmpi use this MPI. Called before nnmpi imports its transports."""
    assert "nnmpi.comm.transport.mpi" not in sys.modules
    for name in ("Allreduce", "Dup", "Split", "Split_type", "Free", "Shrink", "Agree"):
        setattr(LateComm, name, blocking(MPI.Intracomm, name))
    LateWin.Allocate_shared = staticmethod(blocking(MPI.Win, "Allocate_shared"))
    LateWin.Free = blocking(MPI.Win, "Free")
    late = {
        "COMM_WORLD": LateComm(MPI.COMM_WORLD),
        "Finalize": blocking(MPI, "Finalize"),
        "Intracomm": LateComm,
        "Request": SimpleNamespace(Waitall=late_waitall, Testall=late_testall),
        "Win": LateWin,
        "counts": RANK.counts,
    }
    start_mpi.MPI = SimpleNamespace(**vars(MPI) | late)
    node_barrier.Barrier = LateBarrier


if __name__ == "__main__":
    install()
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
