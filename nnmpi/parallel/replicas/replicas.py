"""Data parallelism: each rank computes its part of a batch, and gradients are summed over dp.

A run ends before the first step if some part of a batch has one sample and the model has a
BatchNorm1d, since one value for each channel has no variance. BatchNorm2d has several values for
each channel even for one image; if it has not, it raises an error itself.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from nnmpi.comm import Comm, NoRoomError
from nnmpi.data import Loader
from nnmpi.data.loader import BatchCut, BatchSplit
from nnmpi.nn import Module
from nnmpi.nn.layers.norm import row_norm_names
from nnmpi.nn.passes import LOCAL
from nnmpi.nn.single_store import SingleStore
from nnmpi.parallel.arrangement.cluster import LIBRARY_SUMS
from nnmpi.parallel.arrangement.rank_model import NOT_TIED
from nnmpi.parallel.batch_stats import Synced
from nnmpi.parallel.executor_strategy import Evaluation, StrategyParts
from nnmpi.parallel.layout import Layout, duplicate
from nnmpi.parallel.replicas.bucket_sums import (
    BucketSums,
    ScatteredSums,
    sum_over_stages,
    sum_terms,
)
from nnmpi.parallel.step.executor import GradientSync
from nnmpi.parallel.stores.buckets import Buckets, CommBucket
from nnmpi.parallel.stores.local import LocalStore, StoreSpec
from nnmpi.parallel.strategy import AgreedError, TrainSpec
from nnmpi.parallel.wire import wire_for, wire_of
from nnmpi.schedules.op import Kind


def replicas(layout: Layout, spec: TrainSpec) -> StrategyParts:
    """Returns the StrategyParts of data parallelism; every rank calls it."""
    dp, replicas, arrangement = layout.batch, layout.replicas, spec.arrangement
    p, config = replicas.size, arrangement.config
    cut = BatchSplit(config.micro_batches, dp.size, dp.rank)
    progress = arrangement.progress[layout.all.rank]
    tied = _tied(layout, spec)
    try:
        store, sync = _store_and_sync(layout, spec, tied)
    except NoRoomError as error:  # raised on all ranks
        raise ValueError(f"allreduce {arrangement.algorithm}: {error}") from None
    stats = [duplicate(replicas)] if p > 1 else []
    of_library = LIBRARY_SUMS.row(arrangement.algorithm)
    wire = of_library.wire if of_library else wire_for
    facts: dict[str, Any] = {"allreduce": arrangement.algorithm, "progress": progress}
    if config.zero:
        facts["zero"] = config.zero
    return StrategyParts(
        store=store,
        cut=cut,
        # also of test batches, as in a pipeline, since cuts change the last bits of sums
        evaluation=Evaluation(cut, replicas),
        check=lambda loader: check_micro_batches(
            spec.task.model, loader, spec.control.steps(), config.micro_batches
        ),
        describe=facts if p > 1 else {},
        sync=sync,
        batch_stats=Synced(stats[0], wire) if stats else LOCAL,
        comms=[*stats, *tied.values()],
        progress=replicas.progress_thread if progress == "thread" else nullcontext,
    )


def pipelined(layout: Layout, spec: TrainSpec) -> StrategyParts:
    """Returns the parts of a pipeline of replicas. Every rank calls it."""
    config, parts = spec.arrangement.config, replicas(layout, spec)
    facts = {"schedule": config.schedule, "micro_batches": config.micro_batches, **spec.part.facts}
    return parts._replace(
        describe={**parts.describe, **facts}, evaluation=Evaluation.of_stages(config, layout)
    )


def _tied(layout: Layout, spec: TrainSpec) -> dict[int, Comm]:
    """Returns a Comm for each tied parameter, by its index, which sums its gradient; if ZeRO
    scatters gradients, over the ranks with the same shard only."""
    comms, index = {}, {p: i for i, p in enumerate(spec.parameters)}
    rank, mesh = layout.all.rank, layout.mesh
    axes = ("pp",) if spec.arrangement.store.scatters else (*spec.arrangement.summed_axes, "pp")
    for p, ranks in spec.part.tied:
        is_one = mesh.coordinates(rank)["pp"] in ranks
        group = mesh.group(rank, *axes) if is_one else ()
        members = [r for r in group if mesh.coordinates(r)["pp"] in ranks]
        # collective: ranks without the parameter call it too, with no members
        comm = layout.all.subset(members, layout.narrow_sums)
        if comm is not None:
            comms[index[p]] = comm
    return comms


def _store_and_sync(
    layout: Layout, spec: TrainSpec, tied: Mapping[int, Comm]
) -> tuple[LocalStore, GradientSync]:
    """Moves the parameters to the kind of store that the arrangement names; returns the store, and
    the GradientSync, which also sums, over tp, gradients of which each rank has only one term.

    tied   the Comm that sums each parameter of several stages, by index
    """
    a, dp, on, scaler = spec.arrangement, layout.replicas, spec.task.on, spec.task.scaler
    held, parameters = a.model_on(layout.all.rank), spec.parameters
    with_comms = [
        CommBucket(start, stop, wire_of(dp if i == NOT_TIED or a.store.scatters else tied[i], on))
        for start, stop, i in held.buckets
    ]
    buckets = Buckets(held.spans, with_comms, a.algorithm)
    if scaler is not None:
        for p in {*spec.part.parameters} - {*parameters}:  # frozen, so without masters
            p.move(SingleStore(p.array.astype(a.dtype)), 0)
    in_front, apart = held.scalars, dp.size == 1
    of_rank = a, layout.all.rank
    made_from = StoreSpec(*of_rank, parameters, a.dtype, on, dp, in_front, buckets, scaler, apart)
    store: LocalStore = (a.store.make or STORES.get(a.store.name, _zero))(made_from)
    at_end = dict[Kind, Callable[[], None]]()
    if a.store.scatters and tied:
        wires = {buckets.of[i]: wire_of(comm, on) for i, comm in tied.items()}
        at_end[Kind.TIES] = partial(sum_over_stages, store, wires)
    if terms := held.slices_of(a.sharding.partial_gradients):
        at_end[Kind.TERMS] = partial(sum_terms, store, terms, layout.axis["tp"])
    sync = ScatteredSums if a.store.scatters else BucketSums
    return store, sync(store, at_end, spec.recorder)


def _of_node(spec: StoreSpec) -> LocalStore:
    from nnmpi.parallel.stores.node import NodeStore  # on use, as ZeRO's

    return NodeStore(spec)


def _zero(spec: StoreSpec) -> LocalStore:
    from nnmpi.parallel.stores.zero import ZERO

    return ZERO[spec.arrangement.store.zero](spec)


STORES: dict[str, Callable[[StoreSpec], LocalStore]]
STORES = {"replica": LocalStore, "local": LocalStore, "node": _of_node}
"""The functions that make core's stores, but those of ZeRO, by the name of their kind."""


# ---- parts of one sample


class OneSampleError(AgreedError, ValueError):
    """Raised if a part of a batch has one sample, and a layer computes statistics over samples."""


def check_parts(
    model: Module, loader: Loader, batches: float, cuts: Sequence[BatchCut], into: str, remedy: str
) -> None:
    """Raises OneSampleError, on all ranks, if a part of one of the first `batches` batches has one
    sample, and the model has a layer that needs several.

    cuts     functions that return the parts of a batch: one function for each rank
    into     the words for the parts in the error message
    remedy   the options that the error message suggests
    """
    layers = row_norm_names(model)
    if not layers:
        return
    for n in _sizes(loader, batches):
        if any(len(part) == 1 for cut in cuts for part in cut(np.arange(n))):
            ending = f" is cut into {into}, one of which has 1 sample; use {remedy}"
            raise OneSampleError(
                f"{layers[0]} needs more than one sample: of {len(loader.split.y)} in batches of "
                f"{loader.batch_size}, a batch of {n}"
                + (ending if n > 1 else " is left; use another --batch-size")
            )


def check_micro_batches(model: Module, loader: Loader, batches: float, parts: int) -> None:
    """Raises OneSampleError if the model has a layer that needs several samples, and one of the
    first `batches` batches, cut into `parts`, has a micro-batch of one."""
    check_parts(
        model,
        loader,
        batches,
        [BatchSplit(parts, 1, 0)],
        f"{parts} micro-batches",
        "fewer --micro-batches or another --batch-size",
    )


def _sizes(loader: Loader, batches: float) -> list[int]:
    """Returns the sizes of an epoch's first batches, each size once."""
    samples, size = len(loader.split.y), loader.batch_size
    full_batches, rest = divmod(samples, size)
    sizes = [size] * min(full_batches, 1)
    return [*sizes, rest] if rest and batches > full_batches else sizes
