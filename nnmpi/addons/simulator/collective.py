"""Simulates the cost of each algorithm of a collective on a network."""

from collections.abc import Mapping
from contextlib import nullcontext
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnmpi.addons.simulator import textbook
from nnmpi.addons.simulator.network import Record, check_count, check_number, record
from nnmpi.addons.simulator.textbook import Formulas, evaluate, letter_values, typeset
from nnmpi.collectives import algorithms, verify
from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.price import Network, Price, in_memory, price
from nnmpi.collectives.step import Algorithm, one_chunk
from nnmpi.options import user_code

# Every rank sends its whole buffer to every other rank. It can be priced, but not run in place: a
# rank would send sums to which it has already added, so contributions would count twice.
exchange = algorithms.direct._replace(
    chunks=one_chunk,
    at=lambda t, r, p: algorithms.direct.at(t, r, p)._replace(send=(0, 1), recv=(0, 1)),
)
PRICED = {**algorithms.ALGORITHMS, "p2p-whole": exchange}


class Operation(NamedTuple):
    """A collective, with its algorithms whose cost can be simulated, and their cost formulas."""

    collective: Collective
    algorithms: Mapping[str, Algorithm]
    costs: dict[str, Formulas]


OPERATIONS = {
    c.text: Operation(c, PRICED if c is Collective.ALL_REDUCE else c.algorithms, costs)
    for c, costs in textbook.COSTS.items()
}


ON_TORUS = {"bucket": algorithms.bucket, "swing": algorithms.swinging}
"""The all-reduces that are made for the sides of a torus, if their ranks fill the torus."""


def plan(operation: str, name: str, ranks: int, network: Network) -> Algorithm:
    """Returns the algorithm with this name, adapted to the network: `hierarchical` to the ranks per
    node, and with messages within nodes; those of ON_TORUS to the sides of a torus. A user's is
    proved first."""
    if user_code.is_named(name):
        return verify.proven(name, verify.MANY, OPERATIONS[operation].collective)
    if name == "hierarchical" and network.inner is not None:
        return algorithms.hierarchical(network.per_node)
    shape = network.topology.shape if network.topology else ()
    if name in ON_TORUS and shape and prod(shape) == ranks:
        return ON_TORUS[name](shape)
    return OPERATIONS[operation].algorithms[name]


def names(operation: str, algorithm: str) -> list[str]:
    """Returns the algorithms of a comma-separated list; `all` selects all."""
    known = list(OPERATIONS[operation].algorithms)
    if algorithm == "all":
        return known
    chosen = list(dict.fromkeys(algorithm.split(",")))
    if "shared" in chosen:
        raise ValueError(
            "algorithm shared has no messages; --algorithm hierarchical --per-node Q prices sums "
            "in the memory of nodes of Q ranks"
        )
    for unknown in [n for n in chosen if n not in known and not user_code.is_named(n)]:
        raise ValueError(
            f"algorithm {unknown!r} of {operation} is neither one of {', '.join(known)} nor "
            "package.module:NAME; --algorithm all compares them"
        )
    return chosen


def simulate(operation: str, algorithm: str, ranks: int, nbytes: float, on: Network) -> Record:
    """Returns a record with the simulated cost of one algorithm, and its formulas; raises
    ValueError for numbers out of range. On two levels only `hierarchical` has formulas; on a
    topology, none has."""
    check_count("ranks", ranks)
    check_number("bytes", nbytes)
    if on.topology and ranks > on.topology.ranks:
        raise ValueError(
            f"{on.topology.text} has {on.topology.ranks:,} ranks, not {ranks:,}: take fewer ranks "
            "or a larger network"
        )
    chosen = plan(operation, algorithm, ranks, on)
    is_named = user_code.is_named(algorithm)
    # a user's algorithm is proved on fewer ranks, so it may still fail on this number
    with verify.naming(algorithm, operation, ranks) if is_named else nullcontext():
        if is_named:
            verify.check_sizes(chosen, ranks)
        paid = _price(algorithm, chosen, ranks, nbytes, on)
    cost = {
        "operation": operation,
        "algorithm": algorithm,
        "ranks": ranks,
        "bytes": nbytes,
        **record(on),
        "seconds": paid.seconds,
        "rounds": paid.rounds,
        "sent": _spread(paid.sent),
        "messages": _spread(paid.messages),
    }
    formulas = OPERATIONS[operation].costs.get(algorithm)
    if _is_through_memory(algorithm, ranks, on):
        formulas = textbook.THROUGH_MEMORY
    follows = on.inner is None or algorithm == "hierarchical"
    if formulas is None or on.topology or not follows:
        return {**cost, "textbook": None, "plan": None, "differences": []}
    values = letter_values(ranks, nbytes, on)

    def figure(formula: str) -> Record:
        return {"formula": typeset(formula), "seconds": evaluate(formula, values)}

    return {
        **cost,
        "textbook": figure(formulas.textbook) if formulas.textbook else None,
        "plan": figure(formulas.plan),
        "differences": [{**figure(f), "why": why} for f, why in formulas.differences.items()],
    }


def _is_through_memory(algorithm: str, ranks: int, on: Network) -> bool:
    """True if the ranks of a node first sum in shared memory, as in training, so that only one rank
    per node sends messages: for the algorithm `hierarchical`, if a node has several ranks."""
    return algorithm == "hierarchical" and on.inner is not None and min(ranks, on.per_node) > 1


def _price(name: str, chosen: Algorithm, ranks: int, nbytes: float, on: Network) -> Price:
    """Returns an algorithm's simulated cost for `nbytes` bytes on a network."""
    if not _is_through_memory(name, ranks, on):
        return price(chosen, ranks, nbytes, on)
    leaders = price(algorithms.leader_ring(on.per_node), ranks, nbytes, on)
    inside = in_memory(on, min(ranks, on.per_node), nbytes)
    return leaders._replace(seconds=inside + leaders.seconds)


def _spread(ranks: NDArray[np.float64] | NDArray[np.int_]) -> Record:
    """Returns a record with the minimum, mean and maximum of a figure that each rank has."""
    return {"least": ranks.min().item(), "mean": ranks.mean().item(), "most": ranks.max().item()}
