"""How long the units of a model take on a rank: measured, or from their multiplications."""

import hashlib
from collections.abc import Sequence
from math import prod

from nnmpi.nn.graph import Graph, Node
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.division import work
from nnmpi.parallel.arrangement.partition import Unit
from nnmpi.parallel.planning.machine import Curve, Machine, MeasuredModel, UnitTimes


def signature(graph: Graph) -> str:
    """What two graphs have in common whose units take the same time."""
    rows = [
        (node.kind, sorted(map(str, node.settings.items())), [graph.edges[e].sample for e in ends])
        for node in graph.nodes
        for ends in (node.inputs, node.outputs)
    ]
    shapes = [(variable.shape, variable.is_trained) for variable in graph.variables]
    return hashlib.sha256(repr((rows, shapes)).encode()).hexdigest()[:16]


def unit_times(
    a: Arrangement, units: Sequence[Unit], rank: int, samples: int, machine: Machine
) -> list[UnitTimes]:
    """The seconds of each unit on a rank for a micro-batch of so many samples."""
    name, dtype, tp = signature(a.graph), str(a.dtype), a.mesh.axes["tp"]
    found = [m for m in machine.models if (m.graph, m.dtype) == (name, dtype)]
    of_parts = next((m for m in found if m.tp == tp and a.mesh.axes["cp"] == 1), None)
    if of_parts:
        return [_measured(of_parts, k, samples) for k in range(len(units))]
    of_whole = next((m for m in found if m.tp == 1), None)
    if of_whole:
        whole = [_measured(of_whole, k, samples) for k in range(len(units))]
    else:
        whole = [_estimated(a.graph, unit, samples, machine) for unit in units]
    shares = (_share(a, unit, rank) for unit in units)
    return [UnitTimes(*(share * t for t in one)) for share, one in zip(shares, whole, strict=True)]


def _measured(model: MeasuredModel, k: int, samples: int) -> UnitTimes:
    """The seconds of unit k, between those of the numbers of samples that were measured."""
    rows = [(n, units[k]) for n, units in sorted(model.units.items())]
    passes = zip(*(one for _, one in rows), strict=True)
    sizes = [n for n, _ in rows]
    curves = (Curve(tuple(zip(sizes, times, strict=True))) for times in passes)
    return UnitTimes(*(curve.at(samples) for curve in curves))


def _estimated(graph: Graph, unit: Unit, samples: int, machine: Machine) -> UnitTimes:
    """Each half of a backward pass multiplies as often as the forward pass."""
    seconds = samples * sum(work(graph, graph.nodes[k]) for k in unit.nodes) / machine.speed
    needs = any(graph.edges[e].requires_grad for e in graph.nodes[unit.nodes.start].inputs)
    return UnitTimes(seconds, seconds * needs, seconds * unit.is_trained)


def _share(a: Arrangement, unit: Unit, rank: int) -> float:
    """How much of the multiplications of a unit a rank does."""
    nodes = [a.graph.nodes[k] for k in unit.nodes]
    whole = sum(work(a.graph, node) for node in nodes)
    here = sum(
        _part(a, node, rank) * work(a.graph, node)
        for k, node in zip(unit.nodes, nodes, strict=True)
        if a.runs(k, rank)
    )
    return here / whole if whole else 1.0


def _part(a: Arrangement, node: Node, rank: int) -> float:
    """How much of a node a rank computes: of its weight, or of its output if it has none."""
    at = a.mesh.coordinates(rank)
    cuts = [a.sharding.variables[v] for v in node.variables if v in a.sharding.variables]
    if cuts:
        bounds, r = cuts[0].bounds, at["tp"]
        positions = a.sharding.sequences.share(1 << 20, at["cp"]) / (1 << 20)
        return positions * (bounds[r + 1] - bounds[r]) / bounds[-1]
    (e,) = node.outputs[:1]
    return prod(a.local_shape(e, 1, at)) / prod(a.graph.edges[e].shape(1))
