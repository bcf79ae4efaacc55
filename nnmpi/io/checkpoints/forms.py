"""The values in a manifest; `schema.checked` checks its JSON against these types."""

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

# ---- what a run tells of itself


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run that a checkpoint has besides a snapshot.

    complete     True if the run has no more steps to make
    total_steps  after which it ends
    facts        what is compared besides options when it is resumed
    log          how long its log was
    pace         its time so far
    metrics      of the evaluation after the last step, if there was one
    callbacks    names and states
    tensors      by each name in the state dict of the model the first name of the same tensor, so
                 that it can be exported without its code
    buffers      the names of those that are no parameters
    others       the names of what modules say is their state
    metadata     those of the file of --save
    sizes        of a model that add-ons know by them
    restored     the steps that `restore` had taken the run to, in order
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
    """The measurements from which ranks were arranged, as JSON has them."""

    cut: str | None = None
    unit_costs: UnitCosts | None = None
    allreduce: Annotated[str, NAMES] | None = None


@dataclass(frozen=True)
class RunForm:
    """A `Snapshot` without its arrays, as JSON has it."""

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
    """Arrays of any file that lie alike: a tensor, and arrays of its state.

    dtypes   of each array, by what follows the name and a point; "" is the tensor itself
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
    """A `RankFile` as JSON has it."""

    name: str
    bytes: int
    sha256: tuple[str, ...]
    ranges: tuple[int | RangeForm, ...]  # a number: the whole array


@dataclass(frozen=True)
class ManifestForm:
    """The content of manifest.json, behind its digest."""

    format: int
    time: float
    versions: Mapping[str, str]
    run: Any
    about: Any
    arrays: tuple[TensorForm, ...]
    files: tuple[FileForm, ...]
