"""The laws of communicators on threads, and what only threads can show."""

import threading
from collections.abc import Callable

import brought
import laws
import laws_sums
import numpy as np
import pytest

from nnmpi.comm import AbortedError, Comm
from nnmpi.comm.allreduce import autotune, measure
from nnmpi.comm.allreduce.dispatch import NAMES
from nnmpi.comm.transport import threads

SIZES = [1, 2, 3, 4, 5, 8]


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("law", laws.LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Comm], None], p: int) -> None:
    threads.run(p, law)


@pytest.mark.parametrize(("p", "per_node"), [(4, 2), (5, 2), (6, 3), (3, 1), (7, 4)])
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
        laws_sums.half_precision_does_not_overflow_on_the_way(comm)
        laws_sums.all_reduce_gives_all_ranks_the_same_bits(comm)
        comm.ledger.reset()
        comm.all_reduce(np.ones(1000), "shared")
        leads = comm.rank % per_node == 0
        assert (sum(comm.ledger.sent_messages) > 0) == leads

    threads.run(p, law, per_node=per_node)


def test_the_memory_of_a_node_is_one() -> None:
    def addresses(comm: Comm) -> tuple[int, int]:
        buffer = comm.shared(10, "float32")
        return buffer.total.ctypes.data, buffer.mine.ctypes.data

    totals, mines = zip(*threads.run(4, addresses, per_node=2), strict=True)
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
        threads.run(p, law)


def test_a_circle_of_waiting_ranks_is_named() -> None:
    def wait_for_the_left(comm: Comm) -> None:
        comm.irecv(np.ones(2), (comm.rank - 1) % comm.size).wait()

    with pytest.raises(threads.DeadlockError, match=r"rank 0: a receive of 16 bytes from rank 2"):
        threads.run(3, wait_for_the_left)


def test_a_rank_that_returns_early_leaves_nobody_waiting() -> None:
    def some(comm: Comm) -> None:
        if comm.rank != 1:
            comm.all_reduce(np.ones(2), "ring")

    with pytest.raises(threads.DeadlockError, match="every rank waits: rank 0: "):
        threads.run(3, some)


def test_what_a_rank_raises_ends_all() -> None:
    def fails(comm: Comm) -> None:
        if comm.rank == 1:
            raise KeyError("mine")
        comm.all_reduce(np.ones(2), "tree")

    with pytest.raises(KeyError, match="mine"):
        threads.run(3, fails)


@pytest.mark.parametrize("p", [2, 3, 5])
def test_of_an_error_on_all_ranks_the_first_own_one_is_raised(p: int) -> None:
    """Though the ranks that have heard of it end, and so end all, before it is told to the last."""

    def fails(comm: Comm) -> None:
        comm.agree(KeyError(comm.rank))

    for _ in range(20):
        with pytest.raises(KeyError, match="0"):
            threads.run(p, fails)


def test_what_is_done_stays_done_when_another_rank_fails() -> None:
    failed = threading.Event()

    def one_fails(comm: Comm) -> None:
        x = np.full(2, comm.rank)
        if comm.rank == 0:
            work = comm.irecv(x, 1)
            failed.wait(10)
            work.wait()
            seen.append(x.tolist())
            comm.barrier()
        comm.isend(x, 0).wait()
        raise KeyError("of rank 1")

    def told(message: str) -> None:
        abort(message)
        failed.set()

    seen: list[list[int]] = []
    hub = threads.Hub(2, 2)
    abort, hub.abort = hub.abort, told  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "Hub", lambda *_: hub)
        with pytest.raises(KeyError, match="of rank 1"):
            threads.run(2, one_fails)
    assert seen == [[1, 1]]


@pytest.mark.parametrize("more", [1, -1])
def test_a_message_of_another_length_than_its_receive_ends_all(more: int) -> None:
    def differ(comm: Comm) -> None:
        comm.all_reduce(np.ones(10 + more * comm.rank), "tree")

    with pytest.raises(AbortedError, match=f"{80 + 8 * more} bytes.* meets a receive of 80 bytes"):
        threads.run(2, differ)


def test_auto_agrees_and_chooses_by_size() -> None:
    def choose(comm: Comm) -> tuple[str, ...]:
        comm.all_reduce(np.ones(3))
        assert sum(comm.ledger.sent_messages) <= 12  # what was measured is not on the ledger
        choice = comm._choice
        assert choice is not None
        assert choice.name(0) == choice.names[0]
        assert choice.name(1 << 40) == choice.names[-1]
        return choice.names

    names = threads.run(3, choose)
    assert names[0] == names[1] == names[2]
    assert set(names[0]) <= set(NAMES)


def test_a_choice_is_the_fastest_at_each_size_that_was_timed() -> None:
    times = {"few": [1e-6, 2e-6, 9e-6], "many": [3e-6, 3e-6, 3e-6]}
    choice = autotune.Choice.of(times)
    assert [choice.name(n) for n in autotune.SIZES[:3]] == ["few", "few", "many"]
    assert choice.name(1) == "few"
    assert choice.name(1 << 30) == "many"
    grid = [choice.name(n) for n in range(256, 4097, 8)]
    assert grid == sorted(grid)  # one crossing


def test_lines_are_fitted() -> None:
    link = measure.line([100, 1000, 1_000_000], [1.1e-6, 2e-6, 1.001e-3])
    assert link.alpha == pytest.approx(1e-6, rel=1e-6)
    assert link.beta == pytest.approx(1e-9, rel=1e-6)
