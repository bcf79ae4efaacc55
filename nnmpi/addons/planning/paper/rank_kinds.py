"""Groups ranks into kinds that hold and send the same, computed for one rank of each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import add
from typing import Any, NamedTuple

import numpy as np

from nnmpi.addons import Table
from nnmpi.addons.planning.paper.activations import activations
from nnmpi.addons.planning.paper.rank import exchanges, memory, parameters_sent, traffic
from nnmpi.data.loader import part_of
from nnmpi.options.collector import gc_paused
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import TRAFFIC_AXES, AxisTraffic, Traffic
from nnmpi.parallel.arrangement.rank_model import Memory
from nnmpi.parallel.arrangement.state_on_paper import unreplicated_bytes
from nnmpi.parallel.mesh import BATCH, REPLICAS
from nnmpi.parallel.strategies import SINGLE_RANKS

BACKUPS: Table[Callable[[Arrangement], Callable[[int], Any] | None]] = Table("backups")
"""By an option: a function of a rank that returns a backup's traffic and bytes, or None."""

FEW = 64
"""Up to so many ranks, each is computed separately. More are compared by this number of first and
of last rounds."""

MANY = 1 << 16
"""Above so many replicas, a kind has the messages of its first rank."""


HELD = (
    "parameters", "gradients", "optimizer", "buffers", "slots", "windows", "activation", "backups",
)  # fmt: skip
"""Kinds of memory in the order of columns; with `_bytes`, keys of an event."""


class Backup(NamedTuple):
    """The traffic of one backup of a rank's state, and the bytes of memory for backups."""

    sent: Traffic = Traffic()
    held: int = 0


class RankKind(NamedTuple):
    """A group of ranks that have the same stages, and hold and send what the first of them does.

    ranks            the numbers of the ranks
    stages           the pipeline stages that each of them has
    activations      the most bytes of activations at a time
    traffic          what a rank sends in a step, along each axis of the mesh
    parameters_sent  the part of its traffic along dp that is parameters
    unreplicated     bytes of state that no other rank has, and which `backup` copies

    Other ranks of the group may have slightly different amounts, which differ in the fourth digit;
    with more than FEW ranks also by one element per chunk of a collective, and with more than MANY
    ranks by some messages of a collective.
    """

    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    memory: Memory
    activations: int
    traffic: AxisTraffic
    parameters_sent: Traffic = Traffic()
    unreplicated: int = 0
    backup: Backup = Backup()


@gc_paused()
def rank_kinds(a: Arrangement, batch: int) -> list[RankKind]:
    """Divides ranks into kinds, with the bytes that each holds and sends."""
    kinds: dict[tuple[object, ...], RankKind] = {}
    for ranks in _groups(a, batch):
        figures = _figures(a, ranks, batch)
        sent = (n for amount in (*figures.traffic.values(), figures.backup.sent) for n in amount)
        numbers = (
            *figures.memory,
            figures.activations,
            figures.unreplicated,
            figures.backup.held,
            *sent,
        )
        key = (figures.stages, *(f"{n:.2e}" for n in numbers))
        same = kinds.setdefault(key, figures)
        if same is not figures:
            kinds[key] = same._replace(ranks=tuple(sorted((*same.ranks, *ranks))))
    return list(kinds.values())


def _figures(a: Arrangement, ranks: tuple[int, ...], batch: int) -> RankKind:
    """Returns a RankKind for these ranks, with the bytes that the first of them holds and sends.
    With --verify, which trains a second model in each process, its memory is added."""
    first, alone = ranks[0], SINGLE_RANKS.chosen(a.config)
    single = alone and alone.arrangement(a)
    held, lost = memory(a, first, batch), unreplicated_bytes(a, first)
    if first >= a.mesh.size:  # servers compute no stage
        return RankKind(
            ranks, (), held, 0, dict.fromkeys(TRAFFIC_AXES, Traffic()), unreplicated=lost
        )
    kept = activations(a, first, batch)
    if single is not None:
        held = Memory(*map(add, held, memory(single, 0, batch)))
        kept = max(kept, activations(single, 0, batch))  # one trains after the other
    sent, parameters = traffic(a, first, batch), parameters_sent(a, first, batch)
    backups = _backups(a)
    copies = Backup(*backups(first)) if backups else Backup()
    stages = a.model_on(first).stages
    return RankKind(ranks, stages, held, kept, sent, parameters, lost, copies)


def _groups(a: Arrangement, batch: int) -> Iterator[tuple[int, ...]]:
    """Yields tuples of ranks for which all that decides what they hold and send is equal.

    The first rank of each node is a group of its own, since it has the memory that the node shares;
    so are ranks that measure the model or keep larger backups. Up to FEW ranks each one is a group.
    """
    ranks, at = np.arange(a.mesh.size), a.mesh.coordinates_of_all()
    places = {axis: i for axis, i in at.items() if axis not in BATCH}
    keys = [*places.values(), np.any([at[axis] for axis in (*BATCH, "pp")], axis=0)]
    nodes = np.array(a.cluster.nodes[: a.mesh.size])
    for axes in (axes for axes in (REPLICAS, ("tp",)) if a.mesh.count(*axes) > 1):
        group = _column_ids([nodes, *(i for axis, i in at.items() if axis not in axes)])
        first = np.unique(group, return_index=True)[1]
        keys.append(~np.isin(ranks, first))
    if a.strategy.lists or a.mesh.size <= FEW:  # a tree over slices has no two equal places
        keys.append(ranks)
    else:
        keys += [*_samples(a, at, batch), *_sent_by_place(a, at, batch)]
        keys += [_node_pattern(at, nodes)] if a.mesh.axes["tp"] > 1 else []
    if backups := _backups(a):
        keys.append(np.array([Backup(*backups(r)).held for r in ranks.tolist()]))
    kinds = _column_ids(keys)
    in_order = np.argsort(kinds, kind="stable")
    groups = np.split(in_order, np.flatnonzero(np.diff(kinds[in_order])) + 1)
    yield from sorted(tuple(group.tolist()) for group in groups)
    if a.servers:
        yield tuple(range(a.mesh.size, a.ranks))


def _backups(a: Arrangement) -> Any:
    """Returns a function: a rank -> the fields of its Backup; None if the run makes no backups."""
    backups = BACKUPS.chosen(a.config)
    return backups and backups(a)


def _samples(a: Arrangement, at: Mapping[str, np.ndarray], batch: int) -> Iterator[np.ndarray]:
    """Yields, for each size of micro-batch, how many of its samples each rank gets; `at` has the
    coordinates of all ranks by axis."""
    place, d = _place(a, at, BATCH), a.mesh.count(*BATCH)
    parts = min(a.config.micro_batches, batch)
    for n in {len(part_of(np.empty(batch), parts, m)) for m in range(parts)}:
        yield n * (place + 1) // d - n * place // d


def _sent_by_place(
    a: Arrangement, at: Mapping[str, np.ndarray], batch: int
) -> Iterator[np.ndarray]:
    """Yields, for each collective over replicas, the messages and the chunks of each rank in the
    first and last few rounds: in the others all ranks send equally much."""
    place, p = _place(a, at, REPLICAS), a.mesh.count(*REPLICAS)
    of_dp = exchanges(a, 0, batch).get("dp", ()) if 1 < p <= MANY else ()
    for operation, name in {(exchange.operation, exchange.algorithm): None for exchange in of_dp}:
        algorithm = operation.algorithms.get(name)
        if algorithm is not None:
            rounds = range(algorithm.rounds(p))
            steps = [algorithm.at(t, np.arange(p), p) for t in {*rounds[:FEW], *rounds[-FEW:]}]
            yield np.sum([step.to >= 0 for step in steps], axis=0)[place]
            chunks = (np.where(step.to >= 0, step.count(step.send), 0) for step in steps)
            yield sum(chunks, np.zeros(p, int))[place]


def _node_pattern(at: Mapping[str, np.ndarray], nodes: np.ndarray) -> np.ndarray:
    """Returns a number for each rank, equal if their groups along tp are spread alike over
    nodes."""
    groups = _column_ids([i for axis, i in at.items() if axis != "tp"])
    ranks = np.argsort(groups, kind="stable").reshape(int(groups.max()) + 1, -1)
    over = nodes[ranks] - nodes[ranks[:, :1]]
    parted = np.empty_like(groups)
    parted[ranks] = np.unique(over, axis=0, return_inverse=True)[1].reshape(-1, 1)
    return parted


def _place(a: Arrangement, at: Mapping[str, np.ndarray], axes: Sequence[str]) -> np.ndarray:
    """Returns each rank's index among those that differ along `axes` only."""
    axes_here = [axis for axis in at if axis in axes]
    return np.ravel_multi_index(
        [at[axis] for axis in axes_here], [a.mesh.count(axis) for axis in axes_here]
    )


def _column_ids(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Returns an integer for each column of `rows`; equal columns get equal integers."""
    number_of, most = rows[0].astype(int), int(rows[0].max(initial=0)) + 1
    for row in rows[1:]:
        length = int(row.max(initial=0)) + 1
        if most * length > 1 << 62:
            number_of = np.unique(number_of, return_inverse=True)[1]
            most = number_of.size
        number_of, most = number_of * length + row, most * length
    return number_of
