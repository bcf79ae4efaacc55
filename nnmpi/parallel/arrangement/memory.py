"""What a rank holds between steps, and of activations in a step, in bytes, by formula.

What it holds of parameters that are trained is in `store_kinds.py`, by kinds of stores.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from nnmpi.comm.allreduce.dispatch import power_of_two
from nnmpi.comm.allreduce.node_memory import memory_of_sums
from nnmpi.config import Config
from nnmpi.dtypes import is_float
from nnmpi.nn.graph import Kept
from nnmpi.parallel.arrangement.arrangement import (
    LOCAL_SHAPES,
    Arrangement,
    firsts,
    layers,
    own_samples,
)
from nnmpi.parallel.arrangement.convolutions import (
    kept_of_rows,
    kept_of_sum,
    reads_otherwise,
)
from nnmpi.parallel.arrangement.flat_buffer import (
    DECIDED,
    record_length,
    undo_length,
)
from nnmpi.parallel.arrangement.program import micro_batches
from nnmpi.parallel.arrangement.rank_model import HeldVariable, Memory
from nnmpi.parallel.arrangement.remembered import remembered
from nnmpi.parallel.arrangement.traffic_tp import (
    LOSS_NUMBERS,
    is_short,
    rows_of_loss,
    sums_of,
)
from nnmpi.parallel.tensor.patterns import HALO
from nnmpi.parallel.tensor.ways import OF_SAMPLES

At = Mapping[str, int]
"""The coordinates of a rank."""


def memory(a: Arrangement, rank: int, batch: int) -> Memory:
    """What a rank holds between two steps over batches of so many samples."""
    sizes = {True: 0, False: 0}
    for held in a.model_on(rank).others:
        sizes[a.graph.variables[held.variable].is_parameter] += bytes_of_other(a, held)
    of_trained = a.store.holds(a, rank)
    if a.residences is not None and (model := a.residences.model) is not None:
        of_trained = of_trained._replace(
            parameters=round(model.window),
            gradients=0 if model.gradients else of_trained.gradients,
            optimizer=0,
        )
    return of_trained._replace(
        parameters=of_trained.parameters + sizes[True],
        buffers=sizes[False],
        windows=of_trained.windows + _windows_along_tp(a, rank, batch),
    )


def bytes_of_other(a: Arrangement, held: HeldVariable) -> int:
    """The bytes of a frozen parameter or of a buffer."""
    variable = a.graph.variables[held.variable]
    of_float = a.dtype if variable.is_parameter else a.updated_dtype
    return held.size * (of_float.itemsize if is_float(np.dtype(variable.dtype)) else 8)


def running_sums(a: Arrangement, n: int) -> int:
    """The bytes of the optimizer for n numbers that it updates."""
    return (sums_of_optimizer(a.config) + a.is_mixed) * n * a.updated_dtype.itemsize


def sums_of_optimizer(config: Config) -> int:
    """How many running sums each number has."""
    of_sgd = int(config.momentum > 0)
    return {"sgd": of_sgd, "adam": 2, "adamw": 2, "rmsprop": 1}[config.optimizer]


def noted(config: Config, parameters: int, dtype: np.dtype[Any]) -> int:
    """The bytes by which others can finish what a rank of a node has begun to update."""
    undo = undo_length(sums_of_optimizer(config), dtype) * dtype.itemsize
    return undo + record_length(DECIDED, parameters) * 8


def window(n: int, dtype: np.dtype[Any], is_first: bool) -> int:
    """A rank's share of the memory for sums of n numbers; the node's first rank has the total."""
    one = memory_of_sums(n, dtype, 1)
    return one if is_first else memory_of_sums(n, dtype, 2) - one


def sum_windows(
    a: Arrangement,
    rank: int,
    name: str,
    sums: Iterable[tuple[tuple[int, ...], int, np.dtype[Any]]],
) -> int:
    """Memory through which a node sums what is elsewhere: by an all-reduce of this name, over a
    group of ranks and so many numbers of a type each. It serves all sums of like lengths."""
    by_length = {(group, power_of_two(n), dtype) for group, n, dtype in sums}
    found = 0
    for group, n, dtype in by_length:
        first = firsts(a, group)
        if len(group) > 1 and (name == "shared" or (name == "hierarchical" and len(first) > 1)):
            found += window(n, dtype, first[a.cluster.nodes[rank]] == rank)
    return found


def _windows_along_tp(a: Arrangement, rank: int, batch: int) -> int:
    """The windows of sums of long activations."""
    if rank >= a.mesh.size:  # a server
        return 0
    tp = a.mesh.group(rank, "tp")
    sums = sums_of(a, rank, micro_batches(a, rank, batch))
    long = ((tp, n, dtype) for n, dtype in sums if not is_short(n, dtype))
    return sum_windows(a, rank, a.sums_by(tp), long)


# ---- activations, until their backward pass, from the graph

LABELS = 24
"""Bytes of a label, of its place among the classes of a rank, and of the number of its sample."""


def of_stage(a: Arrangement, stage: int, samples: int, rank: int) -> float:
    """What a stage keeps of a micro-batch: what comes into it, each edge in memory of its own; the
    edges that vjps read or that go out of it, each memory once; and what nodes keep besides."""
    at = a.mesh.coordinates(rank)
    return _of_stage(a, stage, samples, *(at[axis] for axis in LOCAL_SHAPES))


@remembered
def _of_stage(a: Arrangement, stage: int, samples: int, *where: int) -> float:
    """The same on ranks at these coordinates along the axes that cut activations."""
    graph, is_last = a.graph, stage == len(a.stages) - 1
    at = dict(zip(LOCAL_SHAPES, where, strict=True))
    edges, more = {*(graph.loss.edges if is_last else a.division.stages[stage + 1].takes)}, 0.0
    elsewhere = [k for k in a.stages[stage] if not a.sharding.branches.runs(k, at["tp"])]
    for kept in run_together(a, a.stages[stage]):
        if kept.nodes[0] not in elsewhere:
            edges |= edges_read(a, kept, at) - {*_gathered(a, kept)}
            more += besides_edges(a, kept, samples, at)
    if is_last:
        more += kept_by_loss(a, samples, at)
    edges -= {e for k in elsewhere for e in graph.nodes[k].outputs}
    memories = {graph.edges[e].memory for e in edges}
    memories -= {graph.edges[e].memory for e in a.division.stages[stage].takes}
    made = sum(a.local_bytes(e, samples, at) for e in memories)
    return _entering(a, stage, samples, at) + made + more


def left_for_weights(a: Arrangement, stage: int, samples: int, rank: int) -> float:
    """What a stage keeps of a micro-batch between both halves of its backward pass: what ops with
    trained parameters read, and the gradients of their outputs. The first stage does all of it in
    the second half."""
    at = a.mesh.coordinates(rank)
    return _left_for_weights(a, stage, samples, *(at[axis] for axis in LOCAL_SHAPES))


@remembered
def _left_for_weights(a: Arrangement, stage: int, samples: int, *where: int) -> float:
    """The same on ranks at these coordinates along the axes that cut activations."""
    at, graph = dict(zip(LOCAL_SHAPES, where, strict=True)), a.graph
    takes = [graph.edges[e] for e in a.division.stages[stage].takes]
    sends = () if stage == len(a.stages) - 1 else a.division.stages[stage + 1].takes
    if not any(edge.requires_grad for edge in takes):
        gradients = sum(a.local_bytes(e, samples, at) for e in sends)
        return _of_stage(a, stage, samples, *where) + gradients
    edges, more = {*sends}, 0.0
    for kept in run_together(a, a.stages[stage]):
        if has_trained(a, kept):
            edges |= edges_read(a, kept, at) - {*_gathered(a, kept)}
            outputs = graph.nodes[kept.nodes[-1]].outputs
            more += sum(a.local_bytes(e, samples, at) for e in outputs)
            more += besides_edges(a, kept, samples, at)
    memories = {graph.edges[e].memory for e in edges} - {edge.memory for edge in takes}
    made = sum(a.local_bytes(e, samples, at) for e in memories)
    return _entering(a, stage, samples, at) + made + more


def has_trained(a: Arrangement, kept: Kept) -> bool:
    """Whether nodes that run together have a trained parameter."""
    used = (v for k in kept.nodes for v in a.graph.nodes[k].variables)
    return any(a.graph.variables[v].is_trained for v in used)


def besides_edges(a: Arrangement, kept: Kept, samples: int, at: At) -> float:
    """What nodes keep besides their edges: as much of it is here as of what it is made from.

    Products keep what they have made of their input; what runs with them keeps masks of the output.
    A column keeps its own positions of an input that is cut along them, and gathers it again.
    A product that gathers its output keeps no more of it than its own part.
    """
    k = kept.nodes[0]
    first, last = a.graph.nodes[k], a.graph.nodes[kept.nodes[-1]]
    layer, alone = layers(a).get(k), _kept_alone(a)[k]
    n = _computed(a, k, last.outputs[0], samples, at)
    behind = kept.bytes(n) - alone.bytes(n)
    before = alone.bytes(_computed(a, k, first.inputs[0] if first.inputs else -1, samples, at))
    share, own = _share(a, last.outputs[0], at), 0.0
    if layer is not None and layer.gathers:
        part = layer.part(at["tp"])
        own = sum(part * a.local_bytes(e, n, at) for e in _gathered(a, kept))
        share *= part
    if layer is not None and HALO in layer.way.pattern.sends:
        before = kept_of_rows(a, k, before, samples, at)
    elif first.kind == "Conv2d" and layer is not None and layer.way.sums_output:
        before = kept_of_sum(a, k, before, samples, at)
    elif first.kind == "Experts":  # on the slots of its own, wherever tokens come from
        before *= layer.part(at["tp"]) if layer else 1
    elif first.inputs:
        before *= _share(a, first.inputs[0], at)
    return before + behind * share + own


def _computed(a: Arrangement, k: int, e: int, samples: int, at: At) -> int:
    """How many samples of its input or output, edge e, a rank computes node k with."""
    layer = layers(a).get(k)
    by_samples = layer is not None and layer.how == "samples"
    if not by_samples and a.sharding.edges.get(e) is not OF_SAMPLES:
        return samples
    return len(own_samples(samples, a.sharding.ranks, at["tp"]))


def edges_read(a: Arrangement, kept: Kept, at: At) -> set[int]:
    """The edges that the vjps of nodes read; a convolution of some input channels may read its
    input where one of all channels keeps what it has made of it, or the other way round."""
    k = kept.nodes[0]
    layer, node = layers(a).get(k), a.graph.nodes[k]
    if layer is not None and HALO in layer.way.pattern.sends:  # it keeps its input with the halo
        return {*kept.edges} - {node.inputs[0]}
    sums = layer is not None and layer.way.sums_output and node.kind == "Conv2d"
    if sums and reads_otherwise(a, k, at):
        return {*kept.edges} ^ {node.inputs[0]}
    return {*kept.edges}


def _gathered(a: Arrangement, kept: Kept) -> Iterator[int]:
    """The outputs that the vjps of nodes read of which they have a part."""
    layer = layers(a).get(kept.nodes[0])
    if layer is not None and layer.gathers:
        yield from {*kept.edges} & {*a.graph.nodes[kept.nodes[-1]].outputs}


@remembered
def _kept_alone(a: Arrangement) -> Mapping[int, Kept]:
    """What each node keeps alone."""
    return {kept.nodes[0]: kept for kept in a.graph.kept if len(kept.nodes) == 1}


def kept_by_loss(a: Arrangement, samples: int, at: At) -> float:
    """What the loss keeps; on sharded classes its part, and what all ranks have told each other."""
    kept = a.graph.loss.bytes(samples)
    kept *= _share(a, a.graph.outputs[0], at)
    if a.sharding.output is None:
        return kept
    told = LOSS_NUMBERS * a.mesh.axes["tp"] * a.updated_dtype.itemsize + LABELS
    return kept + told * rows_of_loss(a, samples, at)


def entering(a: Arrangement, stage: int, samples: int, rank: int) -> float:
    """What comes into a stage: what is left of a micro-batch that is computed again."""
    return _entering(a, stage, samples, a.mesh.coordinates(rank))


def _entering(a: Arrangement, stage: int, samples: int, at: At) -> float:
    return sum(a.local_bytes(e, samples, at) for e in a.division.stages[stage].takes)


@remembered
def run_together(a: Arrangement, nodes: range) -> list[Kept]:
    """The nodes of a stage, those that run as one op together.

    A convolution of some input channels is summed before what follows it.
    """
    widest: dict[int, Kept] = {}
    for kept in sorted(a.graph.kept, key=lambda kept: len(kept.nodes)):
        first, layer = kept.nodes[0], layers(a).get(kept.nodes[0])
        runs_alone = layer is not None and not layer.way.fuses
        is_inside = nodes.start <= first and kept.nodes.stop <= nodes.stop
        if is_inside and not (runs_alone and len(kept.nodes) > 1):
            widest[first] = kept
    found, k = list[Kept](), nodes.start
    while k < nodes.stop:
        found.append(widest[k])
        k = widest[k].nodes.stop
    return found


def _share(a: Arrangement, e: int, at: At) -> float:
    """How much of a sample of an edge is on a rank with these coordinates."""
    return prod(a.local_shape(e, 1, at)[1:]) / max(prod(a.graph.edges[e].sample), 1)
