"""What a rank keeps of activations until their backward pass, in bytes, from the graph."""

from collections.abc import Iterator

import numpy as np

from nnmpi.nn.graph import Graph, Kept
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.program import micro_batches, ops
from nnmpi.schedules import Kind


def activations(a: Arrangement, rank: int, batch: int) -> int:
    """The most that a rank keeps at a time in a step over a batch of so many samples."""
    sizes = micro_batches(a, rank, batch)
    now = most = 0.0
    recomputed = a.config.recompute
    for op in ops(a, rank, len(sizes)):
        n, s = sizes[op.micro] if op.micro >= 0 else 0, op.stage
        whole = of_stage(a, s, n, rank) if s >= 0 else 0.0
        if op.kind is Kind.F:
            now += entering(a, s, n, rank) if recomputed else whole
        elif op.kind is Kind.RECOMPUTE:
            now += whole - entering(a, s, n, rank)
        most = max(most, now)
        if op.kind in (Kind.B, Kind.W):
            now -= whole
    return round(most)


def of_stage(a: Arrangement, stage: int, samples: int, rank: int) -> float:
    """What a stage keeps of a micro-batch: the edges that its nodes take and return, each memory
    once, and what nodes keep besides."""
    graph, tp = a.graph, a.mesh.coordinates(rank)["tp"]
    nodes = a.stages[stage]
    edges, besides = set[int](), 0.0
    for kept in run_together(graph, nodes):
        own = range(kept.first, kept.stop)
        inside = {e for k in own for e in graph.nodes[k].outputs}
        last = set(graph.nodes[kept.stop - 1].outputs)
        if not any(graph.edges[e].requires_grad for e in last):
            continue
        edges |= {e for k in own for e in graph.nodes[k].inputs} - inside | last
        besides += (kept.constant + kept.per_sample * samples) * _share(a, kept, tp)
    if stage == len(a.stages) - 1:
        besides += graph.loss.constant + graph.loss.per_sample * samples
    memories = {graph.edges[e].memory for e in edges}
    return sum(_bytes_of(a, e, samples, tp) for e in memories) + besides


def entering(a: Arrangement, stage: int, samples: int, rank: int) -> float:
    """What comes into a stage: what is left of a micro-batch that is computed again."""
    tp = a.mesh.coordinates(rank)["tp"]
    edges = a.crossing(stage) if stage else a.graph.inputs
    return sum(_bytes_of(a, e, samples, tp) for e in edges)


def run_together(graph: Graph, nodes: range) -> Iterator[Kept]:
    """The nodes of a stage, those that run as one op together."""
    widest: dict[int, Kept] = {}
    for kept in graph.kept:
        inside = nodes.start <= kept.first and kept.stop <= nodes.stop
        if inside and (kept.first not in widest or kept.stop > widest[kept.first].stop):
            widest[kept.first] = kept
    k = nodes.start
    while k < nodes.stop:
        yield widest[k]
        k = widest[k].stop


def _bytes_of(a: Arrangement, e: int, samples: int, tp: int) -> int:
    numbers = int(np.prod(a.local_shape(e, samples, tp)))
    return numbers * np.dtype(a.graph.edges[e].dtype).itemsize


def _share(a: Arrangement, kept: Kept, tp: int) -> float:
    """How much of what nodes keep is on a rank along tp: as much as of what they take or return."""
    nodes = a.graph.nodes[kept.first : kept.stop]
    edges = [e for node in nodes for e in (*node.inputs, *node.outputs)]
    shares = [np.prod(a.local_shape(e, 1, tp)) / max(a.graph.edges[e].numbers, 1) for e in edges]
    return float(min(shares, default=1.0))
