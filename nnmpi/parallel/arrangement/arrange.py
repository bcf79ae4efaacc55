"""arrange: from options, cluster and graph to an arrangement. It communicates with nobody."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, product
from typing import Any

from nnmpi.config import Config
from nnmpi.mesh import AXES, REPLICAS
from nnmpi.nn.graph import Graph
from nnmpi.parallel.arrangement.arrangement import MEASURED, Arrangement, Held, HeldVariable
from nnmpi.parallel.arrangement.buckets import gathered_together, with_buckets
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import Division, divided
from nnmpi.parallel.arrangement.partition import units
from nnmpi.parallel.arrangement.reduction import algorithm, progress
from nnmpi.parallel.arrangement.store_kinds import STORE_KINDS, StoreKind, asked_kind
from nnmpi.parallel.layout import mesh_of, server_count
from nnmpi.parallel.stores import scalar_count
from nnmpi.parallel.tensor.sharding import UNSHARDED, Sharding
from nnmpi.schedules.pipeline import SCHEDULES

OF_RANKS = (
    *(axis.name for axis in AXES),
    *("zero", "schedule", "virtual_stages", "cut", "recompute"),
    *("slow_rank", "jitter", "verify", "sequence_parallel"),
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
    division = division or divided(graph, units(graph), (), 1)
    _check_branches(sharding, division)
    places = product(range(mesh.axes["pp"]), range(mesh.axes["tp"]))
    holdings = {at: _held(config, graph, sharding, division, *at) for at in places}
    lengths = {}
    for r in range(mesh.size):
        at = mesh.coordinates(r)
        held = holdings[at["pp"], at["tp"]]
        lengths[r] = held.spans[-1][1] if held.trained else 0
    tied = division.tied(graph)
    name = algorithm(config, cluster, mesh, tied, lengths)
    measured = measured or {}
    name = measured.get("allreduce", name) if name == MEASURED else name
    strategy = strategy_of(config)
    found = Arrangement(
        config,
        cluster,
        graph,
        sharding,
        division,
        mesh,
        server_count(config),
        strategy,
        holdings,
        _store(config, strategy, mesh.count(*REPLICAS), name, is_tied=bool(tied)),
        name,
        tuple(progress(config, cluster, mesh, r) for r in range(mesh.size)),
        measured,
    )
    return replace(found, holdings={at: with_buckets(found, held) for at, held in holdings.items()})


def alone(arrangement: Arrangement) -> Arrangement:
    """The arrangement of the same model on one rank, for --verify."""
    plain = Config()
    options = {name: getattr(plain, name) for name in OF_RANKS}
    config = replace(arrangement.config, **options)
    return arrange(config, Cluster.on_paper(1), arrangement.graph)


def strategy_of(config: Config) -> str:
    """The name of the strategy that trains."""
    plain = Config()
    if server_count(config):
        return "server"
    if config.reproducible:
        return "reproducible"
    if config.schedule == "pipedream":
        return "pipedream"
    if config.pp > 1 or config.recompute or config.schedule != plain.schedule:
        return "pipeline"
    return "replicas"


def stages_of(config: Config) -> int:
    """The stages of all ranks along pp."""
    return config.pp * (config.virtual_stages if SCHEDULES[config.schedule].virtual else 1)


def _held(
    config: Config, graph: Graph, sharding: Sharding, division: Division, pp: int, tp: int
) -> Held:
    """What ranks with these coordinates have; without buckets."""
    own, trained = division.of_rank(pp), division.trained(graph, pp)
    others = sorted({v for stage in own.values() for v in stage.variables} - {*trained})
    owned, stretches = sharding.owned, _stretches(sharding, trained)

    def held(v: int) -> HeldVariable:
        variable, cut = graph.variables[v], sharding.variables.get(v)
        users = frozenset(s for s, stage in own.items() if v in stage.variables)
        stretch = stretches.get(v, 0)
        if cut is None:
            return HeldVariable(v, variable.shape, variable.size, users, stretch)
        bounds, axis = cut
        widest = max(stop - start for start, stop in pairwise(bounds))
        shape = list(variable.shape)
        shape[axis] = bounds[tp + 1] - bounds[tp]
        room = variable.size // variable.shape[axis] * widest
        return HeldVariable(v, tuple(shape), room, users, stretch)

    first = tuple(held(v) for v in trained if owned.has(v, tp))
    if asked_kind(config).scatters:  # what one layer uses is gathered together
        first = tuple(chain.from_iterable(gathered_together(graph, first)))
    rest = tuple(held(v) for v in others if owned.has(v, tp))
    return Held(tuple(own), first, rest, scalar_count(trained))


def _check_branches(sharding: Sharding, division: Division) -> None:
    """Raises ValueError if a stage begins within branches that are divided among ranks."""
    for call in sharding.owned.calls.values():
        inside = range(call.nodes[0].start + 1, call.join + 1)
        for s, stage in enumerate(division.stages):
            if stage.nodes.start in inside:
                raise ValueError(
                    f"stage {s} begins within the branches {call.path}, of which each rank along "
                    "tp has some: give a --cut before or behind them, or use --tp 1"
                )


def _stretches(sharding: Sharding, trained: Sequence[int]) -> dict[int, int]:
    """The number of the stretch of each parameter: one that is odd begins and ends where branches
    do.

    Ranks along tp have different branches. What they have copies of is in buckets of its own, which
    are as long on all of them: so its gradients are added up in the same order.
    """
    found, now = dict[int, int](), 0
    for v in trained:
        now += (v in sharding.owned.variables) != now % 2
        found[v] = now
    return found


def _store(config: Config, strategy: str, copies: int, name: str, is_tied: bool) -> StoreKind:
    """Where parameters and gradients are; `name` is that of the all-reduce."""
    asked = asked_kind(config)
    for kind in STORE_KINDS.values():
        if kind.strategy == strategy:
            return kind
    if asked.zero and copies > 1 and name != "shared":
        return asked
    if copies == 1 and not is_tied:
        return STORE_KINDS["local"]
    return STORE_KINDS["node" if name == "shared" else "replica"]
