"""The exchanges that layers divided along tp or cp need in passes, by formulas instead of a list:
for lower bounds in the search, and to compare ways to divide a layer.

Batch statistics, the loss and tokens of experts are left out; a step on paper has all exchanges.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from math import prod

from nnmpi.addons.transformer.context.sequence_cut import sequences_of
from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.step import bounds as parts_of
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.tensor.ops import DOUBLING_BYTES
from nnmpi.parallel.tensor.sharding import ShardedLayer
from nnmpi.parallel.tensor.ways import LayerMessage
from nnmpi.schedules.op import Kind

PASS_OF = {Kind.F: Kind.F, Kind.I: Kind.B, Kind.W: Kind.B}
"""The pass that sends a message when B is not split into I and W."""


def in_passes(
    a: Arrangement, rank: int, samples: int
) -> Iterator[tuple[list[int], Iterable[Kind], Exchange]]:
    """Yields (nodes, passes, Exchange) for each exchange of a rank without pipeline in one forward
    and one backward pass. The passes are F and B, and also I if a backward pass in two halves makes
    the exchange in its first half."""
    alike = defaultdict[Hashable, list[ShardedLayer]](list)  # the layers of blocks
    for layer in a.sharding.layers if len(a.mesh.group(rank, "tp")) > 1 else ():
        if a.runs(layer.node, rank):
            has_messages = any(message.message.each for message in layer.sends)
            alike[has_messages and layer.node, repr(layer.sends)].append(layer)
    for layers in alike.values():
        nodes = [layer.node for layer in layers]
        for message in layers[0].sends:
            passes = passes_of(message) | ({Kind.I} & {*message.passes})
            for exchange in of_layer(a, rank, layers[0], message, samples):
                yield nodes, passes, exchange
    yield from _along_cp(a, rank, samples)


def passes_of(message: LayerMessage) -> set[Kind]:
    """Returns the passes in which a message is sent, {F}, {B} or both; I and W count as B."""
    return {PASS_OF[kind] for kind in message.passes}


def of_layer(
    a: Arrangement, rank: int, layer: ShardedLayer, message: LayerMessage, samples: int
) -> Iterable[Exchange]:
    """Returns the exchanges of one message of a divided layer, for so many samples."""
    make = EXCHANGES.get(message.message.by)
    return () if make is None else make(a, rank, layer, message, samples)


def summed(a: Arrangement, group: tuple[int, ...], n: int) -> Exchange:
    """Returns the all-reduce of n elements of activations in a group along tp."""
    name = "doubling" if n * a.dtype.itemsize <= DOUBLING_BYTES else a.sums_by(group)
    how = "activations", Collective.ALL_REDUCE, name, group, n, a.dtype, Kind.F
    return Exchange(*how, sums=a.sums_dtype)


def _numbers(a: Arrangement, rank: int, message: LayerMessage, samples: int) -> int:
    """Returns how many elements a message carries over all ranks along tp together."""
    cp = a.mesh.coordinates(rank)["cp"]
    return sequences_of(a.sharding).share(message.elements, cp) * samples


def _by_sum(
    a: Arrangement, rank: int, layer: ShardedLayer, message: LayerMessage, samples: int
) -> Iterator[Exchange]:
    yield summed(a, a.mesh.group(rank, "tp"), _numbers(a, rank, message, samples))


def _by_ring(
    a: Arrangement, rank: int, layer: ShardedLayer, message: LayerMessage, samples: int
) -> Iterator[Exchange]:
    """Yields a ring's collective, whose chunks are the ranks' channels, positions or samples."""
    numbers, group = _numbers(a, rank, message, samples), a.mesh.group(rank, "tp")
    bounds = message.bounds or parts_of(samples, len(group))
    edges = tuple(numbers * b // max(bounds[-1], 1) for b in bounds)
    how = "activations", message.message.by, "ring", group, numbers, a.dtype, Kind.F
    sums = a.sums_dtype if True in message.message.by.passes else None
    yield Exchange(*how, edges=edges, sums=sums)


def _by_messages(
    a: Arrangement, rank: int, layer: ShardedLayer, message: LayerMessage, samples: int
) -> Iterator[Exchange]:
    """Yields the point-to-point messages that a rank sends for a layer, such as image rows."""
    ends, elements = a.mesh.group(rank, "tp")[:2], _numbers(a, rank, message, samples)
    assert message.message.each is not None
    at = a.mesh.coordinates(rank)["tp"]
    for times in message.message.each(a.graph, layer.node, a.sharding.ranks, at):
        if n := times * elements:
            yield Exchange("activations", Collective.MESSAGE, "", ends, n, a.dtype, Kind.F)


EXCHANGES: Mapping[Collective, Callable[..., Iterator[Exchange]]] = {
    Collective.ALL_REDUCE: _by_sum,
    Collective.ALL_GATHER: _by_ring,
    Collective.REDUCE_SCATTER: _by_ring,
    Collective.MESSAGE: _by_messages,
}
"""By collective, the function that yields the exchanges of a layer's message in a pass."""


def _along_cp(
    a: Arrangement, rank: int, samples: int
) -> Iterator[tuple[list[int], Iterable[Kind], Exchange]]:
    """Yields the exchanges of ring attention: keys and values go around in both passes, and their
    gradients return in the backward pass."""
    at, cut = a.mesh.coordinates(rank), sequences_of(a.sharding)
    ends = a.mesh.group(rank, "cp")[:2]
    parts = a.dtype if a.cluster.has_devices else a.sums_dtype or a.dtype
    owners = [(at["cp"] - s) % cut.ranks for s in range(cut.ranks)]
    around = [cut.count(r) for r in owners[:-1]]
    both, back = (Kind.F, Kind.B, Kind.I), (Kind.B, Kind.I)
    alike = defaultdict[tuple[int, bool], list[int]](list)
    for k in cut.rings:
        node = a.graph.nodes[k]
        of_position = prod(a.local_shape(node.inputs[0], 1, at)[2:])
        of_position //= node.settings["groups"] + 2
        alike[of_position, bool(node.settings["is_causal"])].append(k)
    for (of_position, causal), attention in alike.items():
        of_key = 2 * of_position * samples
        home = [cut.keys_seen(at["cp"], r, causal) for r in owners[1:]]
        for keys, dtype, passes in ((around, a.dtype, both), (home, parts, back)):
            for n, times in Counter(keys).items():
                how = "keys", Collective.MESSAGE, "", ends, n * of_key, dtype, Kind.F
                yield attention, passes, Exchange(*how, times=times)
