"""All-reduce algorithms by name: those of nnmpi, and yours as package.module:NAME."""

from collections.abc import Iterable

from nnmpi import user_code
from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.collectives.step import Algorithm
from nnmpi.collectives.verify import ALL_REDUCE, Claim, PlanError, verify

MANY = range(1, 18)  # numbers of ranks for which an algorithm is proved before it is shown


def find(name: str) -> Algorithm:
    """The algorithm of a name of ALGORITHMS, or that `package.module:NAME` names."""
    if not user_code.is_named(name):
        return ALGORITHMS[name]
    found = user_code.imported(name, "algorithm")
    if not isinstance(found, Algorithm):
        raise ValueError(
            f"algorithm {name!r} is of type {type(found).__name__}; it must be an Algorithm "
            "(rounds, chunks, at) of nnmpi.collectives"
        )
    return found


def proven(
    name: str, sizes: Iterable[int], claim: Claim = ALL_REDUCE, operation: str = "all-reduce"
) -> Algorithm:
    """The algorithm of a name, proved to do what the claim says on each number of ranks.

    Raises PlanError if it does not.

    One rank comes last: other numbers show mistakes better, such as a plan that branches.
    """
    algorithm = find(name)
    for p in sorted(sizes, key=lambda p: (p == 1, p)):
        try:
            verify(algorithm, p, claim)
        except PlanError as error:
            raise PlanError(
                f"algorithm {name!r} is no {operation} of {p} rank{'s' * (p > 1)}: {error}"
            ) from None
    return algorithm
