"""The laws of communicators on threads, and what only threads can show."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import brought
import laws
import laws_sums
import numpy as np
import pytest

from nnmpi.collectives.algorithms import ALGORITHMS, ALL_GATHERS
from nnmpi.collectives.step import then
from nnmpi.comm import AbortedError, Comm, MismatchError, choose, measure, run, threads
from nnmpi.comm.threads import ThreadTransport
from nnmpi.comm.ways import NAMES

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


REFUSED = [
    ("a list", lambda c: c.all_reduce([1.0]), TypeError, "NumPy array, not list"),
    ("text", lambda c: c.all_reduce(np.array(["a"])), TypeError, "takes numbers"),
    ("objects", lambda c: c.broadcast(np.array([None])), TypeError, "takes numbers"),
    ("foreign bytes", lambda c: c.all_reduce(np.ones(2, ">f4")), TypeError, "byte order"),
    ("a name", lambda c: c.all_reduce(np.ones(2), "rong"), ValueError, "'rong'.*auto, ring"),
    ("a name", lambda c: c.start(np.ones(2), "rong"), ValueError, "'rong'.*auto, ring"),
    ("a name", lambda c: c.reduce_scatter(np.ones(2), "tree"), ValueError, "ring, p2p, halving"),
    ("a name", lambda c: c.all_gather(np.ones(2), "tree"), ValueError, "ring, p2p, halving"),
    ("a name", lambda c: c.reduce(np.ones(2), 0, "ring"), ValueError, "tree, ps"),
    ("a name", lambda c: c.broadcast(np.ones(2), 0, "ring"), ValueError, "tree, ps"),
    ("a root", lambda c: c.broadcast(np.ones(2), 2), ValueError, "no rank 2 .* 0 to 1"),
    ("a root", lambda c: c.reduce(np.ones(2), -1), ValueError, "no rank -1 .* 0 to 1"),
    ("a view", lambda c: c.reduce_scatter(np.ones((4, 4)).T), ValueError, "C order"),
    ("a rank", lambda c: c.isend(np.ones(2), 2), ValueError, "no rank 2 .* 0 to 1"),
    ("a rank", lambda c: c.irecv(np.ones(2), -1), ValueError, "no rank -1 .* 0 to 1"),
    ("objects", lambda c: c.isend(np.array([None]), 0), TypeError, "takes numbers"),
    ("a list", lambda c: c.isend([1.0], 0), TypeError, "not list"),
    ("a tag", lambda c: c.isend(np.ones(2), 0, -1), ValueError, "tag -1 .* 0 to 32767"),
    ("a tag", lambda c: c.irecv(np.ones(2), 0, 1 << 15), ValueError, "tag 32768 .* 0 to 32767"),
    ("a color", lambda c: c.split(-3), ValueError, "color -3 .* 0 or more, or None"),
    ("a plan", lambda c: c.carry_out("ring", np.ones(2)), TypeError, "an Algorithm, not str"),
    ("a length", lambda c: c.shared(-1, "float32"), ValueError, "-1"),
    ("a type", lambda c: c.shared(3, "O"), TypeError, "takes numbers"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0])
def test_what_is_refused(case: tuple[str, Callable[[Comm], None], type[Exception], str]) -> None:
    _, call, error, words = case

    def refuses(comm: Comm) -> None:
        with pytest.raises(error, match=words):
            call(comm)
        x = np.ones(3)
        comm.all_reduce(x, "ring")  # and nothing is broken
        assert x.tolist() == [2, 2, 2]

    threads.run(2, refuses)


def test_a_read_only_array_is_refused() -> None:
    x = np.ones(3)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        threads.alone().all_reduce(x)


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
    choice = choose.Choice.of(times)
    assert [choice.name(n) for n in choose.SIZES[:3]] == ["few", "few", "many"]
    assert choice.name(1) == "few"
    assert choice.name(1 << 30) == "many"
    grid = [choice.name(n) for n in range(256, 4097, 8)]
    assert grid == sorted(grid)  # one crossing


def test_lines_are_fitted() -> None:
    link = measure.line([100, 1000, 1_000_000], [1.1e-6, 2e-6, 1.001e-3])
    assert link.alpha == pytest.approx(1e-6, rel=1e-6)
    assert link.beta == pytest.approx(1e-9, rel=1e-6)


def test_ranks_may_be_numpy_integers() -> None:
    def law(comm: Comm) -> None:
        x = np.array([comm.rank + 1.0])
        comm.broadcast(x, np.int64(1))
        assert x == 2
        assert type(comm._progress.guard.last()[-1].root) is int
        with pytest.raises(TypeError):
            comm.broadcast(x, 0.0)  # type: ignore[arg-type]

    threads.run(2, law)


def test_reduce_refuses_the_same_on_every_rank() -> None:
    def law(comm: Comm) -> None:
        with pytest.raises(TypeError, match="not list"):
            comm.reduce([1.0])  # type: ignore[arg-type]

    threads.run(2, law)


def test_a_matrix_is_an_array() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        x = np.matrix([[1.0, 2.0], [3.0, 4.0]])

    def law(comm: Comm) -> None:
        y = x.copy()
        comm.all_reduce(y, "ring")
        np.testing.assert_array_equal(y, 2 * x)

    threads.run(2, law)


def test_what_a_work_raised_it_raises_again() -> None:
    def law(comm: Comm) -> None:
        def steps() -> Iterator[list[object]]:
            yield []
            raise OSError("the cable is out")

        call = comm._called("test")
        work = comm._work(steps(), call)
        for again in (work.wait, work.poll, work.wait):
            with pytest.raises(OSError, match="cable"):
                again()
        assert comm._progress.idle

    threads.run(1, law)


def test_a_plan_that_adds_to_what_was_put_is_refused_for_16_bits() -> None:
    twice = then(ALGORITHMS["tree"], ALGORITHMS["tree"])

    def law(comm: Comm) -> None:
        x = np.ones(3, "float32")
        comm.carry_out(twice, x)
        assert x.tolist() == [4, 4, 4]
        with pytest.raises(ValueError, match=r"adds to chunks 0 to 0 after .* use float32"):
            comm.carry_out(twice, np.ones(3, "float16"))

    threads.run(2, law)


def test_shared_memory_that_is_too_small_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any node: then no rank takes it, and `auto` goes another way."""
    small = {0: 1 << 40, 1: 100_000}
    monkeypatch.setattr(ThreadTransport, "room", lambda self: small[self._me // 2])

    def law(comm: Comm) -> None:
        for call in (
            lambda: comm.all_reduce(np.ones(100_000), "shared"),
            lambda: comm.start(np.ones(100_000), "shared"),
            lambda: comm.shared(100_000, "float64"),
        ):
            with pytest.raises(MemoryError, match=r"bytes are free|are free in /dev/shm"):
                call()
        x = np.ones(100)
        comm.all_reduce(x, "shared")
        for n in (100, 100_000):
            comm._choice = choose.Choice(("shared",))
            x = np.ones(n)
            comm.all_reduce(x)
            assert (x == 4).all()
        assert comm._choice.names == ("halving",)
        comm._choice = None
        y = np.ones(1 << 20)
        comm.all_reduce(y)
        assert (y == 4).all()

    threads.run(4, law, per_node=2)


def test_plans_made_without_end_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_PLANS", 5)

    def law(comm: Comm) -> None:
        for n in range(1, 20):
            x = np.ones(n)
            comm.carry_out(then(ALGORITHMS["ring"], ALL_GATHERS["ring"]), x)
            assert (x == 2).all()
        assert len(comm._runner._plans) <= 5

    threads.run(2, law)


def test_different_plans_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_DEBUG", "collectives")

    def law(comm: Comm) -> None:
        comm.carry_out(ALGORITHMS["tree" if comm.rank else "ring"], np.ones(8))

    with pytest.raises(MismatchError, match="4 rounds, 1 chunks"):
        threads.run(4, law)


def test_what_was_held_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many channels are freed as were made."""
    made: list[ThreadTransport] = []
    init = ThreadTransport.__init__

    def counted(self: ThreadTransport, *arguments: Any) -> None:
        init(self, *arguments)
        made.append(self)

    monkeypatch.setattr(ThreadTransport, "__init__", counted)
    monkeypatch.setattr(ThreadTransport, "free", lambda self: made.remove(self))  # noqa: PLW0108

    def law(comm: Comm) -> None:
        before = 2  # of this Comm
        for _ in range(3):
            part = comm.split(0)
            assert part is not None
            part.all_reduce(np.ones(3))
            part.all_reduce(np.ones(3), "shared")
            buffer = part.shared(3, "float32")
            buffer.free()
            part.free()
        comm.barrier()
        if comm.rank == 0:
            assert len(made) == before * comm.size
        comm.barrier()

    threads.run(3, law, per_node=2)
