"""Laws of ranks that are lost: what the others get, and how they go on.

Each law kills ranks, so it needs a fault-tolerant job of its own.
"""

import os
import signal
import time
from contextlib import suppress
from typing import NoReturn

import numpy as np
import pytest
from helpers.comm.brought import part, total

from nnmpi.comm import Comm, RankLost, thread_ranks
from nnmpi.comm.allreduce.dispatch import NAMES
from nnmpi.comm.transport.threads import ThreadTransport

STARTED = 9  # the tag of messages to a rank that is killed then


def killed(comm: Comm) -> NoReturn:
    """Ends this rank by SIGKILL."""
    if isinstance(comm._p2p, ThreadTransport):
        thread_ranks.kill(comm)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def shrunk(comm: Comm) -> Comm:
    """The Comm of those that are left, on which all of them have met."""
    while True:
        with suppress(RankLost):
            left = comm.shrink()
            left.confirm()
            return left


def goes_on(comm: Comm, members: tuple[int, ...]) -> None:
    """The ranks that are left are these, and communicate as others do."""
    assert (comm.members, comm.fault_tolerant) == (members, True)
    assert (comm.rank, comm.size) == (members.index(comm.members[comm.rank]), len(members))
    p, n = comm.size, 100
    for name in NAMES:
        x = part(comm.rank, n, "float32")
        comm.all_reduce(x, name)
        np.testing.assert_array_equal(x, total(p, n, "float32"), name)
    got = np.zeros(3, np.int64)
    received = comm.irecv(got, (comm.rank - 1) % p)
    comm.isend(np.full(3, comm.rank), (comm.rank + 1) % p).wait()
    received.wait()
    np.testing.assert_array_equal(got, (comm.rank - 1) % p)
    memory = comm.node_memory(p, "int64")
    memory.array[comm.rank] = comm.rank
    memory.barrier()
    assert memory.array.sum() == p * (p - 1) // 2
    memory.free()
    part_of = comm.split(comm.rank % 2)
    part_of.barrier()
    part_of.free()
    comm.confirm()


def _killed_when_others_have_started(comm: Comm) -> NoReturn:
    for r in range(comm.size - 1):
        comm.irecv(np.zeros(1), r, tag=STARTED).wait()
    killed(comm)


def _receives(comm: Comm, source: int) -> None:
    comm.irecv(np.zeros(1), source).wait()


def _sums_until_lost(comm: Comm) -> None:
    while True:
        comm.all_reduce(np.ones(5), "ring")


def _loses(comm: Comm, *ranks: int) -> None:
    """These are killed, and the others sum until they hear of it."""
    if comm.rank in ranks:
        killed(comm)
    with pytest.raises(RankLost, match="every rank that is left"):
        _sums_until_lost(comm)


def all_others_go_on(comm: Comm) -> None:
    """All but the last rank, of which some notice a death by themselves, and others by those."""
    _loses(comm, comm.size - 1)
    goes_on(shrunk(comm), tuple(range(comm.size - 1)))


def the_first_rank_may_be_lost(comm: Comm) -> None:
    """Its memory, where sums of the node and its arrays are, stays readable."""
    memory, sums = comm.node_memory(4, "float64"), comm.shared(4, "float64")
    memory.array[:] = 7.0
    memory.barrier()
    sums.mine[:] = 1.0
    sums.all_reduce()
    array, mine, summed = memory.array, sums.mine, sums.total
    comm.barrier()
    _loses(comm, 0)
    left = shrunk(comm)
    goes_on(left, tuple(range(1, comm.size)))
    assert array.tolist() == [7.0] * 4
    assert (mine.tolist(), summed.tolist()) == ([1.0] * 4, [comm.size] * 4)


def two_are_lost_at_once(comm: Comm) -> None:
    _loses(comm, 1, comm.size - 1)
    goes_on(shrunk(comm), (0, *range(2, comm.size - 1)))


def one_is_lost_while_others_shrink(comm: Comm) -> None:
    _loses(comm, comm.size - 1)
    if comm.rank == 0:
        killed(comm)
    goes_on(shrunk(comm), tuple(range(1, comm.size - 1)))


def one_is_lost_after_another(comm: Comm) -> None:
    """As long as there are two."""
    members = comm.members
    while comm.size > 1:
        _loses(comm, comm.size - 1)
        comm, members = shrunk(comm), members[:-1]
        goes_on(comm, members)


def groups_without_the_lost_rank_hear_of_it(comm: Comm) -> None:
    """They go on until one of their ranks raises elsewhere: rank 0 waits for its partner only."""
    pair = comm.split(comm.rank // 2)
    if comm.rank == comm.size - 1:
        killed(comm)
    with pytest.raises(RankLost):
        _receives(comm, comm.size - 1) if comm.rank else _sums_until_lost(pair)
    pair.free()  # waits for nobody
    goes_on(shrunk(comm), tuple(range(comm.size - 1)))


def works_under_way_raise(comm: Comm) -> None:
    last = comm.size - 1
    if comm.rank == last:
        _killed_when_others_have_started(comm)
    x, y = np.ones(1000), np.zeros(3)
    works = [comm.start(x, "ring"), comm.irecv(y, last), comm.start(x.copy(), "tree")]
    with suppress(RankLost):  # by another of the works, which a wait moves too
        comm.isend(x[:1], last, tag=STARTED).wait()
    with pytest.raises(RankLost):
        works[1].wait()
    left = shrunk(comm)
    for work in works:
        for call in (work.wait, work.poll):
            with pytest.raises(RankLost):
                call()
    goes_on(left, tuple(range(comm.size - 1)))


def a_helper_thread_goes_on(comm: Comm) -> None:
    """An error that it has met in an old work is not raised later."""
    if not comm.any_thread:
        pytest.skip("MPI was started without THREAD_MULTIPLE")
    with comm.progress_thread():
        if comm.rank == comm.size - 1:
            _killed_when_others_have_started(comm)
        work = comm.start(np.ones(1000), "ring")
        comm.isend(np.ones(1), comm.size - 1, tag=STARTED)
        while not work.done:  # by the helper
            time.sleep(1e-3)
        left = shrunk(comm)
        with pytest.raises(RankLost):
            work.wait()
        goes_on(left, tuple(range(comm.size - 1)))
    goes_on(left, left.members)


def confirm_tells_all_or_none(comm: Comm) -> None:
    comm.confirm()
    if comm.rank == comm.size - 1:
        killed(comm)
    with pytest.raises(RankLost):
        comm.confirm()
    goes_on(shrunk(comm), tuple(range(comm.size - 1)))


def old_ones_are_freed_without_waiting(comm: Comm) -> None:
    """Each rank frees what it has, when it wants; nothing of it touches the new Comm."""
    memory, sums = comm.node_memory(4, "float64"), comm.shared(4, "float64")
    part_of = comm.split(0)
    comm.barrier()
    _loses(comm, comm.size - 1)
    if comm.rank % 2:
        memory.free()
    left = shrunk(comm)
    part_of.free()
    sums.free()
    comm.free()
    goes_on(left, tuple(range(comm.size - 1)))
    with pytest.raises(RuntimeError, match="was freed"):
        comm.barrier()


def to_abandon_needs_no_loss(comm: Comm) -> None:
    """It may be called twice, and by one rank alone: the others get RankLost."""
    if comm.rank == 0:
        comm.abandon()
        comm.abandon()
    with pytest.raises(RankLost):
        _sums_until_lost(comm)
    goes_on(shrunk(comm), comm.members)
