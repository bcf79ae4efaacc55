"""Ranks that hold and send as much as each other, with the figures of one of them."""

from collections.abc import Iterator, Mapping, Sequence
from operator import add
from typing import NamedTuple

import numpy as np

from nnmpi.collectives.algorithms import ALGORITHMS
from nnmpi.data.loader import part_of
from nnmpi.parallel.arrangement.arrange import alone
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.backups import NO_BACKUP, Backup, backup, needs_backups
from nnmpi.parallel.arrangement.cached import gc_paused
from nnmpi.parallel.arrangement.exchanges import PLANS, TRAFFIC_AXES, AxisTraffic, Traffic
from nnmpi.parallel.arrangement.rank_model import Memory
from nnmpi.parallel.arrangement.unreplicated import unreplicated_bytes
from nnmpi.parallel.mesh import BATCH, REPLICAS
from nnmpi.planning.paper.activations import activations
from nnmpi.planning.paper.rank import exchanges, memory, parameters_sent, traffic

FEW = 64
"""Ranks of which each is asked for its figures; rounds at each end of an algorithm that tell ranks
apart."""

MANY = 1 << 16
"""Ranks of more than which each kind sends in sums over replicas what its first one sends."""


class RankKind(NamedTuple):
    """Ranks of the same stages with the same figures, and those of the first of them.

    parameters_sent  what of its traffic along dp is parameters
    unique           the bytes that no other rank has
    backup           what backups of such bytes take

    Figures of others may differ in the fourth digit; of more than FEW ranks also by a number a
    chunk of a sum, and of more than MANY by their place in one.
    """

    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    memory: Memory
    activations: int
    traffic: AxisTraffic
    parameters_sent: Traffic = Traffic()
    unique: int = 0
    backup: Backup = NO_BACKUP


@gc_paused()
def rank_kinds(a: Arrangement, batch: int) -> list[RankKind]:
    """All ranks in such groups, with what they do in steps over batches of so many samples."""
    kinds: dict[tuple[object, ...], RankKind] = {}
    for ranks in _alike(a, batch):
        figures = _figures(a, ranks, batch)
        sent = (n for amount in (*figures.traffic.values(), figures.backup.sent) for n in amount)
        numbers = (*figures.memory, figures.activations, figures.unique, figures.backup.held, *sent)
        key = (figures.stages, *(f"{n:.2e}" for n in numbers))
        same = kinds.setdefault(key, figures)
        if same is not figures:
            kinds[key] = same._replace(ranks=tuple(sorted((*same.ranks, *ranks))))
    return list(kinds.values())


def _figures(a: Arrangement, ranks: tuple[int, ...], batch: int) -> RankKind:
    """The figures of the first of these ranks; with --verify each of them has a whole model too."""
    first, single = ranks[0], alone(a) if a.config.verify else None
    held, lost = memory(a, first, batch), unreplicated_bytes(a, first)
    if first >= a.mesh.size:  # servers compute no stage
        return RankKind(ranks, (), held, 0, dict.fromkeys(TRAFFIC_AXES, Traffic()), unique=lost)
    kept = activations(a, first, batch)
    if single is not None:
        held = Memory(*map(add, held, memory(single, 0, batch)))
        kept = max(kept, activations(single, 0, batch))  # one trains after the other
    sent, parameters = traffic(a, first, batch), parameters_sent(a, first, batch)
    copies = backup(a, first) if needs_backups(a) else NO_BACKUP
    stages = a.model_on(first).stages
    return RankKind(ranks, stages, held, kept, sent, parameters, lost, copies)


def _alike(a: Arrangement, batch: int) -> Iterator[tuple[int, ...]]:
    """Ranks with as many samples as each other, which send as much in sums over replicas. The first
    ones on a node are apart, since they have the memory that it shares, and so are those that
    measure the model, and those that keep larger backups for others. A few ranks are all apart."""
    ranks, at = np.arange(a.mesh.size), a.mesh.coordinates_of_all()
    places = {axis: i for axis, i in at.items() if axis not in BATCH}
    keys = [*places.values(), np.any([at[axis] for axis in (*BATCH, "pp")], axis=0)]
    nodes = np.array(a.cluster.nodes[: a.mesh.size])
    for axes in (axes for axes in (REPLICAS, ("tp",)) if a.mesh.count(*axes) > 1):
        group = _numbered([nodes, *(i for axis, i in at.items() if axis not in axes)])
        first = np.unique(group, return_index=True)[1]
        keys.append(~np.isin(ranks, first))
    if a.config.reproducible or a.mesh.size <= FEW:  # the first: places in a tree over slices
        keys.append(ranks)
    else:
        keys += [*_samples(a, at, batch), *_sent_by_place(a, at, batch)]
        keys += [_parting(at, nodes)] if a.mesh.axes["tp"] > 1 else []
    if needs_backups(a):
        keys.append(np.array([backup(a, r).held for r in ranks.tolist()]))
    kinds = _numbered(keys)
    in_order = np.argsort(kinds, kind="stable")
    groups = np.split(in_order, np.flatnonzero(np.diff(kinds[in_order])) + 1)
    yield from sorted(tuple(group.tolist()) for group in groups)
    if a.servers:
        yield tuple(range(a.mesh.size, a.ranks))


def _samples(a: Arrangement, at: Mapping[str, np.ndarray], batch: int) -> Iterator[np.ndarray]:
    """How many samples each rank has of micro-batches of each length."""
    place, d = _place(a, at, BATCH), a.mesh.count(*BATCH)
    parts = min(a.config.micro_batches, batch)
    for n in {len(part_of(np.empty(batch), parts, m)) for m in range(parts)}:
        yield n * (place + 1) // d - n * place // d


def _sent_by_place(
    a: Arrangement, at: Mapping[str, np.ndarray], batch: int
) -> Iterator[np.ndarray]:
    """How many messages and chunks each rank sends in the first and the last rounds of sums over
    replicas; where there are others, ranks of a kind do the same in these."""
    place, p = _place(a, at, REPLICAS), a.mesh.count(*REPLICAS)
    told = exchanges(a, 0, batch).get("dp", ()) if 1 < p <= MANY else ()
    for operation, name in {(exchange.operation, exchange.algorithm): None for exchange in told}:
        algorithm = (ALGORITHMS | PLANS.get(operation, {})).get(name)
        if algorithm is not None:
            rounds = range(algorithm.rounds(p))
            steps = [algorithm.at(t, np.arange(p), p) for t in {*rounds[:FEW], *rounds[-FEW:]}]
            yield np.sum([step.to >= 0 for step in steps], axis=0)[place]
            chunks = (np.where(step.to >= 0, np.subtract(*step.send[::-1]), 0) for step in steps)
            yield sum(chunks, np.zeros(p, int))[place]


def _parting(at: Mapping[str, np.ndarray], nodes: np.ndarray) -> np.ndarray:
    """How nodes part the group of each rank along tp; alike for groups that are parted alike."""
    groups = _numbered([i for axis, i in at.items() if axis != "tp"])
    ranks = np.argsort(groups, kind="stable").reshape(int(groups.max()) + 1, -1)
    over = nodes[ranks] - nodes[ranks[:, :1]]
    parted = np.empty_like(groups)
    parted[ranks] = np.unique(over, axis=0, return_inverse=True)[1].reshape(-1, 1)
    return parted


def _place(a: Arrangement, at: Mapping[str, np.ndarray], axes: Sequence[str]) -> np.ndarray:
    """The place of each rank in its group along these axes."""
    axes_here = [axis for axis in at if axis in axes]
    return np.ravel_multi_index(
        [at[axis] for axis in axes_here], [a.mesh.count(axis) for axis in axes_here]
    )


def _numbered(rows: Sequence[np.ndarray]) -> np.ndarray:
    """A number for each column; the same for equal columns."""
    number_of, most = rows[0].astype(int), int(rows[0].max(initial=0)) + 1
    for row in rows[1:]:
        length = int(row.max(initial=0)) + 1
        if most * length > 1 << 62:
            number_of = np.unique(number_of, return_inverse=True)[1]
            most = number_of.size
        number_of, most = number_of * length + row, most * length
    return number_of
