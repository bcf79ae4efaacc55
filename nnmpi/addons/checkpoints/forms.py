"""The types of a manifest's JSON, which `schema.checked` checks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from nnmpi.addons.checkpoints.schema import TYPE_NAMES
from nnmpi.comm.allreduce.dispatch import NAMES
from nnmpi.io.checkpoints.snapshot import Changes
from nnmpi.io.files.outputs import LogMark
from nnmpi.io.output.pace import PaceCounts
from nnmpi.nn.place import Box
from nnmpi.parallel.step.executor import StepState
from nnmpi.parallel.unit_costs import UnitCosts

# ---- facts about a run


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run in a checkpoint, besides the state of training, which is in its Snapshot.

    complete     True if the run has no more steps to make
    total_steps  the number of steps after which the run ends
    facts        values besides options that are compared when the run is resumed
    log          the position in its log (length and digest) when the checkpoint was written
    pace         the times of its steps so far
    metrics      results of the evaluation after the last step, empty if there was none
    tensors      maps each name in the model's state dict to the first name of the same tensor, so
                 that the model can be exported without its code
    buffers      the names of tensors that are not parameters
    others       the names of further arrays of state, which modules return by `state_arrays`
    metadata     the metadata that --save writes to its file
    sizes        the sizes of a GPT or Llama, from which an add-on can build the model; else None
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
    """Measurements of a run by which work was placed on ranks, as a manifest stores them."""

    cut: str | None = None
    unit_costs: UnitCosts | None = None
    allreduce: Annotated[str, NAMES] | None = None


@dataclass(frozen=True)
class RunForm:
    """A `Snapshot` as it is stored in a manifest: all fields except the arrays."""

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
    """A tensor of the model as a manifest describes it, together with its optimizer state: arrays
    of the same shape and memory order.

    axes     the order of the axes in memory
    dtypes   the element type of each array, by the end of its name: "" is the tensor itself, and
             "momentum_buffer" the array TENSOR.momentum_buffer
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    dtypes: dict[str, Annotated[str, TYPE_NAMES]]


class RangeForm(NamedTuple):
    """A piece of an array in a rank's file, as a manifest describes it: elements lo..hi-1, in
    memory order, of the rectangle `part` (start and stop for each axis) of array number `array`,
    counted through all TensorForms."""

    array: int
    part: Box
    lo: int
    hi: int


@dataclass(frozen=True)
class FileForm:
    """One rank's file of a checkpoint as a manifest describes it; a `RankFile` is made from it.

    sha256   the digest of each block of 1 MB
    ranges   the contents in file order: the number of a whole array, or a RangeForm
    """

    name: str
    bytes: int
    sha256: tuple[str, ...]
    ranges: tuple[int | RangeForm, ...]


@dataclass(frozen=True)
class ManifestForm:
    """The content of a checkpoint's manifest.json, without the digest that covers it."""

    format: int
    time: float
    versions: Mapping[str, str]
    run: Any
    about: Any
    arrays: tuple[TensorForm, ...]
    files: tuple[FileForm, ...]
