"""What a rank sends in a step, axis by axis: exactly, from the plans that are carried out.

dp     gradients, parameters of ZeRO, statistics of BatchNorm: along dp and cp
cp     keys, values and their gradients
tp     sums and gathers of activations, and of the loss on sharded classes; with sequence
       parallelism, reduce-scatters, and gradients of which ranks have terms
pp     activations and their gradients
model  the agreement of ranks that hold one model, after the sums
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any, TypeAlias

import numpy as np

from nnmpi.collectives.collective import Collective
from nnmpi.mesh import MODEL
from nnmpi.nn.graph import Node
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import FLOAT64, Exchange, agreed
from nnmpi.parallel.arrangement.program import SLOTS, forward, micro_batches, passes_of
from nnmpi.parallel.arrangement.remembered import remembered
from nnmpi.parallel.arrangement.sent import Sent, received, sent
from nnmpi.parallel.arrangement.traffic_tp import along_tp
from nnmpi.schedules.op import Kind

NORMS = "BatchNorm1d", "BatchNorm2d"

WISH, REPORT = 1, 2
"""Numbers that stages of PipeDream tell each other of a batch, forward and back."""


Traffic: TypeAlias = Mapping[str, Sent]
"""What a rank sends along each axis in a step."""


# ---- along dp


def _dp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Exchange]:
    """What the store sends, and statistics."""
    yield from a.store.sends(a, rank, len(micro))
    yield from a.store.gathers(a, rank, len(micro))
    yield from _statistics(a, rank, len(micro))


def _statistics(a: Arrangement, rank: int, micro: int) -> Iterator[Exchange]:
    """BatchNorm of a micro-batch: moments forward, and sums for the gradient of its input."""
    group = a.replicas(rank)
    if len(group) == 1 or a.config.reproducible:
        return
    for s, node, row in moments(a, rank):
        for one in _moments(a, group, s, node, row):
            yield one._replace(times=micro)


def _moments(
    a: Arrangement, group: tuple[int, ...], s: int, node: Node, row: int
) -> Iterator[Exchange]:
    """What ranks tell each other of a BatchNorm in a pass forward, and in one back."""
    numbers = len(group) * row
    yield Exchange("moments", Collective.ALL_GATHER, "halving", group, numbers, FLOAT64, Kind.F, s)
    if a.graph.edges[node.inputs[0]].requires_grad:
        back = "moments", Collective.ALL_REDUCE, "doubling", group, row - 1, a.updated_dtype
        yield Exchange(*back, Kind.B, s)


def moments(a: Arrangement, rank: int) -> Iterator[tuple[int, Node, int]]:
    """The nodes of BatchNorm in the stages of a rank, each with its stage, and the numbers of a row
    of moments: samples, and two of each channel."""
    for s in a.model_on(rank).stages:
        for node in (a.graph.nodes[k] for k in a.stages[s] if a.runs(k, rank)):
            if node.kind in NORMS:
                at = a.mesh.coordinates(rank)
                yield s, node, 1 + 2 * a.local_shape(node.outputs[0], 1, at)[1]


# ---- along tp


def _tp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Exchange]:
    """Messages of layers; statistics where ranks have parts of a batch, before those of dp."""
    yield from along_tp(a, rank, micro)
    parts = {layer.path for layer in a.sharding.layers if layer.way.markers}
    if not parts:
        return
    passes, group = passes_of(a, rank, micro), a.mesh.group(rank, "tp")
    for s, node, row in moments(a, rank):
        for one in _moments(a, group, s, node, row) if node.name in parts else ():
            yield one._replace(times=len(forward(passes, s) if one.during is Kind.F else micro))


# ---- along cp


def _cp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Exchange]:
    """Keys and values around the ring, forward and back, and their gradients to their owners."""
    at, cut, group = a.mesh.coordinates(rank), a.sharding.sequences, a.mesh.group(rank, "cp")
    parts = a.dtype if a.cluster.has_devices else a.sums_dtype or a.dtype
    passes, nodes = passes_of(a, rank, micro), a.graph.nodes

    def messages(
        keys: Iterable[int], of_key: int, dtype: np.dtype[Any], during: Kind, s: int
    ) -> Iterator[Exchange]:
        for n, times in Counter(keys).items():
            one = Exchange("keys", Collective.MESSAGE, "", group[:2], n * of_key, dtype, during, s)
            yield one._replace(times=times)

    here = [(s, k) for s in a.model_on(rank).stages for k in a.stages[s] if k in cut.rings]
    owners = [(at["cp"] - s) % cut.ranks for s in range(cut.ranks)]
    around = [cut.count(r) for r in owners[:-1]]
    homes = {how: [cut.keys_seen(at["cp"], r, how) for r in owners[1:]] for how in (False, True)}
    for s, k in here:
        e, home = nodes[k].inputs[0], homes[bool(nodes[k].settings["is_causal"])]
        of_position = prod(a.local_shape(e, 1, at)[2:]) // 3 * 2
        for n in forward(passes, s):
            numbers = a.local_shape(e, n, at)[0] * of_position
            yield from messages(around, numbers, a.dtype, Kind.F, s)
        for n in micro if a.graph.edges[e].requires_grad else ():
            numbers = a.local_shape(e, n, at)[0] * of_position
            yield from messages(around, numbers, a.dtype, Kind.B, s)
            yield from messages(home, numbers, parts, Kind.B, s)


# ---- along pp, and tp too


def _pp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Exchange]:
    """Activations to the next stage, and their gradients to the one before."""
    if a.residences is not None:  # one rank has all stages
        return
    at, stages, group = a.mesh.coordinates(rank), a.division.stages, a.mesh.group(rank, "pp")
    last = len(stages) - 1

    def message(numbers: int, dtype: np.dtype[Any], during: Kind, s: int) -> Exchange:
        other = group[a.division.stages[s + 1 if during is Kind.SEND_F else s - 1].rank]
        ends = (rank, other)
        return Exchange("activations", Collective.MESSAGE, "", ends, numbers, dtype, during, s)

    def crossing(edges: Iterable[int], n: int, during: Kind, s: int) -> Iterator[Exchange]:
        for e in edges:
            dtype = np.dtype(a.graph.edges[e].dtype)
            yield message(prod(a.local_shape(e, n, at)), dtype, during, s)

    for s in a.model_on(rank).stages:
        ahead = stages[s + 1].takes if s < last else ()
        back = [e for e in stages[s].takes if a.graph.edges[e].requires_grad and s > 0]
        for n, times in Counter(micro).items():
            sent = [*crossing(ahead, n, Kind.SEND_F, s), *crossing(back, n, Kind.SEND_B, s)]
            if not a.steps_together and s < last:
                sent.append(message(WISH, FLOAT64, Kind.SEND_F, s))
            if not a.steps_together and s > 0:
                sent.append(message(REPORT, FLOAT64, Kind.SEND_B, s))
            yield from (one._replace(times=times) for one in sent)


def _model(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Exchange]:
    """Loss, stop, not finite, squares, and one number a tied parameter."""
    group = a.mesh.group(rank, *MODEL)
    if len(group) > 1 and a.steps_together:
        yield agreed(group, 4 + len(a.tied))


TRAFFIC: Mapping[str, Callable[[Arrangement, int, Sequence[int]], Iterator[Exchange]]] = {
    "dp": _dp,
    "cp": _cp,
    "tp": _tp,
    "pp": _pp,
    "model": _model,
}
"""The exchanges of a rank along each axis, for micro-batches of so many samples."""


@remembered
def exchanges(a: Arrangement, rank: int, batch: int) -> Mapping[str, list[Exchange]]:
    """The exchanges of a rank that computes in a step over a batch of so many samples, by axis."""
    micro = micro_batches(a, rank, batch)
    return {axis: list(along(a, rank, micro)) for axis, along in TRAFFIC.items()}


def traffic(a: Arrangement, rank: int, batch: int) -> Traffic:
    """What a rank that computes sends in a step over a batch of so many samples."""
    found = exchanges(a, rank, batch)
    return {axis: all_sent(a, rank, along) for axis, along in found.items()}


def receive_buffers(a: Arrangement, rank: int, batch: int) -> int:
    """The bytes into which a rank receives what it adds to its own: sums of gradients may all be
    under way at once, as many of those that ZeRO scatters in a backward pass as it has slots,
    others of a group follow each other."""
    at_once, most = 0, Counter[tuple[int, ...]]()
    scattered, scatters = 0, 0
    for one in chain.from_iterable(exchanges(a, rank, batch).values()):
        nbytes = received(a, one, rank)
        if one.during is Kind.REDUCE:
            at_once += nbytes
        elif one.during is Kind.B and one.stage < 0:
            scattered, scatters = max(scattered, nbytes), scatters + one.times
        else:
            most[one.group] = max(most[one.group], nbytes)
    return at_once + min(SLOTS, scatters) * scattered + most.total()


def message_buffers(a: Arrangement, rank: int, batch: int) -> int:
    """The bytes for messages between stages beside the micro-batches that a rank works on: where a
    stage begins the next activation and a gradient on its way, where it ends the next gradient."""
    micro = micro_batches(a, rank, batch)
    if a.residences is not None or len(micro) == 1:
        return 0
    at, stages, found = a.mesh.coordinates(rank), a.division.stages, 0
    for s in a.model_on(rank).stages:
        taken = stages[s].takes if s else ()
        sent = stages[s + 1].takes if s + 1 < len(stages) else ()
        back = (e for e in (*taken, *sent) if a.graph.edges[e].requires_grad)
        found += sum(a.local_bytes(e, max(micro), at) for e in (*taken, *back))
    return found


def parameters_sent(a: Arrangement, rank: int, batch: int) -> Sent:
    """What of the traffic along dp is parameters, which ZeRO gathers."""
    return all_sent(a, rank, a.store.gathers(a, rank, len(micro_batches(a, rank, batch))))


def all_sent(a: Arrangement, rank: int, exchanges: Iterable[Exchange]) -> Sent:
    """What a rank sends in exchanges."""
    return sum((sent(a, one, rank) for one in exchanges), Sent())
