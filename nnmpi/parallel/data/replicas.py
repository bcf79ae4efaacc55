"""Data parallelism: each rank computes its part of a batch, and gradients are summed over dp."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from nnmpi.backend import Backend
from nnmpi.comm import Comm, NoRoomError
from nnmpi.data.loader import BatchSplit
from nnmpi.mesh import REPLICAS
from nnmpi.nn.passes import LOCAL
from nnmpi.optim.loss_scale import Scaler
from nnmpi.parallel.arrangement.arrangement import NOT_TIED
from nnmpi.parallel.data.batch_size_check import check_micro_batches
from nnmpi.parallel.data.batch_stats import Synced
from nnmpi.parallel.data.gradient_sync import BucketedSync
from nnmpi.parallel.data.scattered_sync import ScatteredSync
from nnmpi.parallel.data.term_sums import SummedTerms
from nnmpi.parallel.layout import Layout, duplicate
from nnmpi.parallel.masters import MIXED_SHARDED, MixedNodeStore, MixedStore, freeze
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.parallel.stores import Buckets, CommBucket, LocalStore, NodeStore
from nnmpi.parallel.strategy import Evaluation, StrategyParts, TrainSpec
from nnmpi.parallel.wire import Wire, wire_of
from nnmpi.parallel.zero.slots import ShardedGradientStore, ShardedParameterStore
from nnmpi.parallel.zero.store import ShardedStore

SCATTERED = {"zero 2": ShardedGradientStore, "zero 3": ShardedParameterStore}
"""The stores whose gradients are scattered, as arrangements name them."""


def replicas(layout: Layout, spec: TrainSpec) -> StrategyParts:
    """The parts of data parallelism, between the stages of a pipeline too; every rank calls it."""
    dp, replicas, arrangement = layout.batch, layout.replicas, spec.arrangement
    p, config = replicas.size, arrangement.config
    progress = arrangement.progress[layout.all.rank]
    tied = _tied(layout, spec)
    try:
        store, sync, comms = _store_and_sync(layout, spec, tied)
        sync = _with_terms(layout, spec, store, sync)
    except NoRoomError as error:  # on all ranks alike
        raise ValueError(f"allreduce {arrangement.algorithm}: {error}") from None
    stats = [duplicate(replicas)] if p > 1 else []
    facts: dict[str, Any] = {"allreduce": arrangement.algorithm, "progress": progress}
    if config.zero:
        facts["zero"] = config.zero
    described = facts if p > 1 else {}
    evaluation = Evaluation(BatchSplit(1, dp.size, dp.rank), replicas)
    if arrangement.strategy == "pipeline":
        described["schedule"], described["micro_batches"] = config.schedule, config.micro_batches
        described |= spec.part.facts
        evaluation = Evaluation.of_stages(config, layout)
    return StrategyParts(
        store=store,
        cut=BatchSplit(config.micro_batches, dp.size, dp.rank),
        evaluation=evaluation,
        check=lambda loader: check_micro_batches(
            spec.task.model, loader, spec.control.steps(), config.micro_batches
        ),
        describe=described,
        sync=sync,
        batch_stats=Synced(stats[0], spec.recorder) if stats else LOCAL,
        comms=[*stats, *tied.values(), *comms],
        progress=replicas.progress_thread if progress == "thread" else nullcontext,
    )


def _tied(layout: Layout, spec: TrainSpec) -> dict[int, Comm]:
    """For each parameter that other stages have too, by index: the ranks that sum its gradient.

    Where gradients are scattered, those with the same shard: others have other shards.
    """
    found, index = {}, {p: i for i, p in enumerate(spec.parameters)}
    rank, mesh = layout.all.rank, layout.mesh
    axes = ("pp",) if spec.arrangement.store.scatters else (*REPLICAS, "pp")
    for p, ranks in spec.part.tied:
        is_one = mesh.coordinates(rank)["pp"] in ranks
        comm = layout.all.split(mesh.group(rank, *axes)[0] if is_one else None)
        if comm is not None:
            found[index[p]] = comm
    return found


def _store_and_sync(
    layout: Layout, spec: TrainSpec, tied: Mapping[int, Comm]
) -> tuple[LocalStore, GradientSync, list[Comm]]:
    """The store of the arrangement, to which the parameters move, what sums their gradients, and
    Comms made for it."""
    a, dp, on = spec.arrangement, layout.replicas, spec.task.on
    held, parameters = a.model_on(layout.all.rank), spec.parameters
    with_comms = [
        CommBucket(start, stop, wire_of(dp if i == NOT_TIED or a.store.scatters else tied[i], on))
        for start, stop, i in held.buckets
    ]
    buckets = Buckets(held.spans, with_comms, [one.users for one in held.trained], a.algorithm)
    options = a.config.overlap, spec.recorder
    if spec.task.scaler is not None:
        mixed, comms = _mixed(layout, spec, buckets, spec.task.scaler)
        if isinstance(mixed, ShardedGradientStore):
            return mixed, ScatteredSync(mixed, *options, _by_bucket(tied, buckets, on)), comms
        return mixed, BucketedSync(mixed, *options), comms
    if a.store.name == "node":
        node = NodeStore(parameters, a.dtype, held.scalars, buckets, dp)
        return node, BucketedSync(node, *options), []
    buckets.set_up(a.dtype, on)
    if a.store.name in ("local", "replica"):
        store = LocalStore(parameters, a.dtype, on, held.scalars, buckets)
        return store, BucketedSync(store, *options), []
    gathers = duplicate(dp)
    if a.store.name == "zero 1":
        sharded = ShardedStore(parameters, a.dtype, on, buckets, dp, gathers)
        return sharded, BucketedSync(sharded, *options), [gathers]
    scattered = SCATTERED[a.store.name](parameters, a.dtype, on, buckets, dp, gathers)
    return scattered, ScatteredSync(scattered, *options, _by_bucket(tied, buckets, on)), [gathers]


def _by_bucket(tied: Mapping[int, Comm], buckets: Buckets, on: Backend) -> dict[int, Wire]:
    """The ranks that sum each bucket of one parameter that other stages have too."""
    return {buckets.of[i]: wire_of(comm, on) for i, comm in tied.items()}


def _with_terms(
    layout: Layout, spec: TrainSpec, store: LocalStore, sync: GradientSync
) -> GradientSync:
    """The sync, and behind it sums over tp, where ranks have terms of gradients."""
    a = spec.arrangement
    terms = a.model_on(layout.all.rank).stretches(a.sharding.terms)
    return SummedTerms(sync, store, terms, layout.axis["tp"]) if terms else sync


def _mixed(
    layout: Layout, spec: TrainSpec, buckets: Buckets, scaler: Scaler
) -> tuple[LocalStore, list[Comm]]:
    """The store of parameters in 16 bits, and Comms made for it."""
    a, dp, on, parameters = spec.arrangement, layout.replicas, spec.task.on, spec.parameters
    freeze(spec.part.parameters, parameters, a.dtype)
    if a.store.name == "node":
        return MixedNodeStore(parameters, a.dtype, buckets, dp, scaler), []
    buckets.set_up(a.dtype, on)
    if a.store.name in ("local", "replica"):
        return MixedStore(parameters, a.dtype, on, buckets, dp, scaler), []
    gathers = duplicate(dp)
    made = MIXED_SHARDED[a.store.name](parameters, a.dtype, on, buckets, dp, gathers, scaler)
    return made, [gathers]
