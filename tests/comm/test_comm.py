"""The laws of communicators on threads, and what only threads can show."""

import numpy as np
import pytest
from helpers.comm import brought, laws_narrow, laws_sums

from nnmpi.comm import Comm, thread_ranks
from nnmpi.comm.allreduce.dispatch import NAMES
from nnmpi.comm.transport.hub import DeadlockError


@pytest.mark.parametrize(("p", "per_node"), [(5, 2), (6, 3), (3, 1)])
def test_sums_across_nodes(p: int, per_node: int) -> None:
    """Shared memory inside each node, a ring among their first ranks."""

    def law(comm: Comm) -> None:
        for name in ("shared", "hierarchical"):
            for dtype in ("float32", "float16", "int64"):
                for n in brought.lengths(p):
                    for finish in (comm.all_reduce, lambda x, name: comm.start(x, name).wait()):
                        x = brought.part(comm.rank, n, dtype)
                        finish(x, name)
                        np.testing.assert_array_equal(x, brought.total(p, n, dtype), f"{dtype} {n}")
        laws_sums.buffers_in_shared_memory(comm)
        laws_sums.partial_sums_of_half_precision_do_not_overflow(comm)
        laws_sums.all_reduce_gives_all_ranks_the_same_bits(comm)
        laws_narrow.narrow_sums_are_within_their_bound(comm)
        comm.ledger.reset()
        comm.all_reduce(np.ones(1000), "shared")
        leads = comm.rank % per_node == 0
        assert (sum(comm.ledger.sent_messages) > 0) == leads

    thread_ranks.run(p, law, per_node=per_node)


def test_narrow_sums_of_nodes_travel_in_16_bits() -> None:
    """A node adds up its ranks in float32, and rounds that before it travels."""

    def law(comm: Comm) -> None:
        there = laws_narrow.narrow(comm)
        for size, each in ((4, comm), (2, there)):
            each.ledger.reset()
            x = np.ones(600, "float16")
            each.all_reduce(x, "hierarchical")
            assert (x == 6).all()
            leads = comm.rank % 2 == 0  # of three: 200 numbers a round
            assert sum(each.ledger.sent_bytes) == leads * 2 * 200 * (size + 2)

    thread_ranks.run(6, law, per_node=2)


def test_the_memory_of_a_node_is_one() -> None:
    def addresses(comm: Comm) -> tuple[int, int]:
        buffer = comm.shared(10, "float32")
        return buffer.total.ctypes.data, buffer.mine.ctypes.data

    totals, mines = zip(*thread_ranks.run(4, addresses, per_node=2), strict=True)
    assert totals[0] == totals[1] != totals[2] == totals[3]
    assert len(set(mines)) == 4


def test_bfloat16_is_summed_in_float32() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes").bfloat16

    def law(comm: Comm) -> None:
        for name in NAMES:
            x = brought.rough(comm.rank, 333, bfloat16)
            comm.all_reduce(x, name)
            parts = [brought.rough(r, 333, bfloat16).astype("f4") for r in range(comm.size)]
            if comm.size <= 2:  # only one order
                assert x.tobytes() == sum(parts[1:], parts[0]).astype(bfloat16).tobytes()
            exact = np.sum(np.array(parts, "f8"), 0)
            bound = abs(exact) * 2.0**-8 + np.sum(abs(np.array(parts)), 0) * comm.size * 2.0**-24
            assert (abs(x.astype("f8") - exact) <= bound).all(), name
        comm.ledger.reset()
        comm.all_reduce(np.ones(8 * comm.size, bfloat16), "ring")
        sums, results = (comm.size - 1) * 8 * 4, (comm.size - 1) * 8 * 2
        assert sum(comm.ledger.sent_bytes) == sums + results

    for p in (1, 2, 3, 4):
        thread_ranks.run(p, law)


def test_a_circle_of_waiting_ranks_is_named() -> None:
    def wait_for_the_left(comm: Comm) -> None:
        comm.irecv(np.ones(2), (comm.rank - 1) % comm.size).wait()

    with pytest.raises(DeadlockError, match=r"rank 0: a receive of 16 bytes from rank 2"):
        thread_ranks.run(3, wait_for_the_left)


def test_a_rank_that_returns_early_leaves_nobody_waiting() -> None:
    def some(comm: Comm) -> None:
        if comm.rank != 1:
            comm.all_reduce(np.ones(2), "ring")

    with pytest.raises(DeadlockError, match="every rank waits: rank 0: "):
        thread_ranks.run(3, some)


def test_what_a_rank_raises_ends_all() -> None:
    def fails(comm: Comm) -> None:
        if comm.rank == 1:
            raise KeyError("mine")
        comm.all_reduce(np.ones(2), "tree")

    with pytest.raises(KeyError, match="mine"):
        thread_ranks.run(3, fails)


@pytest.mark.parametrize("p", [2, 3, 5])
def test_of_an_error_on_all_ranks_the_first_own_one_is_raised(p: int) -> None:
    """Though ranks that have the message may end all before the last rank has it."""

    def fails(comm: Comm) -> None:
        comm.agree(KeyError(comm.rank))

    for _ in range(20):
        with pytest.raises(KeyError, match="0"):
            thread_ranks.run(p, fails)
