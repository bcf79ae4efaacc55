"""Data parallelism: each rank computes its part of a batch, and gradients are summed over dp."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from nnmpi.blas import cores, threads
from nnmpi.comm import Comm, NoRoomError
from nnmpi.config import Config
from nnmpi.nn.passes import LOCAL
from nnmpi.nn.store import spans
from nnmpi.parallel.data.batch_size_check import check_micro_batches
from nnmpi.parallel.data.batch_split import BatchSplit
from nnmpi.parallel.data.batch_stats import Synced
from nnmpi.parallel.data.buckets import cut_buckets
from nnmpi.parallel.data.gradient_sync import BucketedSync
from nnmpi.parallel.layout import Layout, duplicate
from nnmpi.parallel.model.model_part import ModelPart
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.parallel.step.ports import Stage
from nnmpi.parallel.stores.head import head_length
from nnmpi.parallel.stores.local import Bucket, LocalStore
from nnmpi.parallel.stores.node import NodeStore
from nnmpi.parallel.stores.replica import ReplicaStore
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.parallel.synchronous import Evaluation, Parts
from nnmpi.parallel.zero.store import STAGES, ShardedStore
from nnmpi.parallel.zero.sync import ShardedSync
from nnmpi.parallel.zero.units import cut_units, units, users
from nnmpi.schedules import one_stage

MB = 1e6

BY_NODES = ("shared", "hierarchical", "mpi")
"""All-reduces whose order of additions depends on which ranks share a node."""


def replicas(config: Config, layout: Layout, spec: TrainSpec) -> Parts:
    """The parts of data parallelism; every rank calls it."""
    dp = layout.axis["dp"]
    p, r = dp.size, dp.rank
    progress, algorithm = _progress(config, dp), _algorithm(config, layout, spec.part)
    tied = _tied(layout, spec)
    algorithm, summed = _where_there_is_room(config, layout, algorithm, spec, tied)
    stats = [duplicate(dp)] if p > 1 else []
    return Parts(
        {0: Stage.whole(spec.task)},
        summed.store,
        spec.optimizer(summed.store.parameters),
        summed.sync,
        Synced(stats[0], spec.recorder) if stats else LOCAL,
        BatchSplit(config.micro_batches, p, r),
        one_stage,
        Evaluation(BatchSplit(1, p, r), dp),
        lambda loader: check_micro_batches(
            spec.task.model, loader, spec.control.steps, config.micro_batches
        ),
        _facts(config, algorithm, progress) if p > 1 else {},
        dict,
        [*stats, *tied.values(), *summed.comms],
        dp.progress_thread if progress == "thread" else nullcontext,
    )


def _facts(config: Config, algorithm: str, progress: str) -> dict[str, Any]:
    """What the start event says of it."""
    zero = {"zero": config.zero} if config.zero else {}
    return {"allreduce": algorithm, "progress": progress, **zero}


def _tied(layout: Layout, spec: TrainSpec) -> dict[int, Comm]:
    """For each parameter that other stages have too, by index: the ranks that sum its gradient."""
    found, index = {}, {p: i for i, p in enumerate(spec.parameters)}
    stage, tp = (layout.mesh.coordinates(layout.all.rank)[axis] for axis in ("pp", "tp"))
    for p, ranks in spec.part.tied:
        comm = layout.all.split(tp if stage in ranks else None)
        if comm is not None:
            found[index[p]] = comm
    return found


class Summed(NamedTuple):
    """Where parameters and gradients are, what sums the gradients, and Comms made for it."""

    store: LocalStore
    sync: GradientSync
    comms: Sequence[Comm] = ()


def _where_there_is_room(
    config: Config, layout: Layout, algorithm: str, spec: TrainSpec, tied: Mapping[int, Comm]
) -> tuple[str, Summed]:
    """`_summed` with this algorithm or, if `auto` took it and a node lacks memory, another one.

    All ranks take the same: one group of ranks along dp may find memory that another lacks.
    """
    dp, summed, error = layout.axis["dp"], None, None
    try:
        summed = _summed(config, dp, algorithm, spec, tied)
    except NoRoomError as lack:
        error = lack
    lacking = np.array([error is not None], np.int64)
    layout.all.all_reduce(lacking, "doubling")
    if summed is not None and not lacking[0]:
        return algorithm, summed
    if config.allreduce != "auto":
        elsewhere = "too little shared memory for other ranks: take another algorithm"
        raise ValueError(f"allreduce {algorithm}: {error or elsewhere}") from None
    if summed is not None:
        summed.store.close()
    algorithm = "ring" if config.zero or config.tp > 1 else "auto"
    return algorithm, _summed(config, dp, algorithm, spec, tied)


def _summed(
    config: Config, dp: Comm, algorithm: str, spec: TrainSpec, tied: Mapping[int, Comm]
) -> Summed:
    """Moves the parameters to the store of this algorithm."""
    if config.zero and dp.size > 1 and algorithm != "shared":
        return _sharded(config, dp, algorithm, spec, tied)
    store, buckets = _store(config, dp, algorithm, spec, tied)
    return Summed(store, BucketedSync(store, buckets, config.overlap, spec.recorder))


def _sharded(
    config: Config, dp: Comm, algorithm: str, spec: TrainSpec, tied: Mapping[int, Comm]
) -> Summed:
    """The same with ZeRO. On one node, with stage 1, `shared` does without."""
    if config.zero > 1:
        _refuse_tied(config, spec.part)
    stages, parameters = spec.part.stages, spec.parameters
    nbytes = (1.0 if config.bucket_mb is None else config.bucket_mb) * MB
    dtype, gathers = parameters[0].dtype, duplicate(dp)
    if config.zero == 1:
        buckets = cut_buckets(spans(parameters), nbytes, dtype.itemsize, dp, tied)
    else:
        together = units(stages, parameters)
        parameters = [p for unit in together for p in unit.parameters]
        buckets = cut_units(together, nbytes, dtype.itemsize, dp)
    using = users(stages, parameters)
    store = ShardedStore(
        parameters, dtype, buckets, using, dp, gathers, algorithm, STAGES[config.zero]
    )
    if config.zero == 1:
        sync: GradientSync = BucketedSync(store, buckets, config.overlap, spec.recorder)
    else:
        sync = ShardedSync(store, config.overlap, spec.recorder)
    return Summed(store, sync, [gathers])


def _refuse_tied(config: Config, part: ModelPart) -> None:
    if part.tied:
        p, ranks = part.tied[0]
        raise ValueError(
            f"zero {config.zero} keeps each gradient on the ranks of one stage, and "
            f"{p.place.path} is in stages on ranks {', '.join(map(str, ranks))} along pp; use "
            "--zero 1, or a --cut that keeps it in one stage"
        )


def _store(
    config: Config, dp: Comm, algorithm: str, spec: TrainSpec, tied: Mapping[int, Comm]
) -> tuple[LocalStore, list[Bucket]]:
    """Moves the parameters to the store of this algorithm."""
    parameters = spec.parameters
    head, dtype, mb = head_length(parameters), parameters[0].data.dtype, config.bucket_mb
    if mb is None:  # within a node a bucket of its own costs more than it hides
        mb = np.inf if algorithm == "shared" and _one_node(dp) else 1.0
    buckets = cut_buckets(spans(parameters, head), mb * MB, dtype.itemsize, dp, tied)
    if dp.size == 1 and not tied:
        return LocalStore(parameters, dtype, spec.task.on, head), buckets
    if algorithm == "shared":
        return NodeStore(parameters, dtype, head, dp, buckets), buckets
    return ReplicaStore(parameters, dtype, head, buckets, algorithm), buckets


def _algorithm(config: Config, layout: Layout, part: ModelPart) -> str:
    """The all-reduce of gradients.

    `auto` follows a rule, so that the same layout gives the same bits: shared memory on one node;
    hierarchical where some nodes have several ranks; else what Comm measures to be the fastest.
    With ZeRO it is a ring, but for stage 1 on one node. It is the same in all groups of ranks along
    dp, since several groups may sum copies of one parameter; nothing is measured where tp ranks do,
    and none is taken whose order of additions differs between them. Memory that the ranks of one
    stage share cannot hold sums over several: a ring does them.
    """
    if part.tied and config.allreduce in ("auto", "shared"):
        if config.allreduce == "shared":
            p, ranks = part.tied[0]
            raise ValueError(
                f"allreduce shared sums over the ranks of one stage, and {p.place.path} is in "
                f"stages on ranks {', '.join(map(str, ranks))} along pp; use --allreduce ring"
            )
        return "ring"
    unlike = _is_cut_unlike(layout)
    if config.allreduce != "auto":
        if unlike and config.allreduce in BY_NODES:
            raise ValueError(
                f"allreduce {config.allreduce} adds up node by node, and the nodes cut the ranks "
                f"along dp in one way for some of the {config.tp} ranks along tp and in another "
                "for others, so their copies would differ: use --allreduce ring, or a multiple of "
                f"{config.tp} ranks on each node"
            )
        return config.allreduce
    if config.zero > 1:
        return "ring"
    dp = layout.axis["dp"]
    found = np.array([not _one_node(dp), len(dp.node()) > 1], np.int64)
    layout.all.all_reduce(found, "doubling")
    apart, crowded = found.tolist()
    if not apart:
        return "shared"
    if config.zero or unlike:
        return "ring"
    if crowded:
        return "hierarchical"
    return "ring" if config.tp > 1 else "auto"


def _is_cut_unlike(layout: Layout) -> bool:
    """Whether ranks along dp share nodes in one way for some ranks along tp, and in another for
    others; no matter for two ranks, of which either order gives the same sum."""
    dp, tp = layout.axis["dp"], layout.axis["tp"]
    beside = np.zeros(dp.size, np.int64)
    beside[[*dp.node()]] = 1
    total = beside.copy()
    tp.all_reduce(total, "doubling")
    differs = np.array([dp.size > 2 and (total != tp.size * beside).any()], np.int64)
    layout.all.all_reduce(differs, "doubling")
    return bool(differs[0])


def _one_node(dp: Comm) -> bool:
    return len(dp.node()) == dp.size


def _progress(config: Config, dp: Comm) -> str:
    """What moves messages during the backward pass: polls between layers, or a thread.

    A thread takes the interpreter's lock and a share of a core: without a core of its own, steps
    took longer with it than without any overlap. So it needs two cores besides those of BLAS, one
    for itself and one for the system's part of sending.
    """
    ranks = len(dp.node())
    if config.progress == "thread" and not dp.any_thread:
        raise ValueError(
            "progress thread: MPI was not started with THREAD_MULTIPLE, so that no other thread "
            "may use it; use --progress poll"
        )
    if config.progress != "auto":
        return config.progress
    spare = cores(ranks) - threads()
    return "thread" if dp.any_thread and ranks < dp.size and spare >= 2 else "poll"
