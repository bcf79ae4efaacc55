"""What a backward pass takes beside what forward passes keep: gradients, and what kernels work in.

nodes       k-1 ──► k ──► k+1      the backward pass is at k:
kept        ███████████            what k+1 kept is free
gradients        in ◄── out        both are there, and what the kernel of k works in
"""

from nnmpi.nn.graph import Kept
from nnmpi.parallel.arrangement.arrangement import LOCAL_SHAPES, Arrangement
from nnmpi.parallel.arrangement.convolutions import scratch_of
from nnmpi.parallel.arrangement.memory import (
    activations,
    besides_edges,
    edges_read,
    memory,
    run_together,
)
from nnmpi.parallel.arrangement.program import micro_batches
from nnmpi.parallel.arrangement.remembered import remembered
from nnmpi.parallel.arrangement.traffic import receive_buffers


def needed(a: Arrangement, rank: int, batch: int) -> int:
    """The bytes of a rank in a step: what it holds, what it keeps, what passes, and what it
    receives to add it."""
    held = memory(a, rank, batch).total + receive_buffers(a, rank, batch)
    return held + activations(a, rank, batch) + passing(a, rank, batch)


def passing(a: Arrangement, rank: int, batch: int) -> int:
    """The bytes by which a backward pass over a micro-batch exceeds at most what it has freed
    before, in a step over a batch of so many samples: gradients of activations, and beside them
    what the kernel works in, or the gradient of a parameter that is added to those of other
    micro-batches."""
    if rank >= a.mesh.size:
        return 0
    at, micro, held = a.mesh.coordinates(rank), micro_batches(a, rank, batch), a.model_on(rank)
    where = [at[axis] for axis in LOCAL_SHAPES]
    added = {one.variable: one.size * a.dtype.itemsize for one in held.trained if len(micro) > 1}
    most = 0.0
    for s in held.stages:
        for one, gradients, scratch in _passing(a, s, max(micro), *where):
            own = {v for k in one.nodes for v in a.graph.nodes[k].variables} & added.keys()
            most = max(most, gradients + max([scratch, *(added[v] for v in own)]))
    return round(most)


@remembered
def _passing(
    a: Arrangement, stage: int, samples: int, *where: int
) -> list[tuple[Kept, float, int]]:
    """(nodes, gradients that exceed what was freed, scratch) of the ops of a stage, on ranks at
    these coordinates along the axes that cut activations."""
    at, graph = dict(zip(LOCAL_SHAPES, where, strict=True)), a.graph
    together = run_together(a, a.stages[stage])
    kept = {graph.edges[e].memory for one in together for e in edges_read(a, one, at)}
    found, freed = list[tuple[Kept, float, int]](), 0.0
    for one in reversed(together):
        nodes = [graph.nodes[k] for k in one.nodes]
        ends = (*nodes[0].inputs, *nodes[-1].outputs)
        gradients = (e for e in ends if graph.edges[e].requires_grad)
        more = sum(a.local_bytes(e, samples, at) for e in gradients) - freed
        found.append((one, more, scratch_of(a, one, samples, at)))
        made = {graph.edges[e].memory for node in nodes for e in node.outputs} & kept
        freed += besides_edges(a, one, samples, at) + sum(
            a.local_bytes(e, samples, at) for e in made
        )
    return found
