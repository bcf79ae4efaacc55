"""Data parallelism: each rank computes its part of a batch, and gradients are summed over dp."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

from nnmpi.comm import Comm, NoRoomError
from nnmpi.config import Config
from nnmpi.nn.passes import LOCAL
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.batch_split import BatchSplit
from nnmpi.parallel.arrangement.flat import NOT_TIED
from nnmpi.parallel.arrangement.program import ops
from nnmpi.parallel.data.batch_size_check import check_micro_batches
from nnmpi.parallel.data.batch_stats import Synced
from nnmpi.parallel.data.gradient_sync import BucketedSync
from nnmpi.parallel.layout import Layout, duplicate
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.parallel.step.ports import Stage
from nnmpi.parallel.stores.local import Bucket, LocalStore
from nnmpi.parallel.stores.node import NodeStore
from nnmpi.parallel.stores.replica import ReplicaStore
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.parallel.synchronous import Evaluation, Parts
from nnmpi.parallel.zero.store import STAGES, ShardedStore
from nnmpi.parallel.zero.sync import ShardedSync


def replicas(config: Config, layout: Layout, spec: TrainSpec) -> Parts:
    """The parts of data parallelism; every rank calls it."""
    dp, arrangement = layout.axis["dp"], spec.arrangement
    p, r = dp.size, dp.rank
    progress = arrangement.progress[layout.all.rank]
    tied = _tied(layout, spec)
    try:
        summed = _summed(layout, spec, tied)
    except NoRoomError as error:  # on all ranks alike
        raise ValueError(f"allreduce {arrangement.algorithm}: {error}") from None
    stats = [duplicate(dp)] if p > 1 else []
    return Parts(
        {0: Stage.whole(spec.task)},
        summed.store,
        spec.optimizer(summed.store.parameters),
        summed.sync,
        Synced(stats[0], spec.recorder) if stats else LOCAL,
        BatchSplit(config.micro_batches, p, r),
        partial(ops, arrangement, layout.all.rank),
        Evaluation(BatchSplit(1, p, r), dp),
        lambda loader: check_micro_batches(
            spec.task.model, loader, spec.control.steps, config.micro_batches
        ),
        _facts(arrangement, progress) if p > 1 else {},
        dict,
        [*stats, *tied.values(), *summed.comms],
        dp.progress_thread if progress == "thread" else nullcontext,
    )


def _facts(arrangement: Arrangement, progress: str) -> dict[str, Any]:
    """What the start event says of it."""
    zero = arrangement.config.zero
    facts = {"allreduce": arrangement.algorithm, "progress": progress}
    return facts | ({"zero": zero} if zero else {})


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


def _summed(layout: Layout, spec: TrainSpec, tied: Mapping[int, Comm]) -> Summed:
    """Moves the parameters to the store of the arrangement."""
    a, dp, on, recorder = spec.arrangement, layout.axis["dp"], spec.task.on, spec.recorder
    part, parameters = a.part(layout.all.rank), spec.parameters
    overlap, dtype = a.config.overlap, a.dtype
    buckets = [
        Bucket(start, stop, dp if i == NOT_TIED else tied[i]) for start, stop, i in part.buckets
    ]
    store: LocalStore
    match a.store:
        case "local":
            store = LocalStore(parameters, dtype, on, part.head)
        case "node":
            store = NodeStore(parameters, dtype, part.head, dp, buckets)
        case "replica":
            store = ReplicaStore(parameters, dtype, part.head, buckets, a.algorithm)
        case _:
            return _sharded(layout, spec, buckets)
    return Summed(store, BucketedSync(store, buckets, overlap, recorder))


def _sharded(layout: Layout, spec: TrainSpec, buckets: Sequence[Bucket]) -> Summed:
    """The same with ZeRO."""
    a, dp, recorder = spec.arrangement, layout.axis["dp"], spec.recorder
    users, gathers = a.part(layout.all.rank).users, duplicate(dp)
    zero, overlap = a.config.zero, a.config.overlap
    store = ShardedStore(
        spec.parameters, a.dtype, buckets, users, dp, gathers, a.algorithm, STAGES[zero]
    )
    if zero == 1:
        sync: GradientSync = BucketedSync(store, buckets, overlap, recorder)
    else:
        sync = ShardedSync(store, overlap, recorder)
    return Summed(store, sync, [gathers])
