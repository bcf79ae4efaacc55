"""The types of the values in a manifest; `schema.checked` checks its JSON against them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from nnmpi.comm.allreduce.dispatch import NAMES
from nnmpi.io.checkpoints.schema import TYPE_NAMES
from nnmpi.io.checkpoints.snapshot import Changes
from nnmpi.io.files.outputs import LogMark
from nnmpi.io.output.pace import PaceCounts
from nnmpi.nn.place import Part
from nnmpi.parallel.step.executor import StepState
from nnmpi.parallel.unit_costs import UnitCosts

# ---- facts about a run


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run that a checkpoint has besides a snapshot.

    complete     True if the run has no more steps to make
    total_steps  the number of steps after which the run ends
    facts        values besides options that are compared when the run is resumed
    log          the length of its log when the checkpoint was written
    pace         the times of its steps so far
    metrics      results of the evaluation after the last step, empty if there was none
    callbacks    each callback's name and state
    tensors      maps each name in the model's state dict to the first name of the same tensor, so
                 that the model can be exported without its code
    buffers      the names of tensors that are not parameters
    others       the names of other state, which modules have declared
    metadata     the metadata that --save writes to its file
    sizes        the sizes of a model that add-ons can build from them, or None
    restored     the steps to which `Trainer.restore` has taken the run back, in order
    """

    complete: bool
    total_steps: int
    facts: Mapping[str, Any]
    log: LogMark | None
    pace: PaceCounts
    metrics: Mapping[str, float]
    callbacks: tuple[tuple[str, Any], ...]
    tensors: Mapping[str, str]
    buffers: tuple[str, ...]
    others: tuple[str, ...]
    metadata: Mapping[str, str]
    sizes: tuple[Any, ...] | None
    restored: tuple[int, ...]


# ---- the JSON


@dataclass(frozen=True)
class MeasuredForm:
    """The measurements by which ranks were arranged, as the JSON has them."""

    cut: str | None = None
    unit_costs: UnitCosts | None = None
    allreduce: Annotated[str, NAMES] | None = None


@dataclass(frozen=True)
class RunForm:
    """A `Snapshot` without its arrays, as the JSON has it."""

    options: Mapping[str, Any]
    ranks: int
    measured: MeasuredForm
    span: tuple[int, int] | None
    state: StepState
    skipped: int
    epoch: tuple[float, float, int, Mapping[str, tuple[float, float]]]
    positions: tuple[tuple[int, int, int, int, int], ...]
    changes: Changes


class TensorForm(NamedTuple):
    """A tensor and the arrays of its state, which have the same shape and memory order.

    dtypes   maps the end of each array's name, after the tensor's name and a point, to its type;
             "" is the tensor itself
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    dtypes: dict[str, Annotated[str, TYPE_NAMES]]


class RangeForm(NamedTuple):
    """A range of an array in a file; `array` is its number, counted along all TensorForms."""

    array: int
    part: Part
    lo: int
    hi: int


@dataclass(frozen=True)
class FileForm:
    """A `RankFile` as the JSON has it."""

    name: str
    bytes: int
    sha256: tuple[str, ...]
    ranges: tuple[int | RangeForm, ...]  # a number: the whole array


@dataclass(frozen=True)
class ManifestForm:
    """The content of manifest.json that its digest covers."""

    format: int
    time: float
    versions: Mapping[str, str]
    run: Any
    about: Any
    arrays: tuple[TensorForm, ...]
    files: tuple[FileForm, ...]
