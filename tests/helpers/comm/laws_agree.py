"""Laws of errors that only some ranks raise."""

from itertools import combinations

import numpy as np

from nnmpi.comm import Comm, OtherRankError


def subsets(p: int) -> list[tuple[int, ...]]:
    """All subsets of up to 4 ranks, and some of more."""
    if p <= 4:
        return [s for k in range(p + 1) for s in combinations(range(p), k)]
    return [(), (0,), (p - 1,), (1, p - 1), tuple(range(2, p)), tuple(range(p))]


def raised(comm: Comm, own: BaseException | None) -> BaseException | None:
    try:
        comm.agree(own)
    except (ValueError, KeyError, OSError, OtherRankError) as error:
        return error
    return None


def ranks_agree_on_an_error(comm: Comm) -> None:
    """The first rank that failed raises its own error, all others its message."""
    for failing in subsets(comm.size):
        own = ValueError(f"rank {comm.rank} cannot") if comm.rank in failing else None
        error = raised(comm, own)
        if not failing:
            assert error is None
        elif comm.rank == failing[0]:
            assert error is own
        else:
            assert isinstance(error, OtherRankError), failing
            assert str(error) == f"rank {failing[0]}: rank {failing[0]} cannot"
            assert error.__cause__ is own
        x = np.ones(3)
        comm.all_reduce(x, "ring")  # which still works
        assert (x == comm.size).all()


def a_long_error_is_cut_between_characters(comm: Comm) -> None:
    last = comm.size - 1
    for own, text in [
        (ValueError("é" * 400), "é" * 250),
        (ValueError("a" + "é" * 400), "a" + "é" * 249),
        (KeyError(), "KeyError"),
        (OSError("not \udcff text"), "not ? text"),
    ]:
        error = raised(comm, own if comm.rank == last else None)
        if comm.rank == last:
            assert error is own
        else:
            assert isinstance(error, OtherRankError)
            assert str(error) == f"rank {last}: {text}"
