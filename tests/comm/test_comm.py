"""The laws of communicators on threads, and what only threads can show."""

from collections.abc import Callable

import numpy as np
import pytest
from helpers.comm import brought, laws_narrow, laws_sums

from nnmpi.comm import Comm, MessageLengthError, thread_ranks
from nnmpi.comm.allreduce import autotune
from nnmpi.comm.allreduce.dispatch import NAMES
from nnmpi.comm.transport.base import NoRoomError
from nnmpi.comm.transport.hub import DeadlockError

SIZES = [1, 2, 3, 5, 8]


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


@pytest.mark.parametrize("more", [1, -1])
def test_a_message_of_another_length_in_a_collective_ends_all(more: int) -> None:
    def differ(comm: Comm) -> None:
        comm.all_reduce(np.ones(10 + more * comm.rank), "tree")

    with pytest.raises(MessageLengthError, match=f"expected 80 bytes, got {80 + 8 * more};"):
        thread_ranks.run(2, differ)


def test_auto_chooses_the_same_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it measures is not on the ledger."""
    monkeypatch.setattr(autotune, "SIZES", autotune.SIZES[:2])

    def choose(comm: Comm) -> tuple[autotune.Fastest, int]:
        comm.all_reduce(np.ones(3))
        messages = sum(comm.ledger.sent_messages)
        return autotune.measure_choice(comm), messages

    choices, messages = zip(*thread_ranks.run(3, choose), strict=True)
    assert choices[0] == choices[1] == choices[2]
    assert set(choices[0].names) <= set(NAMES)
    assert max(messages) <= 12


class Slow:
    """A communicator of one rank on which each algorithm takes a time of its own."""

    size = 1

    def __init__(self, seconds: Callable[[str, int], float]) -> None:
        self.seconds, self.now, self.timed = seconds, 0.0, set[tuple[str, int]]()

    def all_reduce(self, array: np.ndarray, algorithm: str = "auto") -> None:
        if array.dtype == np.float32:  # else it agrees on times
            self.now += self.seconds(algorithm, array.nbytes)
            self.timed.add((algorithm, array.nbytes))

    def barrier(self) -> None:
        pass


def test_the_fastest_at_each_size_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latency counts for the tree, bandwidth for the ring; all else is slower."""

    def seconds(name: str, nbytes: int) -> float:
        costs = {"tree": (1e-6, 2e-9), "ring": (4e-6, 1e-9)}
        a, b = costs.get(name, (9e-6, 9e-9))
        return a + b * nbytes

    slow = Slow(seconds)
    monkeypatch.setattr(autotune.time, "perf_counter", lambda: slow.now)
    choice = autotune.measure_choice(slow)
    assert choice.names == ("tree",) * 2 + ("ring",) * 7
    assert {name for name, nbytes in slow.timed if nbytes == autotune.SIZES[-1]} == {"ring", "tree"}


def test_where_the_only_one_left_has_no_memory_halving_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a container with 64 MB of /dev/shm, where `shared` is far ahead."""

    class Small(Slow):
        def all_reduce(self, array: np.ndarray, algorithm: str = "auto") -> None:
            if algorithm == "shared" and array.nbytes > 1 << 20:
                raise NoRoomError
            super().all_reduce(array, algorithm)

    slow = Small(lambda name, nbytes: (1e-9 if name == "shared" else 3e-9) * nbytes)
    monkeypatch.setattr(autotune.time, "perf_counter", lambda: slow.now)
    assert autotune.measure_choice(slow).names == ("shared",) * 7 + ("halving",)
