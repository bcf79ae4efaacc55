"""What a backward pass takes beside what forward passes keep: gradients, and what kernels work in.

nodes       k-1 ──► k ──► k+1      the backward pass is at k:
kept        ███████████            what k+1 kept is free
gradients        in ◄── out        both are there, and what the kernel of k works in
"""

from collections.abc import Iterable
from typing import NamedTuple

from nnmpi.parallel.arrangement.activations import activations, kept_before
from nnmpi.parallel.arrangement.arrangement import LOCAL_SHAPES, Arrangement
from nnmpi.parallel.arrangement.convolutions import scratch_of
from nnmpi.parallel.arrangement.memory import (
    besides_edges,
    edges_read,
    has_trained,
    memory,
    run_together,
)
from nnmpi.parallel.arrangement.program import micro_batches
from nnmpi.parallel.arrangement.remembered import remembered
from nnmpi.parallel.arrangement.traffic import message_buffers, receive_buffers
from nnmpi.schedules.op import Kind

BACKWARD = Kind.B, Kind.I, Kind.W


class PassingRow(NamedTuple):
    """What the backward pass of an op takes beside what was kept when the pass began.

    more     bytes of gradients less what was freed, in a whole pass and in its two halves
    scratch  that the kernel works in
    """

    nodes: range
    more: dict[Kind, float]
    scratch: int


def needed(a: Arrangement, rank: int, batch: int) -> int:
    """The bytes of a rank in a step: what it holds, what it keeps and what passes at the same time,
    and messages: what it receives to add it, and what goes from stage to stage."""
    held = memory(a, rank, batch).total
    if rank >= a.mesh.size:
        return held
    messages = receive_buffers(a, rank, batch) + message_buffers(a, rank, batch)
    return held + messages + kept_and_passing(a, rank, batch)


def kept_and_passing(a: Arrangement, rank: int, batch: int) -> int:
    """The most that a rank keeps, with what a backward pass takes beside: gradients of activations,
    and what the kernel works in, or the gradient of a parameter that is added to those of other
    micro-batches."""
    at, micro, held = a.mesh.coordinates(rank), micro_batches(a, rank, batch), a.model_on(rank)
    where = [at[axis] for axis in LOCAL_SHAPES]
    added = {one.variable: one.size * a.dtype.itemsize for one in held.trained if len(micro) > 1}
    nodes = a.graph.nodes

    def of_pass(kind: Kind, stage: int, samples: int) -> float:
        found = 0.0
        for row in _passing(a, stage, samples, *where):
            own = {v for k in row.nodes for v in nodes[k].variables} & added.keys()
            sums = [added[v] for v in own] if kind is not Kind.I else []
            found = max(found, row.more[kind] + max([row.scratch, *sums]))
        return found

    if a.residences is not None:
        passing = max(of_pass(Kind.B, s, max(micro)) for s in held.stages)
        return activations(a, rank, batch) + round(passing)
    kept = [*kept_before(a, rank, micro)]
    passes = {(op.kind, op.stage, n) for op, n, _ in kept if op.kind in BACKWARD}
    more = {one: of_pass(*one) for one in passes}
    both = (now + more.get((op.kind, op.stage, n), 0.0) for op, n, now in kept)
    return round(max(both, default=0.0))


@remembered
def _passing(a: Arrangement, stage: int, samples: int, *where: int) -> list[PassingRow]:
    """The ops of a stage, the last one first, on ranks at these coordinates along the axes that cut
    activations. Gradients of outputs of ops with parameters stay until the second half."""
    at, graph = dict(zip(LOCAL_SHAPES, where, strict=True)), a.graph
    together = run_together(a, a.stages[stage])
    kept = {graph.edges[e].memory for one in together for e in edges_read(a, one, at)}
    has_inputs = any(graph.edges[e].requires_grad for e in a.division.stages[stage].takes)

    def nbytes(edges: Iterable[int]) -> float:
        return sum(a.local_bytes(e, samples, at) for e in edges)

    found, freed = list[PassingRow](), dict.fromkeys(BACKWARD, 0.0)
    for one in reversed(together):
        nodes = [graph.nodes[k] for k in one.nodes]
        outputs = [e for e in nodes[-1].outputs if graph.edges[e].requires_grad]
        inputs = [e for e in nodes[0].inputs if graph.edges[e].requires_grad]
        both, is_trained = nbytes([*inputs, *outputs]), has_trained(a, one)
        first = {Kind.I: both * has_inputs, Kind.W: both * (not has_inputs)}
        more = {kind: n - freed[kind] for kind, n in {Kind.B: both, **first}.items()}
        found.append(PassingRow(one.nodes, more, scratch_of(a, one, samples, at)))
        made = {graph.edges[e].memory for node in nodes for e in node.outputs} & kept
        own = besides_edges(a, one, samples, at) + nbytes(made)
        freed[Kind.B] += own
        if is_trained and has_inputs:
            freed[Kind.I] -= nbytes(outputs)
        freed[Kind.W if is_trained or not has_inputs else Kind.I] += own
    return found
