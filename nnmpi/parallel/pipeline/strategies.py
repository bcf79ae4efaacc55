"""The strategies of pipelines.

pipeline    all ranks make every step together: data parallelism between the stages of a model
pipedream   no flushes: each batch is a step on weights that are older

In PipeDream 1F1B runs on from batch to batch, so no stage waits for the others to finish a step.
The forward and the backward pass of a batch use one version of the weights of a stage (weight
stashing), from which other batches may have moved on (`versions.py`): p-1-s updates on stage s of
p. With vertical sync all stages use the version that the first one used, p-1 updates behind.

    Harlap et al. 2018, Narayanan et al. 2019; the order of ops is
    that of `stream` in `schedules/lowering.py`.
"""

from typing import Any

import numpy as np

from nnmpi.config import Config
from nnmpi.data.loader import BatchSplit
from nnmpi.parallel.composed import Composed, Evaluation, StrategyParts
from nnmpi.parallel.data.batch_size_check import check_micro_batches
from nnmpi.parallel.data.replicas import replicas
from nnmpi.parallel.layout import Layout, mesh_of
from nnmpi.parallel.pipeline.asynchronous import AsynchronousExecutor
from nnmpi.parallel.pipeline.versions import VersionStore
from nnmpi.parallel.strategy import TrainSpec


def check(config: Config, ranks: int) -> None:
    """Raises ValueError where several ranks would have copies of a stage of PipeDream."""
    copies = mesh_of(config, ranks).axes["dp"]
    if copies > 1:
        raise ValueError(
            f"schedule pipedream with dp {copies}: {ranks} ranks in pipelines of {config.pp} make "
            f"{copies} copies of each stage, whose gradients would have to be summed before each "
            f"update; use --pp {ranks}, or --schedule 1f1b"
        )


def pipeline(layout: Layout, spec: TrainSpec) -> StrategyParts:
    """The parts of a pipeline whose ranks make every step together; every rank calls it."""
    config, parts = spec.arrangement.config, replicas(layout, spec)
    described = {"schedule": config.schedule, "micro_batches": config.micro_batches}
    return parts._replace(
        evaluation=evaluation(config, layout),
        describe={**parts.describe, **described, **spec.part.facts},
    )


def evaluation(config: Config, layout: Layout) -> Evaluation:
    """Forward passes of a test batch, cut as a training batch is."""
    dp = layout.axis["dp"]
    cut = BatchSplit(config.micro_batches, dp.size, dp.rank)
    return Evaluation(cut, layout.all, layout.counts_loss)


def pipedream(layout: Layout, spec: TrainSpec) -> Composed:
    """The strategy of PipeDream, where each rank is one stage; every rank calls it."""
    _refuse_tied(spec)
    config, control = spec.arrangement.config, spec.control
    store = VersionStore(spec.parameters, spec.parameters[0].data.dtype, spec.task.on)
    optimizer = spec.optimizer(spec.parameters)
    executor = AsynchronousExecutor(layout, spec, store, optimizer)

    def most_versions() -> dict[str, Any]:
        """The most versions of weights that a rank had at a time."""
        buffers = np.zeros(layout.all.size, np.int64)
        buffers[layout.all.rank] = store.buffers
        layout.all.all_gather(buffers)
        return {"weight_versions": int(buffers.max())}

    parts = StrategyParts(
        store,
        BatchSplit(1, 1, 0),
        evaluation(config, layout),
        lambda loader: check_micro_batches(spec.task.model, loader, control.steps, 1),
        {
            "schedule": "pipedream",
            "micro_batches": 1,
            **spec.part.facts,
            "vertical_sync": config.vertical_sync,
        },
        outcome=most_versions,
    )
    return Composed(parts, executor, optimizer, layout, spec)


def _refuse_tied(spec: TrainSpec) -> None:
    """Raises ValueError, on all ranks, if a parameter is in several stages."""
    for p, ranks in spec.part.tied:
        raise ValueError(
            f"schedule pipedream updates each stage by itself, and {p.place.path} is in stages on "
            f"ranks {', '.join(map(str, ranks))} along pp; use another --cut, or --schedule 1f1b"
        )
