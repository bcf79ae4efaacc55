"""Data parallelism: each rank computes its part of a batch, and gradients are summed over dp."""

from collections.abc import Mapping
from contextlib import nullcontext

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
from nnmpi.parallel.step.ports import Stage
from nnmpi.parallel.stores.head import head_length
from nnmpi.parallel.stores.local import Bucket, LocalStore
from nnmpi.parallel.stores.node import NodeStore
from nnmpi.parallel.stores.replica import ReplicaStore
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.parallel.synchronous import Evaluation, Parts
from nnmpi.schedules import one_stage

MB = 1e6


def replicas(config: Config, layout: Layout, spec: TrainSpec) -> Parts:
    """The parts of data parallelism; every rank calls it."""
    dp = layout.axis["dp"]
    p, r = dp.size, dp.rank
    progress, algorithm = _progress(config, dp), _algorithm(config, dp, spec.part)
    shared = _shared(layout, spec)
    try:
        store, buckets = _store(config, dp, algorithm, spec, shared)
    except NoRoomError as error:
        if config.allreduce != "auto":
            raise ValueError(f"allreduce {algorithm}: {error}") from None
        algorithm = "auto"
        store, buckets = _store(config, dp, algorithm, spec, shared)
    stats = [duplicate(dp)] if p > 1 else []
    return Parts(
        {0: Stage.whole(spec.task)},
        store,
        spec.optimizer(spec.parameters),
        BucketedSync(store, buckets, config.overlap, spec.recorder),
        Synced(stats[0], spec.recorder) if stats else LOCAL,
        BatchSplit(config.micro_batches, p, r),
        one_stage,
        Evaluation(BatchSplit(1, p, r), dp),
        lambda loader: check_micro_batches(
            spec.task.model, loader, spec.control.steps, config.micro_batches
        ),
        {"allreduce": algorithm, "progress": progress} if p > 1 else {},
        dict,
        [*stats, *shared.values()],
        dp.progress_thread if progress == "thread" else nullcontext,
    )


def _shared(layout: Layout, spec: TrainSpec) -> dict[int, Comm]:
    """For each parameter that other stages have too, by index: the ranks that sum its gradient."""
    found, index = {}, {p: i for i, p in enumerate(spec.parameters)}
    stage, tp = (layout.mesh.coordinates(layout.all.rank)[axis] for axis in ("pp", "tp"))
    for p, ranks in spec.part.shared:
        comm = layout.all.split(tp if stage in ranks else None)
        if comm is not None:
            found[index[p]] = comm
    return found


def _store(
    config: Config, dp: Comm, algorithm: str, spec: TrainSpec, shared: Mapping[int, Comm]
) -> tuple[LocalStore, list[Bucket]]:
    """Moves the parameters to the store of this algorithm."""
    parameters = spec.parameters
    head, dtype, mb = head_length(parameters), parameters[0].data.dtype, config.bucket_mb
    if mb is None:  # within a node a bucket of its own costs more than it hides
        mb = np.inf if algorithm == "shared" and _one_node(dp) else 1.0
    buckets = cut_buckets(spans(parameters, head), mb * MB, dtype.itemsize, dp, shared)
    if dp.size == 1 and not shared:
        return LocalStore(parameters, dtype, spec.task.on, head), buckets
    if algorithm == "shared":
        return NodeStore(parameters, dtype, head, dp, buckets), buckets
    return ReplicaStore(parameters, dtype, head, buckets, algorithm), buckets


def _algorithm(config: Config, dp: Comm, part: ModelPart) -> str:
    """The all-reduce of gradients.

    `auto` follows a rule, so that the same layout gives the same bits: shared memory on one node;
    hierarchical where some nodes have several ranks; else what Comm measures to be the fastest.
    Memory that the ranks of one stage share cannot hold sums over several: a ring does them.
    """
    if part.shared and config.allreduce in ("auto", "shared"):
        if config.allreduce == "shared":
            p, ranks = part.shared[0]
            raise ValueError(
                f"allreduce shared sums over the ranks of one stage, and {p.place.path} is in "
                f"stages on ranks {', '.join(map(str, ranks))} along pp; use --allreduce ring"
            )
        return "ring"
    if config.allreduce != "auto":
        return config.allreduce
    if _one_node(dp):
        return "shared"
    crowded = np.array([len(dp.node()) > 1], np.int64)
    dp.all_reduce(crowded, "doubling")
    return "hierarchical" if crowded[0] else "auto"


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
