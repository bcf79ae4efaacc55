"""The simulation of a collective: the plans of each operation, and what one costs on a network."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnmpi import user_code
from nnmpi.collectives import algorithms, lookup, verify
from nnmpi.collectives.price import Link, Network, price
from nnmpi.collectives.step import Algorithm, Ranks, Step
from nnmpi.collectives.verify import Claim
from nnmpi.sim import textbook
from nnmpi.sim.formula import Cost, evaluate, letters

MAX_RANKS = 10_000_000
MAX_VALUE = 1e30  # of bytes and of seconds, so that no product of them overflows


def _exchange(t: int, r: Ranks, p: Ranks) -> Step:
    return Step((r + t + 1) % p, (0, 1), (r - t - 1) % p, (0, 1), True)


# Every rank sends its whole buffer to every other rank. It can be priced, but not carried out in
# place: a rank would send on what it has already added, so contributions would count twice.
exchange = Algorithm(lambda p: p - 1, lambda p: 1, _exchange)
PRICED = {**algorithms.ALGORITHMS, "p2p-whole": exchange}


class Operation(NamedTuple):
    """What a collective has to achieve, the plans that do so, and the formulas of their cost."""

    claim: Claim
    algorithms: dict[str, Algorithm]
    costs: dict[str, Cost]


OPERATIONS = {
    "all-reduce": Operation(verify.ALL_REDUCE, PRICED, textbook.ALL_REDUCE),
    "reduce-scatter": Operation(
        verify.REDUCE_SCATTER, algorithms.REDUCE_SCATTERS, textbook.REDUCE_SCATTER
    ),
    "all-gather": Operation(verify.ALL_GATHER, algorithms.ALL_GATHERS, textbook.ALL_GATHER),
    "broadcast": Operation(verify.BROADCAST, algorithms.BROADCASTS, textbook.BROADCAST),
    "reduce": Operation(verify.REDUCE, algorithms.REDUCES, textbook.REDUCE),
}


class Spread(NamedTuple):
    """The minimum, mean and maximum of one figure over all ranks."""

    least: float
    mean: float
    most: float


class Figure(NamedTuple):
    """A formula and its value; `why` is the reason where it is a difference."""

    formula: str
    seconds: float
    why: str = ""


class Outcome(NamedTuple):
    """The simulated cost of one plan, beside what its formulas give."""

    operation: str
    algorithm: str
    ranks: int
    nbytes: float
    network: Network
    seconds: float
    rounds: int
    sent: Spread  # bytes
    messages: Spread
    proved: range | None  # numbers of ranks for which an algorithm of the user's was proved
    textbook: Figure | None
    plan: Figure | None
    differences: tuple[Figure, ...]


def plan(operation: str, name: str, network: Network) -> Algorithm:
    """The plan of that name; `hierarchical` follows the nodes of the network.

    An algorithm of the user's is proved first.
    """
    if user_code.is_named(name):
        return lookup.proven(name, lookup.MANY, OPERATIONS[operation].claim, operation)
    if name == "hierarchical" and network.inner is not None:
        return algorithms.hierarchical(network.per_node)
    return OPERATIONS[operation].algorithms[name]


def names(operation: str, algorithm: str) -> list[str]:
    """The names of the algorithms selected: some with commas, or `all` of the operation."""
    known = list(OPERATIONS[operation].algorithms)
    if algorithm == "all":
        return known
    chosen = list(dict.fromkeys(algorithm.split(",")))
    for unknown in [n for n in chosen if n not in known and not user_code.is_named(n)]:
        raise ValueError(
            f"algorithm {unknown!r} of {operation} is not one of {', '.join(known)}, and not "
            "package.module:NAME; all shows them side by side"
        )
    return chosen


def network(
    alpha: float,
    beta: float,
    gamma: float = 0.0,
    per_node: int | None = None,
    inner_alpha: float | None = None,
    inner_beta: float | None = None,
) -> Network:
    """A network of one level, or of two where the link inside a node is given."""
    for name, value in (("alpha", alpha), ("beta", beta), ("gamma", gamma)):
        _check_value(name, value)
    if per_node is None and inner_alpha is None and inner_beta is None:
        return Network(Link(alpha, beta), gamma)
    if per_node is None or inner_alpha is None or inner_beta is None:
        raise ValueError(
            f"two levels need per-node, inner-alpha and inner-beta, got {per_node}, "
            f"{inner_alpha} and {inner_beta}: give the missing ones or leave out all three"
        )
    _check_value("inner-alpha", inner_alpha)
    _check_value("inner-beta", inner_beta)
    _check_count("per-node", per_node)
    return Network(Link(alpha, beta), gamma, Link(inner_alpha, inner_beta), per_node)


def simulate(operation: str, algorithm: str, ranks: int, nbytes: float, on: Network) -> Outcome:
    """Price one plan; raises ValueError for numbers out of range."""
    _check_count("ranks", ranks)
    _check_value("bytes", nbytes)
    paid = price(plan(operation, algorithm, on), ranks, nbytes, on)
    cost = _cost(operation, algorithm, on)
    values = letters(ranks, nbytes, on, 2 if on.inner is None else on.per_node)

    def figure(formula: str, why: str = "") -> Figure:
        return Figure(formula, evaluate(formula, values), why)

    return Outcome(
        operation=operation,
        algorithm=algorithm,
        ranks=ranks,
        nbytes=nbytes,
        network=on,
        seconds=paid.seconds,
        rounds=paid.rounds,
        sent=_spread(paid.sent),
        messages=_spread(paid.messages),
        proved=lookup.MANY if user_code.is_named(algorithm) else None,
        textbook=figure(cost.textbook) if cost and cost.textbook else None,
        plan=figure(cost.plan) if cost else None,
        differences=tuple(figure(*d) for d in cost.differences) if cost else (),
    )


def _cost(operation: str, algorithm: str, on: Network) -> Cost | None:
    """The formulas; on two levels only the plan that follows the nodes has one."""
    if on.inner is not None and algorithm != "hierarchical":
        return None
    return OPERATIONS[operation].costs.get(algorithm)


def _spread(a: NDArray[np.float64] | NDArray[np.int_]) -> Spread:
    return Spread(a.min().item(), a.mean().item(), a.max().item())


def _check_value(name: str, value: float) -> None:
    if not 0 <= value <= MAX_VALUE:
        raise ValueError(f"{name} {value} must be a number from 0 to {MAX_VALUE:g}")


def _check_count(name: str, value: int) -> None:
    if not 1 <= value <= MAX_RANKS:
        raise ValueError(f"{name} {value} must be from 1 to {MAX_RANKS}")
