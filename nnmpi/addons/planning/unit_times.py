"""The seconds of a model's units on a rank: measured, or estimated."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from math import ceil
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.addons.planning.candidate import Candidate
from nnmpi.addons.planning.machine import Curve, Machine, MeasuredModel
from nnmpi.addons.transformer.context.sequence_cut import sequences_of
from nnmpi.nn.graph import Graph, Node
from nnmpi.nn.recompute import recomputed_with
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.division import work
from nnmpi.parallel.arrangement.partition import Unit, units
from nnmpi.parallel.tensor.sharding import Sharding
from nnmpi.parallel.tensor.ways import LAYOUT_AXES, SAMPLE_CUT, axis_of_way


def signature(graph: Graph) -> str:
    """Returns a hash of a model's graph that is equal for graphs whose parts take the same time."""
    rows = [
        (node.kind, sorted(map(str, node.settings.items())), [graph.edges[e].sample for e in ends])
        for node in graph.nodes
        for ends in (node.inputs, node.outputs)
    ]
    shapes = [(variable.shape, variable.is_trained) for variable in graph.variables]
    return hashlib.sha256(repr((rows, shapes)).encode()).hexdigest()[:16]


CutKey: TypeAlias = tuple[int, int, bool, str]
"""How units are sharded: tp, cp, sequence parallelism, --layout."""


class UnitShares(NamedTuple):
    """How ranks divide each unit of a model; arrays with an element per unit.

    share       the share of its multiplications that the busiest rank does
    by_samples  whether ranks divide it by samples
    by_layout   whether ranks divide it along an axis that only --layout cuts, such as image rows"""

    share: np.ndarray
    by_samples: np.ndarray
    by_layout: np.ndarray


class ModelTimes:
    """Computes the seconds of a model's units on a machine, as arrays (units, 3): forward pass,
    gradient of the input, gradients of parameters. Results are cached."""

    def __init__(self, graph: Graph, machine: Machine, dtype: str) -> None:
        self.units, self.graph, self.machine = units(graph), graph, machine
        name = signature(graph)
        alike = (m for m in machine.models if (m.graph, m.dtype) == (name, dtype))
        self._measured = {m.tp: m for m in alike}
        self._of_cuts = dict[tuple[CutKey, int], np.ndarray]()
        self._whole = dict[int, np.ndarray]()
        self._shares = dict[CutKey, UnitShares]()
        self._again = dict[str, np.ndarray]()  # 1 for units that are recomputed

    @property
    def is_measured(self) -> bool:
        """True if this model's parts were measured on the machine, not estimated."""
        return 1 in self._measured

    @cached_property
    def crossing(self) -> list[int]:
        """For each unit, the elements per sample that cross if a stage begins there."""
        crossings = self.graph.crossings()
        firsts = (crossings[unit.nodes.start] for unit in self.units)
        return [sum(self.graph.edges[e].elements for e in edges) for edges in firsts]

    def of(self, sharding: Sharding, by: Config | Candidate, samples: int) -> np.ndarray:
        """Returns the seconds of units, (units, 3), on the slowest rank along tp and cp. Backward
        passes include forward passes that they recompute. `sharding` is how the options in `by`
        divide the model."""
        times = self._once(sharding, by, samples)
        if by.recompute not in self._again:
            nodes = (self.graph.nodes[unit.nodes.start] for unit in self.units)
            again = [bool(recomputed_with(node, by.recompute)) for node in nodes]
            self._again[by.recompute] = np.array(again, float)
        return times + np.outer(self._again[by.recompute] * times[:, 0], (0, 1, 0))

    def _once(self, sharding: Sharding, by: Config | Candidate, samples: int) -> np.ndarray:
        """Returns the seconds of each unit without recomputation, on the slowest rank."""
        way = sharding.ranks, sequences_of(sharding).ranks, by.sequence_parallel, by.layout or ""
        if (way, samples) not in self._of_cuts:
            if way not in self._shares:
                self._shares[way] = shares(self.graph, self.units, sharding)
            self._of_cuts[way, samples] = self._of(self._shares[way], way, samples)
        return self._of_cuts[way, samples]

    def _of(self, parts: UnitShares, way: CutKey, samples: int) -> np.ndarray:
        """Returns the seconds of a rank's part of each unit, shape (units, 3). A unit divided by
        samples takes those of the whole unit on fewer samples; others take times measured with as
        many ranks along tp, if there are any; else the rank's share of the whole unit."""
        tp, cp, _, layout = way
        shared: np.ndarray = parts.share[:, None] * self.whole(samples)
        cut = shared
        if cp == 1 and tp in self._measured:
            cut = _measured(self._measured[tp], samples)
        if not layout:
            return cut
        is_shared = (parts.by_layout | (parts.share == 1))[:, None]
        few = self.whole(ceil(samples / tp))
        return np.where(parts.by_samples[:, None], few, np.where(is_shared, shared, cut))

    def whole(self, samples: int) -> np.ndarray:
        """Returns the seconds of all units, (units, 3), on a rank that computes them whole."""
        if samples not in self._whole:
            measured = self._measured.get(1)
            estimated = samples * self._works / self.machine.speed
            self._whole[samples] = _measured(measured, samples) if measured else estimated
        return self._whole[samples]

    @cached_property
    def _works(self) -> np.ndarray:
        """The multiplications per sample of each unit, shape (units, 3): of the forward pass and,
        where needed, as many for each kind of gradients."""
        graph = self.graph
        works = [float(sum(work(graph, graph.nodes[k]) for k in unit.nodes)) for unit in self.units]
        passes = [(1, _needs_gradient(graph, unit), unit.is_trained) for unit in self.units]
        multiplications: np.ndarray = np.array(works)[:, None] * np.array(passes)
        return multiplications


def _needs_gradient(graph: Graph, unit: Unit) -> bool:
    """True if the input of a unit requires a gradient."""
    return any(graph.edges[e].requires_grad for e in graph.nodes[unit.nodes.start].inputs)


def _measured(model: MeasuredModel, samples: int) -> np.ndarray:
    """Returns measured seconds of units, interpolated for so many samples."""
    sizes = sorted(model.units)
    rows = zip(*(model.units[n] for n in sizes), strict=True)
    return np.array(
        [
            [
                Curve(tuple(zip(sizes, times, strict=True))).at(samples)
                for times in zip(*row, strict=True)
            ]
            for row in rows
        ]
    )


# ---- how much of a unit a rank computes


def shares(graph: Graph, units: Sequence[Unit], sharding: Sharding) -> UnitShares:
    """Returns the share of each unit that the busiest rank computes."""
    ranks, owned, rows = range(sharding.ranks), sharding.owned, list[tuple[Any, ...]]()
    positions = sequences_of(sharding)
    of_positions = max(map(positions.count, range(positions.ranks))) / max(positions.length, 1)
    ways = sharding.ways
    for unit in units:
        nodes = [graph.nodes[k] for k in unit.nodes]
        parts = [
            (k, work(graph, node), _part(sharding, ways, node, of_positions))
            for k, node in zip(unit.nodes, nodes, strict=True)
        ]
        total = sum(of_node for _, of_node, _ in parts)
        most = max(
            sum(part * of for k, of, part in parts if owned.runs(k, rank))
            for rank in (ranks if owned.nodes else ranks[:1])
        )
        by_samples = all(_is_sampled(sharding, ways, node) for node in nodes)
        of_layout = all(_is_by_layout(graph, sharding, ways, node) for node in nodes)
        rows.append((most / total if total else 1.0, by_samples, of_layout))
    return UnitShares(*map(np.array, zip(*rows, strict=True)))


def parts_of_nodes(sharding: Sharding, nodes: Sequence[Node]) -> list[float]:
    """Returns, for each node, the share from 0 to 1 of its work that the busiest rank does."""
    positions, ways = sequences_of(sharding), sharding.ways
    of_positions = max(map(positions.count, range(positions.ranks))) / max(positions.length, 1)
    return [_part(sharding, ways, node, of_positions) for node in nodes]


def _part(sharding: Sharding, ways: Mapping[str, str], node: Node, of_positions: float) -> float:
    """Returns the share of a node's work on the busiest rank: of its weight, or of the output if
    there is none, times its share of the positions of a sequence."""
    cut = _cut_of(sharding, ways, node)
    part = 1.0 if cut is None else max(b - a for a, b in pairwise(cut)) / cut[-1]
    if node.outputs and node.outputs[0] in sequences_of(sharding).axes:
        part *= of_positions
    return part


def _cut_of(sharding: Sharding, ways: Mapping[str, str], node: Node) -> Sequence[int] | None:
    """Returns the bounds at which ranks along tp divide a node's weight, or its output if the
    weight is whole; None if neither is divided."""
    if _is_sampled(sharding, ways, node):
        return range(sharding.ranks + 1)
    if axis_of_way(ways.get(node.name, "")):
        return next(layer.bounds for layer in sharding.layers if layer.path == node.name)
    outputs = (sharding.edges[e] for e in node.outputs[:1] if e in sharding.edges)
    weights = (sharding.variables[v] for v in node.variables if v in sharding.variables)
    return next((cut.bounds for cut in chain(weights, outputs)), None)


def _is_sampled(sharding: Sharding, ways: Mapping[str, str], node: Node) -> bool:
    """True if each rank along tp computes a node for some samples of a micro-batch."""
    if node.name in ways:
        return ways[node.name] == "samples"
    return SAMPLE_CUT in [sharding.edges.get(e) for e in node.outputs[:1]]


def _is_by_layout(graph: Graph, sharding: Sharding, ways: Mapping[str, str], node: Node) -> bool:
    """True if tp divides a node along an axis that only --layout cuts, such as image rows."""
    if node.name in ways:
        return axis_of_way(ways[node.name]) is not None
    cuts = ((sharding.edges.get(e), graph.edges[e]) for e in node.outputs[:1])
    return any(
        cut and cut == marker.cut(edge, sharding.ranks)
        for cut, edge in cuts
        for marker in LAYOUT_AXES.rows()
    )
