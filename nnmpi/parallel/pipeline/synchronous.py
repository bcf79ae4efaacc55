"""The parts of a pipeline whose ranks make every step together: stages, channels, programs.

Sums over dp, the store of a stage's parameters, the update and the program (which is that of the
arrangement) are those of data parallelism.
"""

from functools import cache

from nnmpi.config import Config
from nnmpi.parallel.arrangement.batch_split import BatchSplit
from nnmpi.parallel.data.replicas import replicas
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.pipeline.channels import Channels
from nnmpi.parallel.step.ports import Loss, Samples, Stage
from nnmpi.parallel.strategy import TrainSpec
from nnmpi.parallel.synchronous import Evaluation, Parts
from nnmpi.schedules import forward_program


def pipeline(config: Config, layout: Layout, spec: TrainSpec) -> Parts:
    """Every rank calls it."""
    pp, part = layout.axis["pp"], spec.part
    parts = replicas(config, layout, spec)
    channels = Channels(spec.part.boundaries, list(part.stages), pp, spec.recorder)
    virtual = part.stage_count // pp.size
    return parts._replace(
        stages=with_ports(spec, channels),
        evaluation=evaluation(config, layout, virtual),
        describe={
            **parts.describe,
            "schedule": config.schedule,
            "micro_batches": config.micro_batches,
            **part.facts,
        },
        messages=channels,
    )


def with_ports(spec: TrainSpec, channels: Channels) -> dict[int, Stage]:
    """The stages of this rank, between samples, channels and the loss."""
    samples, loss = Samples(spec.task.on), Loss(spec.task.objective)
    return {
        s: Stage(module, channels.source(s, samples), channels.sink(s, loss))
        for s, module in spec.part.stages.items()
    }


def evaluation(config: Config, layout: Layout, virtual: int) -> Evaluation:
    """Forward passes of a test batch, cut as a training batch is."""
    pp, dp = layout.axis["pp"], layout.axis["dp"]
    return Evaluation(
        BatchSplit(config.micro_batches, dp.size, dp.rank),
        layout.all,
        cache(lambda m: forward_program(pp.size, m, virtual, pp.rank)),
        layout.counts_loss,
    )
