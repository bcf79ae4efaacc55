"""RunAbout: what a checkpoint tells of its run besides a snapshot, by its first rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nnmpi.nn import Module
from nnmpi.nn.gpt2 import Sizes
from nnmpi.nn.parameter import Parameter
from nnmpi.run.files.logs import LogMark
from nnmpi.run.report.pace import PaceCounts


class TensorFact(NamedTuple):
    """A name of a state dict: of a tensor under its first name, and what that is."""

    name: str
    first: str
    is_parameter: bool
    is_trained: bool


@dataclass(frozen=True)
class RunAbout:
    """What a run tells of itself.

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
