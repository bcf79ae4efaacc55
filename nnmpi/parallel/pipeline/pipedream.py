"""PipeDream: a pipeline without flushes, in which each batch is a step on weights that are older.

1F1B runs on from batch to batch, so no stage waits for the others to finish a step. The forward and
the backward pass of a batch use one version of the weights of a stage (weight stashing), from which
other batches may have moved on (`versions.py`): p-1-s updates on stage s of p. With vertical sync
all stages use the version that the first one used, p-1 updates behind.

    Harlap et al. 2018, Narayanan et al. 2019; the order of ops is `schedules/stream.py`.
"""

from collections.abc import Generator
from contextlib import closing
from typing import Any

import numpy as np

from nnmpi.config import Config
from nnmpi.data import Loader
from nnmpi.metrics import Sums
from nnmpi.parallel.arrangement.batch_split import BatchSplit
from nnmpi.parallel.data.batch_size_check import check_micro_batches
from nnmpi.parallel.layout import Layout, mesh_of
from nnmpi.parallel.model.entries import Entries
from nnmpi.parallel.pipeline.asynchronous import AsynchronousStage
from nnmpi.parallel.pipeline.channels import Channels
from nnmpi.parallel.pipeline.synchronous import evaluation, with_ports
from nnmpi.parallel.pipeline.versions import VersionStore
from nnmpi.parallel.step.state import StepResult, StepState
from nnmpi.parallel.strategy import TrainSpec


def check(config: Config, ranks: int) -> None:
    """Raises ValueError where several ranks would have copies of a stage."""
    copies = mesh_of(config, ranks).axes["dp"]
    if copies > 1:
        raise ValueError(
            f"schedule pipedream with dp {copies}: {ranks} ranks in pipelines of {config.pp} make "
            f"{copies} copies of each stage, whose gradients would have to be summed before each "
            f"update; use --pp {ranks}, or --schedule 1f1b"
        )


class PipeDream:
    """The strategy of a rank, which is one stage."""

    position = None

    def __init__(self, config: Config, layout: Layout, spec: TrainSpec) -> None:
        _refuse_tied(spec)
        self.layout, self._spec, pp = layout, spec, layout.axis["pp"]
        self._vertical = config.vertical_sync
        first = spec.parameters[0].data
        self._store = VersionStore(spec.parameters, first.dtype, spec.task.on)
        self.optimizer = spec.optimizer(spec.parameters)
        self._channels = Channels(spec.part.boundaries, [pp.rank], pp, spec.recorder)
        self._stages = with_ports(spec, self._channels)
        self._stage = AsynchronousStage(
            self._stages[pp.rank],
            pp,
            self._channels,
            self._store,
            self.optimizer,
            spec.control,
            spec.recorder,
            self._vertical,
        )
        self._evaluation = evaluation(config, layout, 1)
        self.entries = Entries(spec.task.model, layout.all, spec.part.held)
        self._versions = 1

    def steps(self, loader: Loader, start: StepState) -> Generator[StepResult, None, None]:
        check_micro_batches(self._spec.task.model, loader, self._spec.control.steps, 1)
        whole, fields = BatchSplit(1, 1, 0), self._spec.part.fields
        with closing(loader.loads(start.epoch, whole, start.batch, fields)) as loads:
            yield from self._stage.epoch(loads, start, len(loader))

    def evaluate(self, loader: Loader, step: int) -> Sums:
        self._stage.check_empty()
        objective, fields = self._spec.task.objective, self._spec.part.fields
        return self._evaluation.sums(objective, self._stages, loader, step, fields, self._channels)

    def describe(self) -> dict[str, Any]:
        facts = self._spec.part.facts
        described = {"schedule": "pipedream", "micro_batches": 1, **facts}
        return described | {"vertical_sync": self._vertical}

    def outcome(self) -> dict[str, Any]:
        """The most versions of weights that a rank had at a time, once the strategy is closed."""
        return {"weight_versions": self._versions}

    def close(self) -> None:
        buffers = np.zeros(self.layout.all.size, np.int64)
        buffers[self.layout.all.rank] = self._store.buffers
        self.layout.all.all_gather(buffers)
        self._versions = int(buffers.max())
        self._store.close()
        self.layout.free()


def _refuse_tied(spec: TrainSpec) -> None:
    """Raises ValueError, on all ranks, if a parameter is in several stages."""
    for p, ranks in spec.part.tied:
        raise ValueError(
            f"schedule pipedream updates each stage by itself, and {p.place.path} is in stages on "
            f"ranks {', '.join(map(str, ranks))} along pp; use another --cut, or --schedule 1f1b"
        )
