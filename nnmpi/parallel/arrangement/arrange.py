"""arrange: computes from options, cluster and graph which part of the model each rank has and what
it does (the Arrangement), without communication.

The gradients of the last layers are final first, so buckets are cut from the end of the flat
buffer, and summed from the last to the first. Their numbers follow the order in memory:

    gradients   [ scalars | conv1 | conv2 | fc1 | fc2 ]
                  ◄──────bucket 0───────►  ◄ 1 ► ◄ 2 ►     summed in the order 2, 1, 0

Rules:

- `arrange` is pure: no Comm, no clock, no environment. All ranks compute the same arrangement from
  the same values, and `simulate layout` does so for clusters that do not exist.
- The order matters: the kind of store depends on the all-reduce, and the buckets of gradients
  depend on both. So an arrangement without buckets is made first, and then its buckets are cut.
- Where buckets are cut, and their order, changes the bits of sums.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise, product
from typing import Any, cast

from nnmpi.nn.graph import Graph
from nnmpi.nn.recompute import recomputed_paths
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import (
    Arrangement,
    StoreKind,
    StrategyKind,
    users_of,
)
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import Division, divide
from nnmpi.parallel.arrangement.flat_buffer import scalar_count
from nnmpi.parallel.arrangement.partition import units
from nnmpi.parallel.arrangement.rank_model import NOT_TIED, BucketSlice, HeldVariable, RankModel
from nnmpi.parallel.arrangement.reduction import algorithm, alike_on_nodes, progress, shares_values
from nnmpi.parallel.arrangement.store_kinds import STORE_KINDS, asked_kind
from nnmpi.parallel.checks import CHECKS
from nnmpi.parallel.layout import STRATEGY_KINDS, mesh_of, server_count, summed_axes
from nnmpi.parallel.mesh import REPLICAS, Mesh
from nnmpi.parallel.tensor.sharding import UNSHARDED, Sharding, overlapping
from nnmpi.parallel.tensor.ways import SAMPLE_CUT

MB = 1e6
DEFAULT_MB = 1.0
"""The default size in MB of a bucket whose gradients are summed between nodes."""


def arrange(
    config: Config,
    cluster: Cluster,
    graph: Graph,
    sharding: Sharding = UNSHARDED,
    division: Division | None = None,
    measured: Mapping[str, Any] | None = None,
) -> Arrangement:
    """Returns the arrangement that a config asks for; raises ValueError if it is impossible.

    `measured` has the measurements by which the model was divided, as the log shows them.
    """
    mesh = mesh_of(config, cluster.size)
    division = division or divide(graph, units(graph), (), (0,))
    if config.recompute != "none":
        recomputed_paths(graph, config.recompute)  # refuses what the model lacks
    for checks in CHECKS.given(config):
        checks.graph(config, graph, sharding)
    if config.tp > 1:
        _check_owned(sharding, division)
        _check_samples(graph, sharding, division)
    kinds, models = _kinds(sharding, mesh), dict[object, RankModel]()
    for at, kind in kinds.items():  # large jobs have few kinds
        if kind not in models:
            models[kind] = _rank_model(config, graph, sharding, division, *at)
    lengths = {at: models[kind].length for at, kind in kinds.items()}
    tied = division.tied(graph)
    name = algorithm(config, cluster, mesh, tied, lengths)
    strategy = strategy_of(config)
    copies = mesh.count(*summed_axes(config))
    is_in_window = name == "shared" and shares_values(config, cluster) and copies > 1
    if sharding.partial_gradients:
        is_in_window &= alike_on_nodes(cluster, mesh, summed_axes(config))
    store = strategy.store or _store(config, copies, is_in_window, is_tied=bool(tied))
    moves = progress(config, cluster, mesh)
    arrangement = Arrangement(
        *(config, cluster, graph, sharding, division, mesh, server_count(config), strategy),
        *({at: models[kind] for at, kind in kinds.items()}, store, name, moves, measured or {}),
    )
    # buckets come last: where they are cut depends on the store and the all-reduce
    bucketed = {kind: _bucketed(arrangement, held) for kind, held in models.items()}
    return replace(arrangement, rank_models={at: bucketed[kind] for at, kind in kinds.items()})


REPLICATED = StrategyKind("replicas")
PIPELINE = StrategyKind("pipeline", is_pipeline=True)


def strategy_of(config: Config) -> StrategyKind:
    """Returns the kind of strategy (replicas, pipeline, server, ...) of a config."""
    if kind := STRATEGY_KINDS.chosen(config):
        return cast(StrategyKind, kind)
    is_cut = config.pp > 1 or config.recompute == "stage" or config.schedule != Config().schedule
    return PIPELINE if is_cut else REPLICATED


def _kinds(sharding: Sharding, mesh: Mesh) -> dict[tuple[int, int], object]:
    """Returns a key for each (pp, tp) coordinate of the mesh; ranks with equal keys share a
    RankModel, since their parts of the model have the same shapes."""
    bounds = {cut.bounds for cut in sharding.variables.values()}
    owns = bool(sharding.owned.variables)
    return {
        (pp, tp): (pp, tp if owns else 0, *(b[tp + 1] - b[tp] for b in bounds))
        for pp, tp in product(range(mesh.axes["pp"]), range(mesh.axes["tp"]))
    }


def _rank_model(
    config: Config, graph: Graph, sharding: Sharding, division: Division, pp: int, tp: int
) -> RankModel:
    """Returns the RankModel of the ranks at coordinates (pp, tp), without buckets yet."""
    stages, trained = division.of_rank(pp), division.trained(graph, pp)
    untrained = sorted({v for stage in stages.values() for v in stage.variables} - {*trained})
    owned, regions = sharding.owned, _regions(sharding, trained)

    def held(v: int) -> HeldVariable:
        variable, cut = graph.variables[v], sharding.variables.get(v)
        users = frozenset(s for s, stage in stages.items() if v in stage.variables)
        region = regions.get(v, 0)
        shape, room = list(variable.shape), variable.size
        if cut is not None:
            widths = [stop - start for start, stop in pairwise(cut.bounds)]
            shape[cut.axis], room = widths[tp], room // shape[cut.axis] * max(widths)
        return HeldVariable(v, tuple(shape), room, users, region)

    held_trained = tuple(held(v) for v in trained if owned.has(v, tp))
    if asked_kind(config).scatters:  # in the order of gathers: what one layer uses is together
        held_trained = tuple(chain.from_iterable(gathered_together(graph, held_trained)))
    if trained and not held_trained:
        raise ValueError(f"rank {tp} along tp has no parameters of stage {pp}: use a smaller --tp")
    held_untrained = tuple(held(v) for v in untrained if owned.has(v, tp))
    return RankModel(tuple(stages), held_trained, held_untrained, scalar_count(trained))


def _check_owned(sharding: Sharding, division: Division) -> None:
    """Raises ValueError if a pipeline stage begins within a module whose parts, such as parallel
    branches, are on single ranks along tp."""
    for node, call in sharding.owned.calls.items():
        inside = range(call.nodes.start + 1, node + 1)
        for s, stage in enumerate(division.stages):
            if stage.nodes.start in inside:
                raise ValueError(
                    f"stage {s} begins within the {call.word} {call.path}, which are divided among "
                    "ranks along tp: use a --cut before or after them, or --tp 1"
                )


def _check_samples(graph: Graph, sharding: Sharding, division: Division) -> None:
    """Raises ValueError if a stage begins between layers that ranks along tp compute for
    different samples."""
    for s, stage in enumerate(division.stages):
        if any(sharding.edges.get(e) is SAMPLE_CUT for e in stage.takes):
            raise ValueError(
                f"stage {s} begins with {graph.nodes[stage.nodes.start].name}, in the middle of "
                "layers that --layout computes by samples: use a --cut before or after them"
            )


def _regions(sharding: Sharding, trained: Sequence[int]) -> dict[int, int]:
    """Numbers the regions (`HeldVariable`) of the flat gradient buffer; returns the region of each
    trained parameter.

    A bucket never spans two regions, so buckets of parameters that all ranks have are added up in
    the same order everywhere.
    """
    regions, region = dict[int, int](), 0
    for v in trained:
        region += (v in sharding.owned.variables) != region % 2
        regions[v] = region
    return regions


def _store(config: Config, copies: int, is_in_window: bool, is_tied: bool) -> StoreKind:
    """Returns the kind of store of parameters and gradients.

    is_in_window   True if the ranks of a node sum gradients in shared memory, which then has the
                   parameters too
    """
    if copies == 1:
        return STORE_KINDS["replica" if is_tied else "local"]
    return STORE_KINDS["node"] if is_in_window else asked_kind(config)


# ---- where gradients are cut into buckets


def _bucketed(a: Arrangement, held: RankModel) -> RankModel:
    """Returns the RankModel `held` with its gradients divided into buckets, and without the space
    for scalars in front of them if these are summed separately."""
    if a.is_mixed or not a.store.scalars:
        held = held._replace(scalars=0)
    if not a.store.buckets or not held.trained:
        return held
    mb = a.config.bucket_mb
    if mb is None:  # on one node, separate buckets cost more time than their overlap saves
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
    """Returns the indices of the groups that contain a tied parameter.

    Raises ValueError if only some parameters of a group, which ZeRO gathers together, are tied.
    """
    tied_groups, tied = [], a.tied
    for k, group in enumerate(groups):
        paths = [a.graph.variables[member.variable].path for member in group]
        tied_paths = [path for path in paths if path in tied]
        if len({tied.get(path) for path in paths}) > 1:
            raise ValueError(
                f"{a.store.name} gathers {' and '.join(paths)} together, but {tied_paths[0]} is in "
                "several pipeline stages: use --zero 1, or a --cut that keeps it in one stage"
            )
        tied_groups += [k] * bool(tied_paths)
    return tied_groups


def cut_buckets(
    spans: Sequence[tuple[int, int]],
    numbers: float,
    tied: Collection[int] = (),
    labels: Sequence[Any] = (),
) -> list[BucketSlice]:
    """Divides the gradients into buckets of at least `numbers` elements, from the last parameter to
    the first, since the last gradients are complete first; returns them in memory order.

    spans    (start, stop) of each parameter, or group of parameters; none is cut
    tied     the indices of spans with tied parameters: each becomes a bucket of its own, since the
             ranks of all its stages sum it
    labels   a label for each span, or (): a bucket ends where the label changes
    """
    # a bucket ends where a label changes, and on both sides of a tied span
    edges = [
        (i if i in tied else NOT_TIED, labels[i] if labels else None) for i in range(len(spans))
    ]
    buckets, end = list[BucketSlice](), len(spans)
    for i in reversed(range(len(spans))):
        start, stop = spans[i][0], spans[end - 1][1]
        if i == 0 or edges[i - 1] != edges[i] or stop - start >= numbers:
            buckets.insert(0, BucketSlice(start, stop, edges[i][0]))
            end = i
    if buckets[0].tied == NOT_TIED or not spans[0][0]:  # scalars are summed with it
        return [buckets[0]._replace(start=0), *buckets[1:]]
    return [BucketSlice(0, spans[0][0]), *buckets]


def gathered_together(
    graph: Graph, variables: Sequence[HeldVariable]
) -> list[tuple[HeldVariable, ...]]:
    """Divides the parameters of a rank into groups that ZeRO gathers together: those of one module,
    as an op uses no others. A parameter of several modules joins their groups."""
    names = (graph.variables[held.variable].names for held in variables)
    modules = [{name.rpartition(".")[0] for name in aliases} for aliases in names]
    in_order = sorted(sorted(members) for members in overlapping(modules))
    return [tuple(variables[k] for k in members) for members in in_order]
