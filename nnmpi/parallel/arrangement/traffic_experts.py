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

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from nnmpi.autograd.ops.experts import slots_of
from nnmpi.collectives.algorithms import ALL_GATHERS
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.collectives import Sent, carried_out
from nnmpi.parallel.tensor.ops import Bounds
from nnmpi.parallel.tensor.patterns import (
    RESULT_GRADIENTS,
    RESULTS,
    TOKEN_GRADIENTS,
    TOKENS,
    LayerMessage,
)
from nnmpi.parallel.tensor.sharding import ShardedLayer

COUNTS = np.dtype(np.int64)


def counts(
    a: Arrangement, rank: int, layer: ShardedLayer, message: LayerMessage, samples: int
) -> Iterator[Sent]:
    """A gather of how many tokens of each sample chose each expert."""
    gates = a.graph.edges[a.graph.nodes[layer.node].outputs[0]]
    yield _counts(a, rank, samples * gates.sample[-1])


def _counts(a: Arrangement, rank: int, n: int) -> Sent:
    """A gather of n counts of each rank."""
    group = a.mesh.group(rank, "tp")
    edges = [n * r for r in range(len(group) + 1)]
    return carried_out(ALL_GATHERS["ring"], group, rank, edges[-1], COUNTS, edges)


def exchanged(
    a: Arrangement, rank: int, layer: ShardedLayer, message: LayerMessage, samples: int
) -> Iterator[Sent]:
    """Tokens to the ranks of their experts, results back, or the gradients of these."""
    group, node = a.mesh.group(rank, "tp"), a.graph.nodes[layer.node]
    me, C = group.index(rank), a.graph.edges[node.outputs[0]].sample[-1]
    E, top_k, factor = (node.settings[s] for s in ("num_experts", "top_k", "capacity_factor"))
    tokens, own = _lengths(message.bounds), _lengths(layer.bounds)
    slots = slots_of(sum(tokens), E, top_k, factor)
    goes = most_that_go(me, tokens, own, top_k, slots)
    comes = min(sum(tokens) - tokens[me], own[me] * slots)
    numbers = {
        TOKENS: sum(goes) * C + sum(n * e for n, e in zip(goes, own, strict=True)),
        RESULTS: comes * C,
        RESULT_GRADIENTS: sum(goes) * C,
        TOKEN_GRADIENTS: comes * (C + own[me]),
    }[message.row]
    if message.row is TOKENS:
        yield _counts(a, rank, len(group))
    sent = samples * numbers * a.dtype.itemsize
    yield Sent(sent, (len(group) - 1) * (samples > 0))


def most_that_go(me: int, tokens: list[int], own: list[int], top_k: int, slots: int) -> list[int]:
    """How many tokens of a sample rank `me` may send to each rank, most where experts are most.

    tokens, own: how many tokens and how many experts each rank has
    """
    left, found = tokens[me] * top_k, [0] * len(own)
    for q in sorted(range(len(own)), key=lambda q: -own[q]):
        if q != me:
            found[q] = min(tokens[me], own[q] * slots, left)
            left -= found[q]
    return found


def _lengths(bounds: Bounds) -> list[int]:
    return [stop - start for start, stop in pairwise(bounds)]
