"""A collective on paper: its plans by name, and what each would cost."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnmpi.collectives import algorithms, verify
from nnmpi.collectives.price import Link, Network, price
from nnmpi.collectives.step import Algorithm, Ranks, Step
from nnmpi.collectives.verify import Claim
from nnmpi.sim import textbook
from nnmpi.sim.formula import Cost, Formula, Letters, letters

MOST_RANKS = 10_000_000
MOST = 1e30  # of bytes and of seconds, so that no product of them overflows


def _exchange(t: int, r: Ranks, p: Ranks) -> Step:
    return Step((r + t + 1) % p, (0, 1), (r - t - 1) % p, (0, 1), True)


# Every rank sends its whole buffer to each other. It is here to be priced: carried out in place it
# would add what it has added before, since no buffer is kept for what is still to be sent.
exchange = Algorithm(lambda p: p - 1, lambda p: 1, _exchange)
PRICED = {**algorithms.ALGORITHMS, "p2p-whole": exchange}


class Operation(NamedTuple):
    """What a collective has to do, the plans that do it, and their formulas."""

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
    """One figure a rank: the least of them, the mean and the most."""

    least: float
    mean: float
    most: float


class Figure(NamedTuple):
    """A formula and what it comes to, with the reason where it is a difference."""

    formula: str
    seconds: float
    why: str = ""


class Outcome(NamedTuple):
    """What the simulation of one plan says, beside what formulas say."""

    operation: str
    algorithm: str
    ranks: int
    nbytes: float
    network: Network
    seconds: float
    rounds: int
    sent: Spread  # bytes
    messages: Spread
    textbook: Figure | None
    plan: Figure | None
    differences: tuple[Figure, ...]


def plans(operation: str, network: Network) -> dict[str, Algorithm]:
    """The plans of an operation by name; `hierarchical` follows the nodes of the network."""
    named = OPERATIONS[operation].algorithms
    if network.inner is None or "hierarchical" not in named:
        return named
    return {**named, "hierarchical": algorithms.hierarchical(network.per_node)}


def names(operation: str, algorithm: str) -> list[str]:
    """The algorithms meant: one, or all of the operation."""
    known = list(OPERATIONS[operation].algorithms)
    if algorithm == "all":
        return known
    if algorithm not in known:
        raise ValueError(
            f"algorithm {algorithm!r} of {operation} is not one of {', '.join(known)}; "
            "all shows them side by side"
        )
    return [algorithm]


def network(
    alpha: float,
    beta: float,
    gamma: float = 0.0,
    per_node: int | None = None,
    inner_alpha: float | None = None,
    inner_beta: float | None = None,
) -> Network:
    """One level, or two if it is said how the ranks of a node are joined."""
    for name, value in (("alpha", alpha), ("beta", beta), ("gamma", gamma)):
        _within(name, value)
    if per_node is None and inner_alpha is None and inner_beta is None:
        return Network(Link(alpha, beta), gamma)
    if per_node is None or inner_alpha is None or inner_beta is None:
        raise ValueError(
            f"two levels need per-node, inner-alpha and inner-beta together, not {per_node}, "
            f"{inner_alpha} and {inner_beta}; give the missing ones or leave out all three"
        )
    _within("inner-alpha", inner_alpha)
    _within("inner-beta", inner_beta)
    _at_most("per-node", per_node, MOST_RANKS)
    return Network(Link(alpha, beta), gamma, Link(inner_alpha, inner_beta), per_node)


def simulate(operation: str, algorithm: str, ranks: int, nbytes: float, on: Network) -> Outcome:
    """What one plan takes; raises ValueError for numbers that mean nothing."""
    _at_most("ranks", ranks, MOST_RANKS)
    _within("bytes", nbytes)
    paid = price(plans(operation, on)[algorithm], ranks, nbytes, on)
    cost = _cost(operation, algorithm, on)
    x = letters(ranks, nbytes, on, 2 if on.inner is None else on.per_node)
    differences = cost.differences if cost else ()
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
        textbook=_figure(cost.textbook, x) if cost and cost.textbook else None,
        plan=_figure(cost.plan, x) if cost else None,
        differences=tuple(_figure(d.formula, x, d.why) for d in differences),
    )


def _cost(operation: str, algorithm: str, on: Network) -> Cost | None:
    """The formulas; with two levels there is one only for the plan that follows them."""
    if on.inner is not None and algorithm != "hierarchical":
        return None
    return OPERATIONS[operation].costs[algorithm]


def _figure(formula: Formula, x: Letters, why: str = "") -> Figure:
    return Figure(formula.text, formula.seconds(x), why)


def _spread(a: NDArray[np.float64] | NDArray[np.int_]) -> Spread:
    return Spread(a.min().item(), a.mean().item(), a.max().item())


def _within(name: str, value: float) -> None:
    if not 0 <= value <= MOST:
        raise ValueError(f"{name} {value} must be a number from 0 to {MOST:g}")


def _at_most(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise ValueError(f"{name} {value} must be from 1 to {most}")
