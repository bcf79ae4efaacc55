"""Ranks that are threads, and are lost: at any operation the others raise, or go on; none waits."""

from collections.abc import Callable
from contextlib import suppress
from itertools import count

import numpy as np
import pytest
from helpers import turns
from helpers.comm import laws_lost
from helpers.comm.brought import part, total
from helpers.comm.laws_lost import shrunk
from helpers.laws import Law, of

from nnmpi.comm import Comm, OtherRankError, RankLost, thread_ranks
from nnmpi.comm.allreduce.dispatch import NAMES
from nnmpi.comm.transport.hub import DeadlockError, RankKilled

LAWS = of(laws_lost)
MOST = 400  # operations of a rank in a test


@pytest.fixture(autouse=True)
def _no_wait_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_TIMEOUT", "60")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_law(law: Law, ranks: int) -> None:
    turns.run(ranks, law, fault_tolerant=True)


def all_reduces(comm: Comm) -> None:
    for name in NAMES:
        x = part(comm.rank, 20, "float32")
        comm.all_reduce(x, name)
        np.testing.assert_array_equal(x, total(comm.size, 20, "float32"), name)


def other_collectives(comm: Comm) -> None:
    x = part(comm.rank, 20, "int64")
    own = comm.reduce_scatter(x)
    np.testing.assert_array_equal(own, total(comm.size, 20, "int64")[comm.chunk(20)])
    comm.all_gather(x)
    np.testing.assert_array_equal(x, total(comm.size, 20, "int64"))
    comm.broadcast(x, 1)
    comm.reduce(x, 0)
    comm.barrier()
    comm.agree(None)
    comm.meet("fit")


def works(comm: Comm) -> None:
    arrays = [part(comm.rank, 20, "float32") for _ in NAMES]
    started = [comm.start(x, name) for x, name in zip(arrays, NAMES, strict=True)]
    for work in started if comm.rank % 2 else started[::-1]:
        work.wait()
    for x in arrays:
        np.testing.assert_array_equal(x, total(comm.size, 20, "float32"))


def messages(comm: Comm) -> None:
    """Around a ring, and polled."""
    p, got = comm.size, np.zeros(3, np.int64)
    for _ in range(p):
        received = comm.irecv(got, (comm.rank - 1) % p)
        sent = comm.isend(np.full(3, comm.rank), (comm.rank + 1) % p)
        while not (received.poll() and sent.poll()):
            pass
        np.testing.assert_array_equal(got, (comm.rank - 1) % p)


def memory_of_nodes(comm: Comm) -> None:
    sums, memory = comm.shared(20, "float32"), comm.node_memory(20, "int64")
    for _ in range(2):
        sums.mine[:] = part(comm.rank, 20, "float32")
        sums.all_reduce()
        np.testing.assert_array_equal(sums.total, total(comm.size, 20, "float32"))
    memory.array[comm.rank] = 1
    memory.barrier()
    assert memory.array.sum() == comm.size
    memory.free()
    sums.free()


def other_comms(comm: Comm) -> None:
    comm.free_memory()
    both = [comm.split(0), comm.split(comm.rank % 2)]
    for part_of in both:
        assert part_of is not None
        all_reduces(part_of)
        part_of.free()


def in_a_helper_thread(comm: Comm) -> None:
    with comm.progress_thread(0.0):
        works(comm)


OPERATIONS = [
    all_reduces,
    other_collectives,
    works,
    messages,
    memory_of_nodes,
    other_comms,
    in_a_helper_thread,
]


def survives(comm: Comm, operation: Callable[[Comm], None]) -> tuple[int, ...]:
    """Operations, as often as a rank is lost in them; returns who is left, on all or none."""
    while True:
        try:
            operation(comm)
            comm.confirm()
            return comm.members
        except RankLost:
            comm = shrunk(comm)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
def test_a_rank_is_lost_at_any_operation(
    operation: Callable[[Comm], None], is_sample: bool
) -> None:
    """At every third operation; at each with --all."""
    for n in count(1, 3 if is_sample else 1):
        left = turns.run(3, survives, operation, fault_tolerant=True, killed={1: n})
        assert left[0] == left[2] in ((0, 2), (0, 1, 2))
        if left[1] is not None:
            break
        assert n < MOST


@pytest.mark.one_in(2)
@pytest.mark.parametrize("operation", OPERATIONS[:5], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "later", [0, 7, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 30))]
)
def test_two_ranks_are_lost(operation: Callable[[Comm], None], later: int) -> None:
    for n in range(1, 60, 4):
        killed = {1: n, 2: n + later}
        left = turns.run(4, survives, operation, fault_tolerant=True, killed=killed)
        assert left[0] == left[3]
        assert {0, 3} <= {*left[0]}


def test_calls_are_compared_and_nodes_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_DEBUG", "collectives")
    for n in range(1, 120, 3):
        left = turns.run(4, survives, all_reduces, per_node=2, fault_tolerant=True, killed={2: n})
        assert left[0] == left[1] == left[3] in ((0, 1, 3), (0, 1, 2, 3))


def test_a_rank_is_lost_while_others_agree_on_an_error() -> None:
    """RankLost comes before an error of a rank's own: not all have heard of that."""

    def agrees(comm: Comm) -> str:
        error = ValueError("mine") if comm.rank == 0 else None
        with pytest.raises((RankLost, ValueError, OtherRankError)) as raised:
            comm.agree(error)
        return raised.typename

    outcomes = set()
    for n in range(1, 20):
        killed = {2: n}
        outcomes |= {*turns.run(3, agrees, fault_tolerant=True, killed=killed)[:2]}
    assert outcomes == {"RankLost", "ValueError", "OtherRankError"}


def test_without_fault_tolerance_a_death_ends_the_job() -> None:
    def sums(comm: Comm) -> None:
        assert not comm.fault_tolerant
        all_reduces(comm)

    with pytest.raises(RankKilled, match="rank 1 was killed"):
        turns.run(3, sums, killed={1: 5})


def test_a_deadlock_of_those_that_are_left_is_found() -> None:
    def waits(comm: Comm) -> None:
        if comm.rank == 2:
            thread_ranks.kill(comm)
        comm.irecv(np.zeros(1), 1 - comm.rank).wait()

    with pytest.raises(DeadlockError, match=r"rank 0: a receive .* rank 1: a receive"):
        turns.run(3, waits, fault_tolerant=True)


def test_a_rank_that_is_killed_ends_whatever_it_catches() -> None:
    def catches(comm: Comm) -> str:
        for _ in range(3):
            with suppress(RankKilled):
                all_reduces(comm)
        return "back"

    def others(comm: Comm) -> object:
        return catches(comm) if comm.rank == 1 else survives(comm, all_reduces)

    assert turns.run(3, others, fault_tolerant=True, killed={1: 4})[1] is None


def test_an_error_of_a_rank_s_own_is_raised_first() -> None:
    def fails(comm: Comm) -> None:
        if comm.rank == 2:
            thread_ranks.kill(comm)
        if comm.rank == 1:
            raise OSError("the disk is full")
        all_reduces(comm)

    with pytest.raises(OSError, match="the disk is full"):
        turns.run(3, fails, fault_tolerant=True)
