"""Ranks of which some are lost: mpirun --with-ft ulfm -n N python tests/helpers/lostranks.py NAME.

Rank 0 of those that are left prints their numbers in the job as it was started.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from nnmpi.comm import Comm, RankLost, world

N = 5000


def ones() -> np.ndarray:
    return np.ones(N, np.float32)


def ring(comm: Comm) -> None:
    array = ones()
    comm.all_reduce(array, "ring")
    assert (array == comm.size).all()


def works(comm: Comm) -> None:
    """Several sums under way, in messages and in memory."""
    arrays = [ones(), ones(), ones()]
    names = ("ring", "halving", "shared")
    started = [comm.start(a, name) for a, name in zip(arrays, names, strict=True)]
    for work, array in zip(started, arrays, strict=True):
        work.wait()
        assert (array == comm.size).all()


def shared(comm: Comm) -> None:
    array = ones()
    comm.all_reduce(array, "shared")
    assert (array == comm.size).all()


def memory(comm: Comm) -> None:
    """The memory of a node is made, filled and freed."""
    made = comm.node_memory(N, np.float32)
    made.array[comm.chunk(N)] = 1
    made.barrier()
    assert (made.array == 1).all()
    made.free(check=False)


def halves(comm: Comm) -> None:
    """Two Comms, each of half the ranks, are made, used and freed."""
    half = comm.split(comm.rank % 2)
    ring(half)
    half.free()


WORK: dict[str, Callable[[Comm], None]] = {
    f.__name__: f for f in (ring, works, shared, memory, halves)
}


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def left_of(comm: Comm) -> Comm:
    """The ranks that are left, though another may be lost meanwhile."""
    while True:
        try:
            return comm.shrink()
        except RankLost:
            continue


def until_lost(comm: Comm, work: Callable[[Comm], None], end: Callable[[int], object]) -> Comm:
    """Works until a rank is lost; calls `end` with the number of each turn."""
    turn = 0
    try:
        while True:
            work(comm)
            turn += 1
            end(turn)
    except RankLost:
        return left_of(comm)


def one_after_another(comm: Comm) -> Comm:
    """One rank is killed in each kind of work; what it has written in a node's memory stays."""
    kept = comm.node_memory(comm.size, np.int64)
    kept.array[comm.rank] = comm.rank
    kept.barrier()
    me = comm.rank
    for victim, work in ((2, ring), (0, shared), (3, works)):
        is_victim = me == victim
        comm = until_lost(comm, work, lambda turn, dies=is_victim: turn == 5 and dies and die())
    assert kept.array.tolist() == [0, 1, 2, 3, 4]
    return comm


def two_at_once(comm: Comm) -> Comm:
    """Two ranks are killed; another one when it hears of it, while the rest shrinks."""

    def end(turn: int) -> None:
        if turn == 5 and comm.rank in (1, 3):
            die()

    try:
        return until_lost(comm, ring, end) if comm.rank != 2 else dies_of_it(comm)
    except RankLost:
        if comm.rank in (1, 3):  # which has heard of the other one first
            die()
        return left_of(comm)


def leaves_a_message(comm: Comm) -> Comm:
    """A rank is killed that another waits for in memory, and for which a message of it is there."""

    def end(turn: int) -> None:
        if turn == 5 and comm.rank == 1:
            comm.isend(ones()[:4], 0)
            time.sleep(0.2)
            die()

    return until_lost(comm, shared, end)


def dies_of_it(comm: Comm) -> Comm:
    try:
        while True:
            ring(comm)
    except RankLost:
        die()
    raise AssertionError


def hears_while_it_shrinks(comm: Comm) -> Comm:
    """Of the two that are left, one has no Comm yet when it hears of a loss, and one has it."""
    if comm.rank == 1:
        die()
    kind = type(comm._p2p)
    duplicate = kind.duplicate

    def fail(transport: Any) -> NoReturn:
        kind.duplicate = duplicate
        transport.duplicate()
        raise transport.family.lost("as if one more were lost")

    if comm.rank == 2:
        kind.duplicate = fail
        return until_lost(comm, ring, int)
    return until_lost(until_lost(comm, ring, int), ring, int)


def stops(comm: Comm) -> Comm:
    limit_waits(comm)
    return until_lost(comm, ring, lambda turn: turn == 5 and comm.rank == 1 and stop())


def limit_waits(comm: Comm) -> None:
    """NNMPI_TIMEOUT for what comes now, not for the start."""
    log = comm._progress.log
    log.settings = log.settings._replace(timeout=1.0)


def raises(comm: Comm) -> Comm:
    def end(turn: int) -> None:
        if turn == 5 and comm.rank == 0:
            raise KeyError("no such thing")

    return until_lost(comm, ring, end)


def all_raise(comm: Comm) -> Comm:
    ring(comm)
    raise ValueError("the same everywhere")


def nobody_recovers(comm: Comm) -> Comm:
    if comm.rank == 1:
        die()
    while True:
        ring(comm)


def dies_at_its_end(comm: Comm) -> Comm:
    """The others have nothing left to do, and one of them has left."""
    ring(comm)
    if comm.rank == 1:
        time.sleep(0.5)
        die()
    return comm


def raises_at_its_end(comm: Comm) -> Comm:
    """The others have nothing left to do."""
    ring(comm)
    if comm.rank == 1:
        time.sleep(1.0)
        raise ValueError("after all others")
    return comm


def random(comm: Comm) -> Comm:
    """WORK SEED: one or two ranks are killed at random moments, with memory and Comms made anew."""
    work, rng = WORK[sys.argv[2]], np.random.default_rng(int(sys.argv[3]))
    deaths = dict(
        zip(rng.permutation(comm.size)[:2].tolist(), rng.exponential(0.03, 2), strict=True)
    )
    if comm.size < 4:
        deaths.popitem()
    if comm.rank in deaths:
        threading.Timer(deaths[comm.rank], die).start()
    while {*comm.members} & {*deaths}:
        comm = until_lost(comm, work, lambda turn: None)
    work(comm)
    return comm


def starts(comm: Comm) -> Comm:
    """A rank was lost before this one had a Comm: it hears of that as of a later loss."""
    assert comm.lost == (1,)
    return until_lost(comm, ring, int)


def dies_before_mpi() -> None:
    die()


def dies_before_it_joins() -> None:
    from nnmpi.addons.recovery.ulfm import start

    start.before_start = die  # type: ignore[assignment]


def dies_while_others_join() -> None:
    from nnmpi.addons.recovery.ulfm import channel

    channel.UlfmChannel = die  # type: ignore[assignment,misc]


def dies_before_all_have_joined() -> None:
    from nnmpi.addons.recovery.ulfm.family import UlfmFamily

    UlfmFamily.confirm = die  # type: ignore[assignment,method-assign]


STARTS = {
    f.__name__: f
    for f in (
        dies_before_mpi,
        dies_before_it_joins,
        dies_while_others_join,
        dies_before_all_have_joined,
    )
}
"""What rank 1 prepares before it starts."""

JOBS: dict[str, Callable[[Comm], Comm]] = {
    f.__name__: f
    for f in (one_after_another, two_at_once, leaves_a_message, stops, raises, all_raise,
              nobody_recovers, dies_at_its_end, raises_at_its_end, hears_while_it_shrinks, random)
}  # fmt: skip

if __name__ == "__main__":
    if sys.argv[1] in STARTS and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        STARTS[sys.argv[1]]()
    left = JOBS.get(sys.argv[1], starts)(world())
    if not sys.argv[1].endswith("_at_its_end"):
        left.confirm()
    if left.rank == 0:
        print("left:", *left.members, flush=True)
