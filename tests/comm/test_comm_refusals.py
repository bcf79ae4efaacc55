"""What communicators refuse, and what they hold and give back."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from nnmpi.collectives.algorithms import ALGORITHMS, ALL_GATHERS
from nnmpi.collectives.step import then
from nnmpi.comm import Comm, MismatchError, comm_self, thread_ranks
from nnmpi.comm.allreduce import autotune, interpreter
from nnmpi.comm.transport.hub import Hub
from nnmpi.comm.transport.threads import ThreadTransport

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
    ("parts", lambda c: c.reduce_scatter(np.ones(4), parts=[4]), ValueError, "1 parts for 2 ranks"),
    (
        "parts",
        lambda c: c.all_gather(np.ones(4), parts=[5, -1]),
        ValueError,
        "rank 1 has length -1",
    ),
    (
        "parts",
        lambda c: c.start_all_gather(np.ones(4), parts=[3, 2]),
        ValueError,
        "sum to 5.* 4 el",
    ),
    ("a view", lambda c: c.reduce_scatter(np.ones((4, 4)).T), ValueError, "C order"),
    ("a rank", lambda c: c.isend(np.ones(2), 2), ValueError, "no rank 2 .* 0 to 1"),
    ("a rank", lambda c: c.irecv(np.ones(2), -1), ValueError, "no rank -1 .* 0 to 1"),
    ("objects", lambda c: c.isend(np.array([None]), 0), TypeError, "takes numbers"),
    ("a list", lambda c: c.isend([1.0], 0), TypeError, "not list"),
    ("a tag", lambda c: c.isend(np.ones(2), 0, -1), ValueError, "tag -1 .* 0 to 32766"),
    (
        "a tag",
        lambda c: c.irecv(np.ones(2), 0, (1 << 15) - 1),
        ValueError,
        "tag 32767 .* 0 to 32766",
    ),
    ("a color", lambda c: c.split(-3), ValueError, "color -3 .* 0 or more, or None"),
    ("a plan", lambda c: c.carry_out("ring", np.ones(2)), TypeError, "an Algorithm, not str"),
    ("a length", lambda c: c.shared(-1, "float32"), ValueError, "-1"),
    ("a type", lambda c: c.shared(3, "O"), TypeError, "takes numbers"),
    ("a length", lambda c: c.node_memory(-1, "float32"), ValueError, "-1"),
    ("a type", lambda c: c.node_memory(3, "O"), TypeError, "takes numbers"),
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

    thread_ranks.run(2, refuses)


def test_a_read_only_array_is_refused() -> None:
    x = np.ones(3)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        comm_self().all_reduce(x)


def test_ranks_may_be_numpy_integers() -> None:
    def law(comm: Comm) -> None:
        x = np.array([comm.rank + 1.0])
        comm.broadcast(x, np.int64(1))
        assert x == 2
        assert type(comm._progress.log.calls[-1].root) is int
        with pytest.raises(TypeError):
            comm.broadcast(x, 0.0)  # type: ignore[arg-type]

    thread_ranks.run(2, law)


def test_reduce_refuses_the_same_on_every_rank() -> None:
    def law(comm: Comm) -> None:
        with pytest.raises(TypeError, match="not list"):
            comm.reduce([1.0])  # type: ignore[arg-type]

    thread_ranks.run(2, law)


def test_a_matrix_is_an_array() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        x = np.matrix([[1.0, 2.0], [3.0, 4.0]])

    def law(comm: Comm) -> None:
        y = x.copy()
        comm.all_reduce(y, "ring")
        np.testing.assert_array_equal(y, 2 * x)

    thread_ranks.run(2, law)


def test_what_a_work_raised_it_raises_again() -> None:
    def law(comm: Comm) -> None:
        def steps() -> Iterator[list[object]]:
            yield []
            raise OSError("the cable is out")

        work = comm._calls.start(steps(), comm._calls.log("test"))
        for again in (work.wait, work.poll, work.wait):
            with pytest.raises(OSError, match="cable"):
                again()
        assert comm._progress.idle

    thread_ranks.run(1, law)


def test_a_plan_that_adds_to_what_was_put_is_refused_for_16_bits() -> None:
    twice = then(ALGORITHMS["tree"], ALGORITHMS["tree"])

    def law(comm: Comm) -> None:
        x = np.ones(3, "float32")
        comm.carry_out(twice, x)
        assert x.tolist() == [4, 4, 4]
        with pytest.raises(ValueError, match=r"adds to chunks 0 to 0 after .* use float32"):
            comm.carry_out(twice, np.ones(3, "float16"))

    thread_ranks.run(2, law)


def test_shared_memory_that_is_too_small_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even on nodes that have room; `auto` takes another algorithm."""
    small = {0: 1 << 40, 1: 100_000}
    monkeypatch.setattr(
        ThreadTransport, "free_memory", lambda self: small[self.members[self.rank] // 2]
    )

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
            comm._choice = autotune.Fastest(("shared",))
            x = np.ones(n)
            comm.all_reduce(x)
            assert (x == 4).all()
        assert comm._choice.names == ("halving",)
        comm._choice = None
        y = np.ones(1 << 20)
        comm.all_reduce(y)
        assert (y == 4).all()

    thread_ranks.run(4, law, per_node=2)


def test_plans_made_without_end_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "MOST_PLANS", 5)

    def law(comm: Comm) -> None:
        for n in range(1, 20):
            x = np.ones(n)
            comm.carry_out(then(ALGORITHMS["ring"], ALL_GATHERS["ring"]), x)
            assert (x == 2).all()
        assert len(comm._interpreter._plans) <= 5

    thread_ranks.run(2, law)


def test_the_thread_transport_keeps_nothing_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    hubs: list[Hub] = []
    init = Hub.__init__
    monkeypatch.setattr(Hub, "__init__", lambda self, *a: (init(self, *a), hubs.append(self))[0])

    def law(comm: Comm) -> None:
        for _ in range(100):
            comm.all_reduce(np.ones(3), "ring")

    thread_ranks.run(2, law)
    (hub,) = hubs
    assert not any(len(kept) for kept in vars(hub).values() if isinstance(kept, dict))


def test_different_plans_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_DEBUG", "collectives")

    def law(comm: Comm) -> None:
        comm.carry_out(ALGORITHMS["tree" if comm.rank else "ring"], np.ones(8))

    with pytest.raises(MismatchError, match="4 rounds, 1 chunks"):
        thread_ranks.run(4, law)


@pytest.mark.parametrize(
    ("debug", "channels", "algorithm"), [("", 2, "auto"), ("collectives", 3, "ring")]
)
def test_what_was_held_is_given_back(
    debug: str, channels: int, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many channels are freed as were made."""
    monkeypatch.setenv("NNMPI_DEBUG", debug)
    made: list[ThreadTransport] = []
    init = ThreadTransport.__init__

    def counted(self: ThreadTransport, *arguments: Any) -> None:
        init(self, *arguments)
        made.append(self)

    monkeypatch.setattr(ThreadTransport, "__init__", counted)
    monkeypatch.setattr(ThreadTransport, "free", lambda self: made.remove(self))  # noqa: PLW0108

    def law(comm: Comm) -> None:
        for _ in range(2):
            part = comm.split(0)
            assert part is not None
            part.all_reduce(np.ones(3), algorithm)
            part.all_reduce(np.ones(3), "shared")
            buffer, memory = part.shared(3, "float32"), part.node_memory(3, "float32")
            buffer.free()
            memory.free()
            part.free()
        comm.barrier()
        if comm.rank == 0:
            assert len(made) == channels * comm.size
        comm.barrier()

    thread_ranks.run(3, law, per_node=2)
