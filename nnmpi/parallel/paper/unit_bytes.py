"""The bytes that each unit of a model keeps for its backward pass, by its recorded passes.

A border between units is crossed by one tensor. If a vjp reads it, it counts with the unit behind
the border: backward passes need it there first. If none does, nobody keeps it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from nnmpi.nn.graph import Graph
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.division import Division, divide
from nnmpi.parallel.arrangement.partition import Unit
from nnmpi.parallel.paper.activations import pass_bytes


def divided(graph: Graph, groups: Sequence[Sequence[Unit]]) -> Division:
    """The model in stages of units that stay together, all on one rank."""
    ends = (*accumulate(map(len, groups)),)[:-1]
    return divide(graph, [unit for group in groups for unit in group], ends, 1)


def kept_by_units(
    a: Arrangement, groups: Sequence[Sequence[Unit]], samples: int, rank: int
) -> list[tuple[int, int]]:
    """(all that a unit keeps, of it its input) for each; the samples count nowhere."""
    in_units = replace(a, division=divided(a.graph, groups))
    kept, out_read = list[tuple[int, int]](), 0
    for i in range(len(groups)):
        unit = pass_bytes(in_units, rank, i, samples)
        enters = unit.enters if i else 0
        kept.append((max(unit.inside + (max(unit.read, out_read) if i else 0), enters), enters))
        out_read = unit.out_read
    return kept
