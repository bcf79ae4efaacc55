"""What a rank sends at most for experts whose tokens are cut along positions.

               forward                              back
    router     gather of counts
    experts    gather of counts, there, and back    there in both halves of a backward pass that is
                                                    in two; and back in the first one

It depends on the data where tokens go. Of each sample rank r has t_r tokens, and sends each to at
most `top_k` ranks. The E_q experts of rank q have slots for E_q times their capacity, and send back
as many results, but none to q itself. Where all tokens go to all experts, a step sends what is said
here. It sends less where experts are equally loaded: (p - 1) / p of the tokens leave their rank.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from nnmpi.autograd.ops.experts import slots_of
from nnmpi.collectives.algorithms import ALL_GATHERS
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.program import Passes, forward
from nnmpi.parallel.arrangement.sent import Sent, carried_out
from nnmpi.parallel.tensor.ops import Bounds
from nnmpi.parallel.tensor.sharding import ShardedLayer
from nnmpi.schedules.op import Kind

COUNTS = np.dtype(np.int64)


def of_experts(
    a: Arrangement, rank: int, stage: int, layer: ShardedLayer, passes: Passes
) -> Iterator[Sent]:
    """What experts, or their router, send in the passes of a stage."""
    group, node = a.mesh.group(rank, "tp"), a.graph.nodes[layer.node]
    samples = forward(passes, stage)
    if layer.how == "counts":
        E = a.graph.edges[node.outputs[0]].sample[-1]
        yield from (_counts(group, rank, n * E) for n in samples)
    if layer.how != "all-to-all":
        return
    me, p, C = group.index(rank), len(group), a.graph.edges[node.outputs[0]].sample[-1]
    E, top_k, factor = (node.settings[s] for s in ("num_experts", "top_k", "capacity_factor"))
    own, slots = _lengths(layer.bounds), slots_of(layer.positions[-1], E, top_k, factor)
    goes = most_that_go(me, layer, top_k, slots)
    comes = min(sum(_others(layer, me)), own[me] * slots)
    gates = sum(n * e for n, e in zip(goes, own, strict=True))

    def sent(numbers: int, n: int) -> Sent:
        return Sent(n * numbers * a.dtype.itemsize, (p - 1) * (n > 0))

    for n in samples:
        yield _counts(group, rank, p)
        yield sent(sum(goes) * C + gates, n)
        yield sent(comes * C, n)
    first = {Kind.B, Kind.I if stage else Kind.W}
    for kind in first | {Kind.W}:
        yield from (sent(sum(goes) * C, n) for n in passes[stage, kind])
    for kind in first:
        yield from (sent(comes * (C + own[me]), n) for n in passes[stage, kind])


def most_that_go(me: int, layer: ShardedLayer, top_k: int, slots: int) -> list[int]:
    """How many tokens of a sample rank `me` may send to each rank, most where experts are most."""
    t, own = _lengths(layer.positions)[me], _lengths(layer.bounds)
    left, found = t * top_k, [0] * len(own)
    for q in sorted(range(len(own)), key=lambda q: -own[q]):
        if q != me:
            found[q] = min(t, own[q] * slots, left)
            left -= found[q]
    return found


def _others(layer: ShardedLayer, me: int) -> list[int]:
    """The positions of each other rank."""
    return [t for r, t in enumerate(_lengths(layer.positions)) if r != me]


def _lengths(bounds: Bounds) -> list[int]:
    return [stop - start for start, stop in pairwise(bounds)]


def _counts(group: Sequence[int], rank: int, n: int) -> Sent:
    """A gather of n counts of each rank."""
    edges = [n * r for r in range(len(group) + 1)]
    return carried_out(ALL_GATHERS["ring"], group, rank, edges[-1], COUNTS, edges)
