"""Twins: ranks whose steps are equal except for their coordinates along pp, tp and dp. Only one of
them has to be simulated.

pp 4    [ embedding, blocks | blocks | blocks | blocks, head ]      two stages of four are twins
"""

from collections import Counter
from collections.abc import Hashable, Iterator

from nnmpi.collectives.algorithms import Collective
from nnmpi.parallel.arrangement.arrangement import Arrangement, counting_flags
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.arrangement.program import micro_batches
from nnmpi.parallel.mesh import BATCH, MODEL, REPLICAS
from nnmpi.planning.paper.repeated import all_sections
from nnmpi.planning.paper.sharded_model import places_recorded
from nnmpi.planning.whole_stages import whole_stages


def twin(a: Arrangement, rank: int, batch: int) -> int:
    """Returns the rank whose simulated step may replace that of `rank`, so that equal steps are
    simulated once: the first rank with an equal step for which this function was called, or `rank`
    itself."""
    is_alone = len(a.mesh.group(rank, "pp", "tp")) == 1 if rank < a.mesh.size else True
    is_plain = a.strategy.name in ("pipeline", "replicas") and not a.strategy.lists
    if is_alone or not is_plain or a.sharding.owned.nodes:
        return rank
    return _twins(a, batch).setdefault(tuple(_facts(a, rank, batch)), rank)


@cached
def _twins(a: Arrangement, batch: int) -> dict[Hashable, int]:
    """Returns a dict, empty at first and the same in later calls with these arguments: the facts on
    which a rank's step depends -> the first rank that has these facts."""
    return {}


def _facts(a: Arrangement, rank: int, batch: int) -> Iterator[Hashable]:
    """Yields everything on which the simulated step of a rank depends. Parameters and stages are
    numbered within the rank, so that two ranks with equal steps (twins) yield the same facts."""
    at, held = a.mesh.coordinates(rank), a.model_on(rank)
    places = {variable.variable: i for i, variable in enumerate(held.trained)}
    stages = {s: i for i, s in enumerate(held.stages)}
    sizes = micro_batches(a, rank, batch)
    # a fact that a step depends on and that is missing below would make unequal ranks twins
    shares = tuple(stop - start for start, stop in a.owned_ranges(rank))
    yield shares, at["cp"], tuple(sizes), a.progress[rank]
    for variable, is_counted in zip(held.trained, counting_flags(a, rank), strict=True):
        users = tuple(sorted(stages[s] for s in variable.users))
        yield (
            variable.shape,
            variable.padded_size,
            variable.region,
            users,
            is_counted,
            variable.variable in a.sharding.partial_gradients,
        )
    yield held.scalars, tuple(held.buckets)
    for s in held.stages:
        for section in all_sections(a, s):
            yield section.signature, tuple(map(places.get, section.variables))
        for n in dict.fromkeys(sizes):
            yield n, places_recorded(a, s, n)[at["tp"]]
            for stage in a.division.stages[s : s + 2]:
                edges = [(e, a.graph.edges[e]) for e in stage.takes]
                shapes = ((a.local_shape(e, n, at), x.dtype, x.requires_grad) for e, x in edges)
                yield tuple(shapes)
    numbers = range(len(sizes)) if a.store.zero > 1 else sizes
    ops = whole_stages(a, len(sizes))[at["pp"]].ops
    listed = [(op.kind, numbers[op.micro], stages.get(op.stage)) for op in ops]
    yield tuple(listed if a.store.zero > 1 else Counter(listed).items())
    for path, ranks in a.tied.items():
        owned = [places.get(v) for v, x in enumerate(a.graph.variables) if x.path == path]
        yield tuple(owned), at["pp"] if at["pp"] in ranks else None
    for axes in (*((axis,) for axis in a.mesh.axes), BATCH, REPLICAS, MODEL, (*a.mesh.axes,)):
        yield _on_nodes(a, rank, a.mesh.group(rank, *axes))
    yield a.sums_by(a.mesh.group(rank, "tp"))


def _on_nodes(a: Arrangement, rank: int, group: tuple[int, ...]) -> Hashable:
    """Returns how a group of ranks is spread over nodes, and whether `rank` is the first on its
    node, in a form that is equal for ranks with equal steps."""
    nodes = [a.cluster.nodes[r] for r in group]
    numbers = {node: i for i, node in enumerate(dict.fromkeys(nodes))}
    near = a.cluster.near(rank, group)
    if len(group) == a.ranks:
        return len(near), near[0] == rank
    return tuple(numbers[node] for node in nodes), len(near), near[0] == rank


def moved(a: Arrangement, exchange: Exchange, source: int, rank: int) -> Exchange:
    """Converts an exchange of rank `source` to the exchange that `rank` makes at the same place of
    its step, which is equal: replaces the group of ranks and the stage."""
    is_message = exchange.operation is Collective.MESSAGE
    group = _moved_group(a, exchange.group, source, rank, is_message)
    stages = dict(zip(a.model_on(source).stages, a.model_on(rank).stages, strict=True))
    return exchange._replace(group=group, stage=stages.get(exchange.stage, exchange.stage))


@cached
def _moved_group(
    a: Arrangement, group: tuple[int, ...], source: int, rank: int, is_message: bool
) -> tuple[int, ...]:
    """Returns the group of ranks in an exchange of `rank`, given the `group` in the same exchange
    of `source`. Along axes on which the members of the group have equal coordinates, these are
    replaced by those of `rank`. The two ranks of a message along pp (`is_message`) are shifted by
    the difference between the coordinates of `rank` and `source`."""
    old, new = a.mesh.coordinates(source), a.mesh.coordinates(rank)
    members = [a.mesh.coordinates(r) for r in group]
    for axis in (*MODEL, "dp"):
        if len({at[axis] for at in members}) == 1:
            for at in members:
                at[axis] = new[axis]
        elif axis == "pp" and is_message:
            for at in members:
                at[axis] = (at[axis] + new[axis] - old[axis]) % a.mesh.axes[axis]
    return tuple(map(a.mesh.rank, members))
