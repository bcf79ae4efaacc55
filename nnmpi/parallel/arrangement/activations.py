"""What a rank keeps of activations until their backward pass, in bytes, from the graph."""

from collections.abc import Iterator

import numpy as np

from nnmpi.kernels.conv import MIN_CHANNELS
from nnmpi.kernels.im2col import NARROW
from nnmpi.nn.graph import Kept
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.program import micro_batches, ops
from nnmpi.parallel.arrangement.traffic import LOSS_NUMBERS
from nnmpi.schedules.op import Kind

LABELS = 24
"""Bytes of a label, of its place among the classes of a rank, and of the number of its sample."""


def activations(a: Arrangement, rank: int, batch: int) -> int:
    """The most that a rank keeps at a time in a step over a batch of so many samples."""
    sizes = micro_batches(a, rank, batch)
    if a.strategy == "pipedream":  # as many batches are on their way as there are stages
        sizes *= len(a.stages)
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
    edges, besides = set[int](), 0.0
    for kept in run_together(a, a.stages[stage]):
        inside = {e for k in kept.nodes for e in graph.nodes[k].outputs}
        last = set(graph.nodes[kept.nodes[-1]].outputs)
        if any(graph.edges[e].requires_grad for e in last):
            edges |= {e for k in kept.nodes for e in graph.nodes[k].inputs} - inside | last
            besides += _besides(a, kept, samples, tp)
    if stage == len(a.stages) - 1:
        besides += _of_loss(a, samples, tp)
    memories = {graph.edges[e].memory for e in edges}
    return sum(a.local_bytes(e, samples, tp) for e in memories) + besides


def _besides(a: Arrangement, kept: Kept, samples: int, tp: int) -> float:
    """What nodes keep besides their edges: as much of it is here as of what it is made from.

    Products keep what they have made of their input; what runs with them keeps masks of the output.
    A product that gathers its output keeps its own part of it, too.
    """
    k = kept.nodes[0]
    first, last = a.graph.nodes[k], a.graph.nodes[kept.nodes[-1]]
    alone = next(one for one in a.graph.kept if one.nodes == range(k, k + 1))
    before = alone.bytes(samples)
    behind = kept.bytes(samples) - before
    layer = a.sharding.layer_of(k)
    share, own = _share(a, last.outputs[0], tp), 0.0
    if layer is not None and layer.gathers:
        share = (layer.bounds[tp + 1] - layer.bounds[tp]) / layer.bounds[-1]
        own = share * a.local_bytes(last.outputs[0], samples, tp)
    if first.kind == "Conv2d" and layer is not None and layer.how == "row":
        before = _of_sum(a, k, before, samples, tp)
    elif first.inputs:
        before *= _share(a, first.inputs[0], tp)
    return before + behind * share + own


def _of_sum(a: Arrangement, k: int, whole: float, samples: int, tp: int) -> float:
    """What a convolution of some input channels keeps, if it keeps so much of all of them.

    It may take another algorithm than that of all channels: one of few channels keeps the columns
    that it gathers, and the padded images.
    """
    node, graph = a.graph.nodes[k], a.graph
    channels = a.local_shape(node.inputs[0], 1, tp)[1]
    of_all = graph.edges[node.inputs[0]].sample[0]
    if _algorithm(a, channels) == _algorithm(a, of_all):
        return whole * channels / of_all
    if channels > NARROW:
        return 0.0
    weight = next(graph.variables[v] for v in node.variables if len(graph.variables[v].shape) == 4)
    kernel = weight.shape[2:]
    columns = np.prod(kernel) * np.prod(graph.edges[node.outputs[0]].sample[1:])
    padded = np.prod(np.add(graph.edges[node.inputs[0]].sample[1:], kernel) - 1)
    return float((columns + padded) * channels * samples * a.dtype.itemsize)


def _algorithm(a: Arrangement, channels: int) -> str:
    """Which algorithm a 3x3 convolution of so many input channels takes (see `kernels/conv.py`)."""
    if channels >= MIN_CHANNELS and a.config.dtype == "float32":
        return "winograd"
    return "narrow" if channels <= NARROW else "wide"


def _of_loss(a: Arrangement, samples: int, tp: int) -> float:
    """What the loss keeps; on sharded classes its part, and what all ranks have told each other."""
    kept = a.graph.loss.bytes(samples)
    if a.sharding.output is None:
        return kept
    told = LOSS_NUMBERS * a.mesh.axes["tp"] * max(a.dtype.itemsize, 4) + LABELS
    return kept * _share(a, a.graph.outputs[0], tp) + told * samples


def entering(a: Arrangement, stage: int, samples: int, rank: int) -> float:
    """What comes into a stage: what is left of a micro-batch that is computed again."""
    tp = a.mesh.coordinates(rank)["tp"]
    return sum(a.local_bytes(e, samples, tp) for e in a.crossing(stage))


def run_together(a: Arrangement, nodes: range) -> Iterator[Kept]:
    """The nodes of a stage, those that run as one op together.

    A convolution of some input channels is summed before what follows it.
    """
    widest: dict[int, Kept] = {}
    for kept in sorted(a.graph.kept, key=lambda kept: len(kept.nodes)):
        first, layer = kept.nodes[0], a.sharding.layer_of(kept.nodes[0])
        is_sum = layer is not None and layer.how == "row" and layer.kind != "Linear"
        is_inside = nodes.start <= first and kept.nodes.stop <= nodes.stop
        if is_inside and not (is_sum and len(kept.nodes) > 1):
            widest[first] = kept
    k = nodes.start
    while k < nodes.stop:
        yield widest[k]
        k = widest[k].nodes.stop


def _share(a: Arrangement, e: int, tp: int) -> float:
    """How much of an edge is on a rank along tp."""
    return float(np.prod(a.local_shape(e, 1, tp)) / max(a.graph.edges[e].numbers, 1))
