"""Events that describe a layout, the start of a run, and the environment that it runs in."""

import copy
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING

from nnmpi.arrays import blas, native
from nnmpi.data.loader import padding
from nnmpi.io.checkpoints.resume_rules import versions
from nnmpi.io.output.messages import Event
from nnmpi.nn import Module
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.drawing import as_lines, blocks
from nnmpi.parallel.arrangement.exchanges import Traffic
from nnmpi.parallel.arrangement.residence import Residences
from nnmpi.parallel.arrangement.state_on_paper import held_on_paper, state_on_paper
from nnmpi.parallel.mesh import CUTS, REPLICAS
from nnmpi.parallel.model.mover import Mover
from nnmpi.parallel.model.moves import MovePlan
from nnmpi.run.resume import ResumePoint
from nnmpi.run.run_state import RunState
from nnmpi.run.session import Session
from nnmpi.run.setup import cores, threads
from nnmpi.run.setup.cores import RankCores
from nnmpi.run.setup.setup import Setup

if TYPE_CHECKING:
    from nnmpi.planning.paper.rank_kinds import RankKind


def layout_event(a: Arrangement) -> Event:
    """The layout event of an arrangement: its options, bytes and messages; a step is over a whole
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
        "servers": a.servers,
        "strategy": a.strategy.name,
        "zero": config.zero,
        "schedule": config.schedule if a.strategy.is_pipeline else None,
        "batch_size": config.batch_size,
        "micro_batches": min(config.micro_batches, config.batch_size),
        "dtype": config.dtype,
        "optimizer": config.optimizer,
        "sync": config.sync,
        "slices": config.slices if config.reproducible else None,
        "allreduce": a.algorithm if a.mesh.count(*REPLICAS) > 1 and a.store.buckets else None,
        "cut": ",".join(map(str, a.division.begins)) or None,
        "backup": a.config.backup,
        "notes": list(graph.notes),
        **residences(a),
        **arranged_event(a),
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


def arranged_event(a: Arrangement) -> Event:
    """The bytes that ranks hold and send, and which ranks have which layers."""
    # here, since only some runs are priced
    from nnmpi.planning.paper.rank_kinds import rank_kinds

    return {
        "kinds": [_figures(kind) for kind in rank_kinds(a, a.config.batch_size)],
        "blocks": [
            {"ranks": ranks, "layers": [layer._asdict() for layer in layers]}
            for ranks, layers in blocks(a)
        ],
    }


def rearranged(old: Arrangement, new: Arrangement, model: Module) -> list[MovePlan]:
    """The moves from one arrangement of ranks to another, on the nodes of the larger of the two: of
    values, then of what else is state."""
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
    """The bytes that each rank keeps, sends and receives when ranks are arranged anew: parameters,
    optimizer state and buffers."""
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


def devices(a: Arrangement) -> Event:
    """The GPU of each rank, by its number on the node; empty on the CPU."""
    return {"devices": list(a.cluster.devices)} if a.cluster.has_devices else {}


def residences(a: Arrangement) -> Event:
    """Where the activations of each unit are kept (memory, disk, recomputed) if --memory has no
    room for all; empty if there is room."""
    return {} if a.residences is None else _residences(a, a.residences)


def _residences(a: Arrangement, known: Residences) -> Event:
    units = zip(known.names, known.choice, known.loads, strict=True)
    return {
        "residences": {
            "memory": a.config.memory,
            "for_activations": round(known.memory),
            "swapped_state": round(known.state),
            "model_on_disk": round(known.model.nbytes) if known.model else 0,
            "disk_write": round(known.disk.write),
            "disk_read": round(known.disk.read),
            "seconds": known.seconds,
            "seconds_kept": known.seconds_kept,
            "units": [
                {
                    "unit": name,
                    "residence": how.value,
                    "bytes": round(load.nbytes),
                    "seconds": load.forward + load.backward,
                }
                for name, how, load in units
            ],
        }
    }


def _figures(kind: "RankKind") -> Event:
    """The bytes that ranks of one kind hold and send."""
    sent = {axis: amount._asdict() for axis, amount in kind.traffic.items()}
    return {
        "ranks": list(kind.ranks),
        "stages": list(kind.stages),
        **{f"{name}_bytes": value for name, value in kind.memory._asdict().items()},
        "activation_bytes": kind.activations,
        "backups_bytes": kind.backup.held,
        "sole_bytes": kind.unique,
        "sent": sent,
        "parameters_sent": kind.parameters_sent._asdict(),
        "backup_sent": kind.backup.sent._asdict(),
    }


def start_event(session: Session, run: RunState) -> Event:
    """The first event of a run: model, data, layout and options."""
    setup, config, d = session.setup, session.config, session.setup.dataset
    slowed = {"slow_rank": config.slow_rank, "jitter": config.jitter}
    left = run.total_steps - run.state.step + run.state.batch
    return {
        "event": "start",
        "model": config.model,
        "parameters": sum(math.prod(p.place.shape) for p in session.model.parameters()),
        "data": d.name,
        "train_samples": len(d.train.y),
        "test_samples": len(d.test.y),
        "note": d.note,
        **_padding(setup),
        "steps": run.total_steps,
        "batch_size": config.batch_size,
        "dtype": config.dtype,
        "device": setup.on.name,
        "seed": config.seed,
        "ranks": session.comm.size,
        "sync": config.sync,
        **{axis: n for axis in CUTS if (n := getattr(config, axis)) > 1},
        **{name: value for name, value in slowed.items() if value},
        **setup.user_functions,
        **session.strategy.describe(),
        "epochs": -(-left // len(setup.train)),
        **devices(session.arrangement),
        **residences(session.arrangement),
        **({"loaded": run.loaded._asdict()} if run.loaded and config.load_partial else {}),
        **({"plan": run.plan.event()} if run.plan else {}),
        **({"warning": session.warning} if session.warning else {}),
    }


def resumed_event(session: Session, run: RunState) -> Event:
    """The first event of a run that goes on from a checkpoint."""
    assert run.resumed is not None
    resumed = run.resumed
    facts = {"step": run.state.step, "checkpoint": resumed.path, "notes": resumed.lines}
    facts |= {"passed_over": resumed.passed_over} if resumed.passed_over else {}
    return {**start_event(session, run), "event": "resumed", **facts}


def complete_event(resumed: ResumePoint, digest: str) -> Event:
    """The only event of a run that had no steps left when it was resumed; `digest` is of its
    parameters."""
    steps = resumed.snapshot.state.step
    facts = {"checkpoint": resumed.path, "notes": resumed.passed_over}
    return {"event": "complete", "steps": steps, **facts, "parameters_sha256": digest}


def _padding(setup: Setup) -> Event:
    """The share of padding in batches of similar length in the first epoch, and in batches in
    random order; empty without --bucket-by-length."""
    loader = setup.train
    if loader.lengths is None:
        return {}
    plain = copy.copy(loader)
    plain.lengths = None
    shares = [padding(loader.lengths, order.batches(0)) for order in (loader, plain)]
    return dict(zip(("padding", "padding_unsorted"), shares, strict=True))


def environment(session: Session) -> Event:
    """Everything a run depends on besides data and model: options, versions, the BLAS of rank 0,
    and hosts; with advice on what would make it faster. Every rank calls it."""
    comm, a = session.comm, session.arrangement
    pay, number = threads.on_all_ranks(a, comm), blas.cores(len(comm.node()))
    halves = native.cost_of_halves(session.config.dtype) if session.config.device == "cpu" else ""
    facts = {"kernels": blas.core(), "threads": blas.threads(), "why": threads.why(a, pay, number)}
    ranks = gather_objects(comm, cores.cores_here())
    return {
        "options": asdict(session.config),
        "versions": versions(),
        "blas": facts,
        "native": native.INSTRUCTIONS,
        "hosts": hosts(ranks),
        "advice": [
            *filter(None, (native.missing(), halves, threads.advice(a, pay))),
            *cores.advice(ranks),
        ],
    }


def hosts(ranks: Sequence[RankCores]) -> dict[str, list[int]]:
    """The ranks on each host, by its name."""
    ranks_of: dict[str, list[int]] = {}
    for rank, of_rank in enumerate(ranks):
        ranks_of.setdefault(of_rank.host, []).append(rank)
    return ranks_of
