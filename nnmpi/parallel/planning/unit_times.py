"""How long the units of a model take on a rank: measured, or from their multiplications."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from math import ceil
from typing import NamedTuple, TypeAlias

from nnmpi.nn.graph import Graph, Node
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.division import work
from nnmpi.parallel.arrangement.partition import Unit, units
from nnmpi.parallel.planning.candidate import Candidate
from nnmpi.parallel.planning.machine import Curve, Machine, MeasuredModel, UnitTimes
from nnmpi.parallel.tensor.choices import cut_of_rows
from nnmpi.parallel.tensor.sharding import Sharding
from nnmpi.parallel.tensor.ways import OF_SAMPLES, SPATIAL


def signature(graph: Graph) -> str:
    """A hash that is the same for graphs whose units take the same time."""
    rows = [
        (node.kind, sorted(map(str, node.settings.items())), [graph.edges[e].sample for e in ends])
        for node in graph.nodes
        for ends in (node.inputs, node.outputs)
    ]
    shapes = [(variable.shape, variable.is_trained) for variable in graph.variables]
    return hashlib.sha256(repr((rows, shapes)).encode()).hexdigest()[:16]


CutKey: TypeAlias = tuple[int, int, bool, str]
"""Ranks along tp and cp, sequence parallelism, ways of layers: how units are cut."""


class UnitShare(NamedTuple):
    """How much of the multiplications of a unit the rank does that does most of them, and whether
    it does them on some of the samples, or on some rows of the images."""

    share: float
    by_samples: bool
    by_rows: bool


class ModelTimes:
    """The seconds of the units of a model on a machine; each is found once.

    units  of the graph, in their order
    """

    def __init__(self, graph: Graph, machine: Machine, dtype: str) -> None:
        self.units, self.graph, self.machine = units(graph), graph, machine
        name = signature(graph)
        alike = (m for m in machine.models if (m.graph, m.dtype) == (name, dtype))
        self._measured = {m.tp: m for m in alike}
        self._found = dict[tuple[CutKey, int], list[UnitTimes]]()
        self._whole = dict[int, list[UnitTimes]]()
        self._shares = dict[CutKey, list[UnitShare]]()

    @property
    def is_measured(self) -> bool:
        """Whether its units were measured; else their times are estimated."""
        return 1 in self._measured

    @cached_property
    def crossing(self) -> list[int]:
        """How many numbers of a sample stages exchange if one begins with each unit."""
        firsts = (self.graph.crossing(unit.nodes.start) for unit in self.units)
        return [sum(self.graph.edges[e].numbers for e in edges) for edges in firsts]

    def of(self, sharding: Sharding, by: Config | Candidate, samples: int) -> list[UnitTimes]:
        """The times of units for a micro-batch of so many samples, on the slowest rank along tp
        and cp.

        `sharding` is how these options cut the model.
        """
        way = sharding.ranks, sharding.sequences.ranks, by.sequence_parallel, by.layout or ""
        if (way, samples) not in self._found:
            if way not in self._shares:
                self._shares[way] = shares(self.graph, self.units, sharding)
            self._found[way, samples] = self._of(self._shares[way], way, samples)
        return self._found[way, samples]

    def _of(self, parts: Sequence[UnitShare], way: CutKey, samples: int) -> list[UnitTimes]:
        """The times of parts of units: as measured, of fewer samples, or a share of the whole."""
        tp, cp, _, layout = way
        whole, few = self.whole(samples), self.whole(ceil(samples / tp))
        each = zip(parts, whole, strict=True)
        cut = shared = [UnitTimes(*(part.share * t for t in times)) for part, times in each]
        if cp == 1 and tp in self._measured:
            cut = _measured(self._measured[tp], samples)
        if not layout:
            return cut
        rows = zip(parts, few, shared, cut, strict=True)
        return [
            of_few if part.by_samples else of_rows if part.by_rows or part.share == 1 else of_part
            for part, of_few, of_rows, of_part in rows
        ]

    def whole(self, samples: int) -> list[UnitTimes]:
        """On a rank that computes all of each unit."""
        if samples not in self._whole:
            self._whole[samples] = self._of_all(samples)
        return self._whole[samples]

    def _of_all(self, samples: int) -> list[UnitTimes]:
        if self.is_measured:
            return _measured(self._measured[1], samples)
        return [_estimated(self.graph, unit, samples, self.machine.speed) for unit in self.units]


def _measured(model: MeasuredModel, samples: int) -> list[UnitTimes]:
    """Between the numbers of samples that were measured."""
    sizes = sorted(model.units)
    found = []
    for rows in zip(*(model.units[n] for n in sizes), strict=True):
        passes = zip(*rows, strict=True)
        curves = (Curve(tuple(zip(sizes, times, strict=True))) for times in passes)
        found.append(UnitTimes(*(curve.at(samples) for curve in curves)))
    return found


def _estimated(graph: Graph, unit: Unit, samples: int, speed: float) -> UnitTimes:
    """Each half of a backward pass multiplies as often as the forward pass."""
    seconds = samples * sum(work(graph, graph.nodes[k]) for k in unit.nodes) / speed
    needs = any(graph.edges[e].requires_grad for e in graph.nodes[unit.nodes.start].inputs)
    return UnitTimes(seconds, seconds * needs, seconds * unit.is_trained)


# ---- how much of a unit a rank computes


def shares(graph: Graph, units: Sequence[Unit], sharding: Sharding) -> list[UnitShare]:
    """The part of each unit that a rank computes."""
    ranks, branches, found = range(sharding.ranks), sharding.branches, list[UnitShare]()
    positions = sharding.sequences
    of_positions = max(map(positions.count, range(positions.ranks))) / max(positions.length, 1)
    ways = sharding.ways
    for unit in units:
        nodes = [graph.nodes[k] for k in unit.nodes]
        parts = [
            (k, work(graph, node), _part(sharding, ways, node, of_positions))
            for k, node in zip(unit.nodes, nodes, strict=True)
        ]
        whole = sum(all_of_it for _, all_of_it, _ in parts)
        here = max(
            sum(part * of for k, of, part in parts if branches.runs(k, rank))
            for rank in (ranks if branches.nodes else ranks[:1])
        )
        by_samples = all(_is_sampled(sharding, ways, node) for node in nodes)
        by_rows = all(_is_by_rows(graph, sharding, ways, node) for node in nodes)
        found.append(UnitShare(here / whole if whole else 1.0, by_samples, by_rows))
    return found


def _part(sharding: Sharding, ways: Mapping[str, str], node: Node, of_positions: float) -> float:
    """The largest part of a node that a rank computes: of its weight, or of its output if it has
    none, and of the positions of a sequence."""
    cut = _cut_of(sharding, ways, node)
    part = 1.0 if cut is None else max(b - a for a, b in pairwise(cut)) / cut[-1]
    if node.outputs and node.outputs[0] in sharding.sequences.axes:
        part *= of_positions
    return part


def _cut_of(sharding: Sharding, ways: Mapping[str, str], node: Node) -> Sequence[int] | None:
    """The bounds of the parts of a node along tp."""
    if _is_sampled(sharding, ways, node):
        return range(sharding.ranks + 1)
    if ways.get(node.name) == SPATIAL.how:
        return next(layer.bounds for layer in sharding.layers if layer.path == node.name)
    outputs = (sharding.edges[e] for e in node.outputs[:1] if e in sharding.edges)
    weights = (sharding.variables[v] for v in node.variables if v in sharding.variables)
    return next((cut.bounds for cut in chain(weights, outputs)), None)


def _is_sampled(sharding: Sharding, ways: Mapping[str, str], node: Node) -> bool:
    """Whether each rank along tp computes a node on some of the samples."""
    if node.name in ways:
        return ways[node.name] == "samples"
    return OF_SAMPLES in [sharding.edges.get(e) for e in node.outputs[:1]]


def _is_by_rows(graph: Graph, sharding: Sharding, ways: Mapping[str, str], node: Node) -> bool:
    """Whether each rank along tp computes a node on some rows of the images."""
    if node.name in ways:
        return ways[node.name] == SPATIAL.how
    cuts = ((sharding.edges.get(e), graph.edges[e]) for e in node.outputs[:1])
    return any(cut and cut == cut_of_rows(edge, sharding.ranks) for cut, edge in cuts)
