"""The values in a manifest; `schema.checked` checks its JSON against these types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from nnmpi.comm.allreduce.dispatch import NAMES
from nnmpi.io.checkpoints.schema import TYPE_NAMES
from nnmpi.io.checkpoints.snapshot import Changes
from nnmpi.io.files.outputs import LogMark
from nnmpi.io.output.pace import PaceCounts
from nnmpi.nn import Module
from nnmpi.nn.language import Sizes
from nnmpi.nn.parameter import Parameter
from nnmpi.optim.loss_scale import LossScale
from nnmpi.parallel import strategies
from nnmpi.parallel.model.snapshot import StateRange
from nnmpi.parallel.step.executor import StepState

# ---- where numbers are in files


class InFile(NamedTuple):
    """The place of an array in a file: the name of its type, and the byte at which it begins."""

    dtype: Annotated[str, TYPE_NAMES]
    at: int


class ArrayInFile(NamedTuple):
    """The place of an array in the file of rank 0, in C order."""

    dtype: Annotated[str, TYPE_NAMES]
    at: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SavedFile:
    """The file of a rank: its size, the SHA-256 of each block of 1 MB, and the ranges in it."""

    name: str
    bytes: int
    sha256: tuple[str, ...]
    ranges: tuple[StateRange[InFile], ...]


# ---- what a run tells of itself


class TensorFact(NamedTuple):
    """A name in a state dict, with the first name of the same tensor, and what the tensor is."""

    name: str
    first: str
    is_parameter: bool
    is_trained: bool


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
    tensors      those of the model, which can be exported without its code
    metadata     those of the file of --save
    sizes        of a GPT or a Llama
    restored     the steps that `restore` had taken the run to, in order
    """

    complete: bool
    total_steps: int
    facts: Mapping[str, Any]
    log: LogMark | None
    pace: PaceCounts
    metrics: Mapping[str, float]
    callbacks: tuple[tuple[str, Any], ...]
    tensors: tuple[TensorFact, ...]
    metadata: Mapping[str, str]
    sizes: Sizes | None
    restored: tuple[int, ...] = ()

    def to_write(self) -> dict[str, Any]:
        """The fields; without `restored` where it is empty, so that older versions of nnmpi, which
        do not know it, read the checkpoint."""
        return {name: value for name, value in vars(self).items() if value or name != "restored"}


def tensor_facts(model: Module) -> tuple[TensorFact, ...]:
    """A TensorFact for each name in the state dict of a model."""
    first: dict[int, str] = {}
    return tuple(
        TensorFact(
            place.path,
            first.setdefault(id(tensor), place.path),
            isinstance(tensor, Parameter),
            isinstance(tensor, Parameter) and tensor.requires_grad,
        )
        for place, tensor in model.tensors()
    )


# ---- the JSON


@dataclass(frozen=True)
class MeasuredForm:
    """The measurements from which ranks were arranged, as JSON has them."""

    cut: str | None = None
    unit_costs: strategies.UnitCosts | None = None
    allreduce: Annotated[str, NAMES] | None = None


@dataclass(frozen=True)
class RunForm:
    """A `Snapshot` without its ranges, as JSON has it."""

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
    """The content of manifest.json, behind its digest."""

    format: int
    time: float
    versions: Mapping[str, str]
    run: Any
    about: Any
    arrays: tuple[ArrayInFile, ...]
    files: tuple[SavedFile, ...]
