"""The JSON of a manifest as dataclasses, for `checked`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from nnmpi.comm.allreduce.dispatch import NAMES
from nnmpi.optim.loss_scale import LossScale
from nnmpi.parallel import strategies
from nnmpi.parallel.step.executor import StepState
from nnmpi.run.callbacks import Changes
from nnmpi.run.checkpoints.located import ArrayInFile, SavedFile


@dataclass(frozen=True)
class MeasuredForm:
    """What was measured to arrange ranks, if anything was."""

    cut: str | None = None
    unit_costs: strategies.UnitCosts | None = None
    allreduce: Annotated[str, NAMES] | None = None


@dataclass(frozen=True)
class RunForm:
    """The object of a `Snapshot`."""

    options: Mapping[str, Any]
    ranks: int
    measured: MeasuredForm
    span: tuple[int, int] | None
    state: StepState
    skipped: int
    epoch: tuple[float, float, int, Mapping[str, tuple[float, float]]]
    positions: tuple[tuple[int, int, int, int, int], ...]
    changes: Changes
    loss_scale: LossScale | None


@dataclass(frozen=True)
class ManifestForm:
    """The content of the file, behind its digest."""

    format: int
    time: float
    versions: Mapping[str, str]
    run: Any
    about: Any
    arrays: tuple[ArrayInFile, ...]
    files: tuple[SavedFile, ...]
