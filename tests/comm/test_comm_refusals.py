"""What communicators refuse, and what they hold and give back."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.step import then
from nnmpi.comm import Comm, comm_self, thread_ranks

REFUSED = [
    ("a list", lambda c: c.all_reduce([1.0]), TypeError, "NumPy array, not list"),
    ("text", lambda c: c.all_reduce(np.array(["a"])), TypeError, "takes numbers"),
    ("objects", lambda c: c.broadcast(np.array([None])), TypeError, "takes numbers"),
    ("foreign bytes", lambda c: c.all_reduce(np.ones(2, ">f4")), TypeError, "byte order"),
    ("a name", lambda c: c.all_reduce(np.ones(2), "rong"), ValueError, "'rong'.*auto, ring"),
    ("a name", lambda c: c.reduce_scatter(np.ones(2), "tree"), ValueError, "ring, p2p, halving"),
    ("a name", lambda c: c.reduce(np.ones(2), 0, "ring"), ValueError, "tree, ps"),
    (
        "a root",
        lambda c: c.broadcast(np.ones(2), 2),
        ValueError,
        "rank 2 is out of range: the ranks .* 0 to 1",
    ),
    ("parts", lambda c: c.reduce_scatter(np.ones(4), parts=[4]), ValueError, "1 parts for 2 ranks"),
    (
        "parts",
        lambda c: c.all_gather(np.ones(4), parts=[5, -1]),
        ValueError,
        "rank 1 has length -1",
    ),
    ("a view", lambda c: c.reduce_scatter(np.ones((4, 4)).T), ValueError, "C order"),
    (
        "a rank",
        lambda c: c.isend(np.ones(2), 2),
        ValueError,
        "rank 2 is out of range: the ranks .* 0 to 1",
    ),
    ("a tag", lambda c: c.isend(np.ones(2), 0, -1), ValueError, "tag -1 .* 0 to 32766"),
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
        with pytest.raises(TypeError):
            comm.broadcast(x, 0.0)  # type: ignore[arg-type]

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


def test_a_plan_that_adds_to_what_was_put_is_refused_for_16_bits() -> None:
    twice = then(ALGORITHMS["tree"], ALGORITHMS["tree"])

    def law(comm: Comm) -> None:
        x = np.ones(3, "float32")
        comm.carry_out(twice, x)
        assert x.tolist() == [4, 4, 4]
        with pytest.raises(ValueError, match=r"adds to chunks 0 to 0 after .* use float32"):
            comm.carry_out(twice, np.ones(3, "float16"))

    thread_ranks.run(2, law)
