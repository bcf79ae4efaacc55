"""arrange: from options, cluster and graph to an arrangement. It communicates with nobody."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from nnmpi.config import Config
from nnmpi.mesh import Mesh
from nnmpi.nn.graph import Graph
from nnmpi.nn.store import spans_of
from nnmpi.parallel.arrangement.arrangement import Arrangement, Part
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.division import Division, divided
from nnmpi.parallel.arrangement.flat import (
    Bucket,
    Piece,
    cut_buckets,
    cut_units,
    gathered_together,
)
from nnmpi.parallel.arrangement.partition import units
from nnmpi.parallel.arrangement.reduction import algorithm, progress
from nnmpi.parallel.layout import mesh_of, server_count
from nnmpi.parallel.stores.local import scalar_count
from nnmpi.parallel.tensor.sharding import UNSHARDED, Sharding
from nnmpi.schedules import SCHEDULES

MB = 1e6
NOTHING: Mapping[str, Any] = MappingProxyType({})

_OF_RANKS = ("dp", "pp", "tp", "zero", "schedule", "virtual_stages", "cut", "recompute")

ONE_RANK: dict[str, Any] = {name: getattr(Config(), name) for name in _OF_RANKS}
"""Options of a layout, as they are on one rank."""


def arrange(
    config: Config,
    cluster: Cluster,
    graph: Graph,
    sharding: Sharding = UNSHARDED,
    division: Division | None = None,
    measured: Mapping[str, Any] = NOTHING,
) -> Arrangement:
    """The arrangement of a config; raises ValueError for what cannot be.

    `sharding` is that of the ranks along tp, `division` that of stages, and `measured` may have the
    name of the fastest all-reduce under "allreduce".
    """
    mesh = mesh_of(config, cluster.size)
    division = division or divided(graph, units(graph), (), 1)
    found = Arrangement(
        config,
        cluster,
        graph,
        sharding,
        division,
        mesh,
        server_count(config),
        strategy_of(config),
        {},
        "",
        "",
        tuple(progress(config, cluster, mesh, r) for r in range(mesh.size)),
        measured,
    )
    return _with_buckets(found, {at: _part(found, *at) for at in _places(mesh)})


def alone(arrangement: Arrangement) -> Arrangement:
    """The same on one rank, for --verify."""
    options = {"slow_rank": None, "jitter": None, "verify": False, **ONE_RANK}
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


def _places(mesh: Mesh) -> list[tuple[int, int]]:
    return [(pp, tp) for pp in range(mesh.axes["pp"]) for tp in range(mesh.axes["tp"])]


def _part(a: Arrangement, pp: int, tp: int) -> Part:
    """What ranks with these coordinates have; without buckets."""
    graph, own = a.graph, a.division.of_rank(pp)
    held = sorted({v for stage in own.values() for v in stage.variables})
    trained = a.division.trained(graph, pp)
    pieces = [_piece(a, v, tp) for v in trained]
    users = [frozenset(s for s, stage in own.items() if v in stage.variables) for v in trained]
    others = tuple(_piece(a, v, tp) for v in held if v not in {*trained})
    if a.config.zero > 1:  # what one layer uses is gathered together
        found = gathered_together(graph, pieces, users)
        numbered = {piece.variable: k for k, piece in enumerate(pieces)}
        pieces = [piece for unit in found for piece in unit.pieces]
        users = [users[numbered[piece.variable]] for piece in pieces]
    return Part(tuple(own), tuple(pieces), tuple(users), others, 0, ())


def _piece(a: Arrangement, v: int, tp: int) -> Piece:
    """What a rank along tp has of a variable."""
    variable, cut = a.graph.variables[v], a.sharding.cut_of(v)
    if cut is None:
        return Piece(v, variable.shape, variable.size)
    bounds, axis = cut
    widest = max(stop - start for start, stop in pairwise(bounds))
    shape = list(variable.shape)
    shape[axis] = bounds[tp + 1] - bounds[tp]
    return Piece(v, tuple(shape), variable.size // variable.shape[axis] * widest)


def _with_buckets(a: Arrangement, parts: Mapping[tuple[int, int], Part]) -> Arrangement:
    """The same with an algorithm, the kind of store, scalars and buckets."""
    lengths = {}
    for r in range(a.mesh.size):
        at = a.mesh.coordinates(r)
        trained = parts[at["pp"], at["tp"]].trained
        lengths[r] = spans_of([p.room for p in trained], len(trained) + 2)[-1][1] if trained else 0
    name = algorithm(a.config, a.cluster, a.mesh, a.tied, lengths)
    name = a.measured.get("allreduce", name) if name == "auto" else name
    whole = replace(a, algorithm=name, store=_store(a, name))
    cut = {at: _bucketed(whole, part) for at, part in parts.items()}
    return replace(whole, parts=MappingProxyType(cut))


def _store(a: Arrangement, name: str) -> str:
    """Where parameters and gradients are."""
    fixed = {"server": "served", "reproducible": "slices", "pipedream": "versions"}
    if a.strategy in fixed:
        return fixed[a.strategy]
    dp = a.mesh.axes["dp"]
    if a.config.zero and dp > 1 and name != "shared":
        return f"zero {a.config.zero}"
    if dp == 1 and not a.tied:
        return "local"
    return "node" if name == "shared" else "replica"


def _bucketed(a: Arrangement, part: Part) -> Part:
    config, zero = a.config, a.store.startswith("zero")
    summed_last = zero or a.store in ("served", "versions")
    scalars = 0 if summed_last else scalar_count(part.trained)
    spans = spans_of([p.room for p in part.trained], scalars)
    if a.store in ("served", "versions", "slices") or not spans:
        return part._replace(scalars=scalars)
    mb = config.bucket_mb
    if mb is None:  # on one node, to cut into buckets costs more time than overlap saves
        near = a.algorithm == "shared" and all(map(a.cluster.on_one_node, a.mesh.groups("dp")))
        mb = float("inf") if near else 1.0
    numbers = mb * MB / a.dtype.itemsize
    if a.store in ("zero 2", "zero 3"):
        found = gathered_together(a.graph, part.trained, part.users)
        buckets = cut_units(found, numbers)
    else:
        paths = {t.path for t in a.tied}
        own = [a.graph.variables[p.variable].path for p in part.trained]
        buckets = cut_buckets(spans, numbers, [i for i, p in enumerate(own) if p in paths])
    return part._replace(scalars=scalars, buckets=tuple(Bucket(*b) for b in buckets))
