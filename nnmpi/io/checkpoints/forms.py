"""The values that a manifest has, whose types `schema.checked` compares with its JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from nnmpi.comm.allreduce.dispatch import NAMES
from nnmpi.io.checkpoints.schema import TYPE_NAMES
from nnmpi.io.checkpoints.snapshot import Changes
from nnmpi.io.files.outputs import LogMark
from nnmpi.io.output.pace import PaceCounts
from nnmpi.nn import Module
from nnmpi.nn.gpt2 import Sizes
from nnmpi.nn.parameter import Parameter
from nnmpi.optim.loss_scale import LossScale
from nnmpi.parallel import strategies
from nnmpi.parallel.model.snapshot import StateRange
from nnmpi.parallel.step.executor import StepState

# ---- where numbers are in files


class InFile(NamedTuple):
    """Numbers in a file: the name of their type, and the byte at which they begin."""

    dtype: Annotated[str, TYPE_NAMES]
    at: int


class ArrayInFile(NamedTuple):
    """An array in the file of the first rank, in C order."""

    dtype: Annotated[str, TYPE_NAMES]
    at: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SavedFile:
    """A file of a rank: its size, the SHA-256 of each block of 1 MB, and what is in it."""

    name: str
    bytes: int
    sha256: tuple[str, ...]
    ranges: tuple[StateRange[InFile], ...]


# ---- what a run tells of itself


class TensorFact(NamedTuple):
    """A name of a state dict: of a tensor under its first name, and what that is."""

    name: str
    first: str
    is_parameter: bool
    is_trained: bool


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run that a checkpoint has besides a snapshot.

    complete     whether it has no more steps to make
    total_steps  that it ends with
    facts        what is compared when it is resumed, besides options
    log          how long its log was
    pace         its time so far
    metrics      of the epoch that ended with the last step, if one did
    callbacks    names and states
    tensors      those of the model, which can be exported without its code
    metadata     those of the file of --save
    sizes        of a GPT
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


def tensor_facts(model: Module) -> tuple[TensorFact, ...]:
    """A fact for each name of a state dict."""
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
    """The measurements by which ranks were arranged, if there were any."""

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
