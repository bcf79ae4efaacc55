"""Describes a layout as an event of JSON values, which is printed, or written to the run's log."""

from collections import Counter
from itertools import pairwise

from nnmpi.addons.planning.layout_lines import as_lines, blocks
from nnmpi.addons.planning.paper.rank_kinds import RankKind, rank_kinds
from nnmpi.io.output.messages import EVENT_FIELDS, Event
from nnmpi.nn import Module
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Traffic
from nnmpi.parallel.arrangement.state_on_paper import held_on_paper, state_on_paper
from nnmpi.parallel.mesh import REPLICAS
from nnmpi.parallel.model.mover import Mover
from nnmpi.parallel.model.moves import MovePlan
from nnmpi.run.start_events import devices


def layout_event(a: Arrangement) -> Event:
    """Returns a description of an arrangement, for --dry-run and `simulate layout`: model and
    options, axes, how layers are divided, and what ranks hold and send in a step over a whole
    batch."""
    config, graph = a.config, a.graph
    return {
        "event": "layout",
        "model": config.model,
        "parameters": sum(v.size for v in graph.variables if v.is_parameter),
        "ranks": a.ranks,
        "nodes": len({*a.cluster.nodes}),
        **devices(a),
        "layout": a.mesh.axes,
        "strategy": a.strategy.name,
        "zero": config.zero,
        "schedule": config.schedule if a.strategy.is_pipeline else None,
        "batch_size": config.batch_size,
        "micro_batches": min(config.micro_batches, config.batch_size),
        "dtype": config.dtype,
        "optimizer": config.optimizer,
        "sync": config.sync,
        "allreduce": a.algorithm if a.mesh.count(*REPLICAS) > 1 and a.store.buckets else None,
        "cut": ",".join(map(str, a.division.begins)) or None,
        "notes": list(graph.notes),
        **{k: v for f in EVENT_FIELDS.given(config) for k, v in f.layout(a).items()},
        **rank_fields(a),
        "sharded_layers": [
            {
                "layer": layer.path,
                "kind": layer.kind,
                "how": layer.how,
                "weight": list(layer.sizes),
                "channels": [stop - start for start, stop in pairwise(layer.bounds)],
                "messages": layer.messages,
                "why": layer.why,
            }
            for layer in a.sharding.layers
        ],
        "drawing": list(as_lines(a)),
    }


def rank_fields(a: Arrangement) -> Event:
    """Returns two fields for the start event of a run and for `layout_event`:

    kinds    for each group of ranks that do equal work, what a rank holds, and sends in a step
    blocks   for each group of ranks with the same pipeline stages, the layers in them
    """
    return {
        "kinds": [_figures(kind) for kind in rank_kinds(a, a.config.batch_size)],
        "blocks": [
            {"ranks": ranks, "layers": [layer._asdict() for layer in layers]}
            for ranks, layers in blocks(a)
        ],
    }


def rearranged(old: Arrangement, new: Arrangement, model: Module) -> list[MovePlan]:
    """Returns the plans by which ranks move parameters, and other state, to another arrangement.
    Which ranks share a node is taken from the arrangement with more ranks."""
    axes = {p.place.path: p.memory_axes for p in model.parameters()}
    values = {variable.path for variable in old.graph.variables}
    have = [(r, x) for r in range(old.ranks) for x in state_on_paper(old, r, axes)]
    ranks = range(new.ranks)
    need = [
        [(r, x) for r in ranks for x in held_on_paper(new, r, axes)],
        [(r, x) for r in ranks for x in state_on_paper(new, r, axes) if x.name not in values],
    ]
    nodes = max(old.cluster.nodes, new.cluster.nodes, key=len)
    return [Mover(have, of_ranks, nodes).plan for of_ranks in need]


def moves_event(old: Arrangement, new: Arrangement, model: Module) -> Event:
    """Returns what moves between two arrangements, the field `moves` of `simulate layout --from`:
    for each rank the bytes of state that it needs, keeps, receives and sends, and those from each
    rank."""
    ranks, plans = max(old.ranks, new.ranks), rearranged(old, new, model)
    sources: dict[int, Counter[int]] = {rank: Counter() for rank in range(ranks)}
    for plan in plans:
        for (holder, rank), moves in plan.between().items():
            tensors = plan.tensors
            nbytes = sum(m.size * tensors[m.need.tensor].dtype.itemsize for m in moves)
            sources[rank][int(holder)] += nbytes
    both = zip(*(plan.moved(ranks) for plan in plans), strict=True)
    return {
        "before": old.mesh.axes,
        "before_ranks": old.ranks,
        "before_zero": old.config.zero,
        "ranks": [
            {
                "rank": rank,
                "needed_bytes": sum(moved.needed for moved in of_rank),
                "kept_bytes": sum(moved.kept for moved in of_rank),
                "received": sum((moved.received for moved in of_rank), Traffic())._asdict(),
                "sent": sum((moved.sent for moved in of_rank), Traffic())._asdict(),
                "from": dict(sorted(sources[rank].items())),
            }
            for rank, of_rank in enumerate(both)
        ],
    }


def _figures(kind: RankKind) -> Event:
    """Returns an element of the field `kinds` of `rank_fields`, for one group of ranks."""
    sent = {axis: amount._asdict() for axis, amount in kind.traffic.items()}
    return {
        "ranks": list(kind.ranks),
        "stages": list(kind.stages),
        **{f"{name}_bytes": value for name, value in kind.memory._asdict().items()},
        "activation_bytes": kind.activations,
        "backups_bytes": kind.backup.held,
        "unreplicated_bytes": kind.unreplicated,
        "sent": sent,
        "parameters_sent": kind.parameters_sent._asdict(),
        "backup_sent": kind.backup.sent._asdict(),
    }
