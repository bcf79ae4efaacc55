"""arrange: from options, cluster and graph to an arrangement. It communicates with nobody.

The last layers' gradients are final first, so buckets are cut from the end of the flat buffer:

    gradients   [ scalars | conv1 | conv2 | fc1 | fc2 ]
                  ◄────bucket 2────► ◄─ 1 ─► ◄ 0 ►     summed in the order 0, 1, 2 on every rank

Rules:

- Pure: no Comm, no clock, no environment. All ranks arrange the same from the same values, and
  `simulate layout` does for clusters that are on paper only. What was measured comes as a value.
- The order matters: the all-reduce decides the store, the store what is scattered, and that the
  buckets. So buckets are found last, from an arrangement without them.
- Where buckets are cut, and which come first, decides the bits of sums.
- An option of Config that only several ranks have use for belongs in OF_RANKS, or `--verify` has it
  on its single rank too.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise, product
from typing import Any

from nnmpi.nn.graph import Graph
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import (
    MEASURED,
    Arrangement,
    StoreKind,
    StrategyKind,
    users_of,
)
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import Division, divide
from nnmpi.parallel.arrangement.flat_buffer import scalar_count
from nnmpi.parallel.arrangement.partition import units
from nnmpi.parallel.arrangement.rank_model import NOT_TIED, Bucket, HeldVariable, RankModel
from nnmpi.parallel.arrangement.reduction import algorithm, progress
from nnmpi.parallel.arrangement.store_kinds import STORE_KINDS, asked_kind
from nnmpi.parallel.layout import mesh_of, server_count
from nnmpi.parallel.mesh import AXES, REPLICAS, Mesh
from nnmpi.parallel.tensor.branches import overlapping
from nnmpi.parallel.tensor.sharding import UNSHARDED, Sharding
from nnmpi.parallel.tensor.ways import OF_SAMPLES
from nnmpi.schedules import proof

MB = 1e6
DEFAULT_MB = 1.0
"""The default size of a bucket of gradients that are summed between nodes, in MB."""

OF_RANKS = (
    *(axis.name for axis in AXES),
    *("zero", "schedule", "virtual_stages", "cut", "recompute", "reduce_dtype"),
    *("slow_rank", "jitter", "verify", "sequence_parallel", "layout", "backup", "mtbf"),
)
"""Options that one rank has no use for."""


def arrange(
    config: Config,
    cluster: Cluster,
    graph: Graph,
    sharding: Sharding = UNSHARDED,
    division: Division | None = None,
    measured: Mapping[str, Any] | None = None,
) -> Arrangement:
    """The arrangement of a config; raises ValueError for what cannot be.

    `sharding` is that of the ranks along tp, `division` that of stages, and `measured` may have the
    name of the fastest all-reduce under "allreduce".
    """
    mesh = mesh_of(config, cluster.size)
    division = division or divide(graph, units(graph), (), 1)
    _check_branches(sharding, division)
    _check_samples(graph, sharding, division)
    kinds, models = _kinds(sharding, mesh), dict[object, RankModel]()
    for at, kind in kinds.items():
        if kind not in models:
            models[kind] = _rank_model(config, graph, sharding, division, *at)
    lengths = {at: models[kind].length for at, kind in kinds.items()}
    tied, measured = division.tied(graph), measured or {}
    name = algorithm(config, cluster, mesh, tied, lengths)
    name = measured.get("allreduce", name) if name == MEASURED else name
    strategy = strategy_of(config)
    is_in_window = name == "shared" and not cluster.survives
    store = _store(config, strategy.name, mesh.count(*REPLICAS), is_in_window, is_tied=bool(tied))
    moves = progress(config, cluster, mesh)
    arrangement = Arrangement(
        *(config, cluster, graph, sharding, division, mesh, server_count(config), strategy),
        *({at: models[kind] for at, kind in kinds.items()}, store, name, moves, measured),
    )
    bucketed = {kind: _bucketed(arrangement, held) for kind, held in models.items()}
    return replace(arrangement, rank_models={at: bucketed[kind] for at, kind in kinds.items()})


def single_rank(arrangement: Arrangement) -> Arrangement:
    """The arrangement of the same model on one rank, for --verify."""
    plain = Config()
    options = {name: getattr(plain, name) for name in OF_RANKS}
    config = replace(arrangement.config, **options)
    return arrange(config, Cluster.on_paper(1), arrangement.graph)


STRATEGY_KINDS = (
    StrategyKind("server", lambda c: server_count(c) > 0, steps_together=False),
    StrategyKind("reproducible", lambda c: c.reproducible),
    StrategyKind(
        "pipedream",
        lambda c: proof.find(c.schedule).update_each,
        steps_together=False,
        is_pipeline=True,
    ),
    StrategyKind(
        "pipeline",
        lambda c: c.pp > 1 or c.recompute or c.schedule != Config().schedule,
        is_pipeline=True,
    ),
    StrategyKind("replicas", lambda c: True),
)
"""The strategies that train."""


def strategy_of(config: Config) -> StrategyKind:
    """The first one that a config asks for."""
    return next(kind for kind in STRATEGY_KINDS if kind.is_asked(config))


def _kinds(sharding: Sharding, mesh: Mesh) -> dict[tuple[int, int], object]:
    """A key for each (pp, tp), equal for ranks that share a rank model: their coordinate along pp,
    along tp if ranks have branches of their own, and the widths of their parts."""
    bounds = {cut.bounds for cut in sharding.variables.values()}
    owns = bool(sharding.branches.variables)
    return {
        (pp, tp): (pp, tp if owns else 0, *(b[tp + 1] - b[tp] for b in bounds))
        for pp, tp in product(range(mesh.axes["pp"]), range(mesh.axes["tp"]))
    }


def _rank_model(
    config: Config, graph: Graph, sharding: Sharding, division: Division, pp: int, tp: int
) -> RankModel:
    """The part of the model that ranks with these coordinates have, without buckets."""
    stages, trained = division.of_rank(pp), division.trained(graph, pp)
    others = sorted({v for stage in stages.values() for v in stage.variables} - {*trained})
    owned, regions = sharding.branches, _regions(sharding, trained)

    def held(v: int) -> HeldVariable:
        variable, cut = graph.variables[v], sharding.variables.get(v)
        users = frozenset(s for s, stage in stages.items() if v in stage.variables)
        region = regions.get(v, 0)
        shape, room = list(variable.shape), variable.size
        if cut is not None:
            widths = [stop - start for start, stop in pairwise(cut.bounds)]
            shape[cut.axis], room = widths[tp], room // shape[cut.axis] * max(widths)
        return HeldVariable(v, tuple(shape), room, users, region)

    first = tuple(held(v) for v in trained if owned.has(v, tp))
    if asked_kind(config).scatters:  # what one layer uses is gathered together
        first = tuple(chain.from_iterable(gathered_together(graph, first)))
    rest = tuple(held(v) for v in others if owned.has(v, tp))
    return RankModel(tuple(stages), first, rest, scalar_count(trained))


def _check_branches(sharding: Sharding, division: Division) -> None:
    """Raises ValueError if a stage begins within branches that are divided among ranks."""
    for call in sharding.branches.calls.values():
        inside = range(call.nodes[0].start + 1, call.node + 1)
        for s, stage in enumerate(division.stages):
            if stage.nodes.start in inside:
                raise ValueError(
                    f"stage {s} begins within the branches {call.path}, of which each rank along "
                    "tp has some: give a --cut before or behind them, or use --tp 1"
                )


def _check_samples(graph: Graph, sharding: Sharding, division: Division) -> None:
    """Raises ValueError if a stage begins with what ranks along tp have some samples of each."""
    for s, stage in enumerate(division.stages):
        if any(sharding.edges.get(e) is OF_SAMPLES for e in stage.takes):
            raise ValueError(
                f"stage {s} begins with {graph.nodes[stage.nodes.start].name} in the midst of "
                "layers that --layout computes by samples: give a --cut before or behind them"
            )


def _regions(sharding: Sharding, trained: Sequence[int]) -> dict[int, int]:
    """The number of the region of each parameter: one that is odd begins and ends where branches
    do.

    Ranks along tp have different branches. What they have copies of is in buckets of its own, which
    are as long on all of them: so its gradients are added up in the same order.
    """
    regions, region = dict[int, int](), 0
    for v in trained:
        region += (v in sharding.branches.variables) != region % 2
        regions[v] = region
    return regions


def _store(
    config: Config, strategy: str, copies: int, is_in_window: bool, is_tied: bool
) -> StoreKind:
    """Where parameters and gradients are. A window of a node, in which its ranks sum, has its
    parameters too, unless other ranks go on without one that is lost within an update."""
    asked = asked_kind(config)
    for kind in STORE_KINDS.values():
        if kind.strategy == strategy:
            return kind
    if asked.zero and copies > 1 and not is_in_window:
        return asked
    if copies == 1 and not is_tied:
        return STORE_KINDS["local"]
    return STORE_KINDS["node" if is_in_window else "replica"]


# ---- where gradients are cut into buckets


def _bucketed(a: Arrangement, held: RankModel) -> RankModel:
    """The part of the model with buckets of gradients, without scalars that are summed apart."""
    if a.is_mixed or not a.store.scalars:
        held = held._replace(scalars=0)
    if not a.store.buckets or not held.trained:
        return held
    mb = a.config.bucket_mb
    if mb is None:  # on one node, to cut into buckets costs more time than overlap saves
        near = a.algorithm == "shared" and all(map(a.cluster.on_one_node, a.mesh.groups(*REPLICAS)))
        mb = float("inf") if near else DEFAULT_MB
    groups: Sequence[tuple[HeldVariable, ...]] = [(variable,) for variable in held.trained]
    if a.store.scatters:
        groups = gathered_together(a.graph, held.trained)
    alone, spans = _tied(a, groups), held.spans
    firsts = [*accumulate(map(len, groups), initial=0)]
    bounds = [(spans[first][0], spans[end - 1][1]) for first, end in pairwise(firsts)]
    labels = [(a.store.scatters and users_of(group), group[0].region) for group in groups]
    buckets = cut_buckets(bounds, mb * MB / a.dtype.itemsize, alone, labels)
    tied = [b if b.tied == NOT_TIED else b._replace(tied=firsts[b.tied]) for b in buckets]
    return held._replace(buckets=tuple(tied))


def _tied(a: Arrangement, groups: Sequence[Sequence[HeldVariable]]) -> list[int]:
    """The groups of parameters that stages of other ranks have too: all of a group, or none."""
    tied_groups, tied = [], a.tied
    for k, group in enumerate(groups):
        paths = [a.graph.variables[member.variable].path for member in group]
        others = [path for path in paths if path in tied]
        if len({tied.get(path) for path in paths}) > 1:
            raise ValueError(
                f"{a.store.name} gathers {' and '.join(paths)} together, and {others[0]} is in "
                "several stages: use --zero 1, or a --cut that keeps it in one stage"
            )
        tied_groups += [k] * bool(others)
    return tied_groups


def cut_buckets(
    spans: Sequence[tuple[int, int]],
    numbers: float,
    tied: Collection[int] = (),
    labels: Sequence[Any] = (),
) -> list[Bucket]:
    """Buckets of at least so many numbers, the last ones first; no span is cut in two.

    The spans are of parameters, or of groups of parameters that are gathered together. Those at the
    indices `tied`, which other stages have too, are buckets alone. If `labels` are given, one for
    each span, what is in one bucket has the same one.
    """
    edges = [
        (i if i in tied else NOT_TIED, labels[i] if labels else None) for i in range(len(spans))
    ]
    buckets, end = list[Bucket](), len(spans)
    for i in reversed(range(len(spans))):
        start, stop = spans[i][0], spans[end - 1][1]
        if i == 0 or edges[i - 1] != edges[i] or stop - start >= numbers:
            buckets.append(Bucket(start, stop, edges[i][0]))
            end = i
    if buckets[-1].tied == NOT_TIED or not spans[0][0]:  # scalars go with what is behind them
        return [*buckets[:-1], buckets[-1]._replace(start=0)]
    return [*buckets, Bucket(0, spans[0][0])]


def gathered_together(
    graph: Graph, variables: Sequence[HeldVariable]
) -> list[tuple[HeldVariable, ...]]:
    """Groups of parameters: those of one module are in one group, and one of several modules joins
    these. An op uses parameters of one module, so what it needs is there when their bucket is."""
    names = (graph.variables[held.variable].names for held in variables)
    modules = [{name.rpartition(".")[0] for name in several} for several in names]
    in_order = sorted(sorted(members) for members in overlapping(modules))
    return [tuple(variables[k] for k in members) for members in in_order]
