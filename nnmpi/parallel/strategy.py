"""Strategy: what the trainer knows of a way of being parallel."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from nnmpi.data import Loader
from nnmpi.metrics import Sums
from nnmpi.nn.parameter import Parameter
from nnmpi.optim import Optimizer
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.entries import Entries
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.recorder import NO_RECORDER, Recorder
from nnmpi.parallel.step.executor import Position, StepControl, StepResult, StepState
from nnmpi.parallel.step.ports import Task

OnEvent: TypeAlias = Callable[[dict[str, Any]], None]


class TrainSpec(NamedTuple):
    """What is to be trained, before any of it is spread over ranks."""

    task: Task
    part: ModelPart  # what this rank has of it
    parameters: Sequence[Parameter]  # those that are trained, in the order of the flat buffer
    arrangement: Arrangement
    optimizer: Callable[[Sequence[Parameter]], Optimizer]
    control: StepControl
    on_event: OnEvent
    recorder: Recorder = NO_RECORDER
    twin: "TrainSpec | None" = None  # the same with a model of its own: for --verify
    next_steps: Sequence[StepState] = ()  # of each worker, where each goes on at a pace of its own


class AgreedError(ArithmeticError):
    """Ends a run on all ranks alike, with the same message, between the same two steps."""


class NotFiniteError(ArithmeticError):
    """Ends a run from one rank, whose loss or gradient is NaN or infinite."""


class Strategy(Protocol):
    """A layout at work; every rank of the job has one, and calls its methods in the same order."""

    layout: Layout
    optimizer: Optimizer
    entries: Entries

    @property
    def position(self) -> Position | None:
        """Where this rank is in its data, if not where all ranks are."""

    def steps(self, loader: Loader, start: StepState) -> Generator[StepResult, None, None]:
        """The steps of an epoch from `start` on; close the generator to stop early."""

    def evaluate(self, loader: Loader, step: int) -> Sums:
        """Loss and metrics over a split, the same on all ranks, with the model as it is."""

    def describe(self) -> dict[str, Any]:
        """What the start event says of it."""

    def outcome(self) -> dict[str, Any]:
        """What the last event says of it."""

    def close(self) -> None:
        """Frees what ranks share; parameters move to memory of each rank. Every rank calls it."""
