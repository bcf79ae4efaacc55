"""Strategy: the interface of an object that trains a model on several ranks, in one of the ways to
be parallel (replicas, a pipeline, a parameter server, ...).

Rules:

- Every rank calls the methods of its strategy in the same order. Facts that only one rank knows
  must not decide whether a method is called, or how often a generator of steps is resumed.
- An error that all ranks find in the same step is an AgreedError, and all leave alike. Any other
  error ends the job from the rank that raises it, because the others may be in the middle of a
  call.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from nnmpi.data import Loader, StepBatch
from nnmpi.nn.parameter import Parameter
from nnmpi.optim import Optimizer
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.layout import Layout
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.model.whole import WholeArrays
from nnmpi.parallel.recorder import NO_RECORDER, Recorder
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.parallel.step.objective import Outputs
from nnmpi.parallel.step.ports import Task
from nnmpi.parallel.step.step_traffic import StepTraffic


class WorkerPosition(NamedTuple):
    """How far one worker has come in its data, where workers are at different steps."""

    worker: int
    workers: int
    next: StepState


class StepControl(NamedTuple):
    """The functions through which training steps read settings of the run and tell it what they do.

    lr_factor   (step): the factor of all learning rates in this step
    request     returns this rank's request after the current step: STOPS, SAVES, or 0 for none
    steps       returns the number of steps of the whole run
    event       (event): writes an event, a dict of JSON values, to the log
    reads       (step): True if something reads the model or the result after so many steps, so that
                the host must wait for the device
    version     returns another number after code of the user has run between two steps, so that
                the model may have changed
    launched    is called when the update of a step was launched on a device; whether it is skipped
                is not known yet
    """

    lr_factor: Callable[[int], float]
    request: Callable[[], float]
    steps: Callable[[], int]
    event: Callable[[dict[str, Any]], None]
    reads: Callable[[int], bool]
    version: Callable[[], int]
    launched: Callable[[], None]


class TrainSpec(NamedTuple):
    """The arguments from which the strategy of a rank is built.

    parameters      the trained ones, in the order of the flat buffer
    optimizer       makes the optimizer of the parameters that this rank updates; every rank calls
                    it
    single_rank     for --verify: the same with another copy of the model
    next_steps      the position of each worker in its data, if each has its own pace
    """

    task: Task
    part: ModelPart
    parameters: Sequence[Parameter]
    arrangement: Arrangement
    optimizer: Callable[[Sequence[Parameter]], Optimizer]
    control: StepControl
    recorder: Recorder = NO_RECORDER
    single_rank: "TrainSpec | None" = None
    next_steps: Sequence[StepState] = ()


class AgreedError(ArithmeticError):
    """Ends a run on all ranks alike: each raises it with the same message, after the same step.
    From `checkpoint`, unless None, a job with another number of ranks may continue."""

    checkpoint: str | None = None


class NotFiniteError(ArithmeticError):
    """Ends a run because the loss or a gradient is NaN or infinite; raised on one rank."""


class Undo(Protocol):
    """A record of this rank's last step (or last round of local steps), by which the step can be
    completed or undone if another rank is lost.

    version          the number of steps that parameters and optimizer state contain; if the last
                     step is incomplete, the number that they contain after `restore`
    pending_version  the number of steps after `finish`; None if there is nothing to finish
    decision         (number of steps, the sums by which each rank sees whether the last step is
                     updated or skipped, see `Outcome.of`); None if this rank does not know them
    """

    @property
    def version(self) -> int: ...

    @property
    def pending_version(self) -> int | None: ...

    @property
    def decision(self) -> tuple[int, tuple[float, ...]] | None: ...

    def saving_buffers(self, loads: Iterable[StepBatch], step: int) -> Iterator[StepBatch]:
        """Yields the batches `loads`, from step `step` on; before each, copies the buffers."""

    def finish(self, decision: Sequence[float]) -> None:
        """Completes the last step, if only its update is missing, by the sums over all ranks that
        decide on it; sends no message."""

    def restore(self) -> None:
        """Restores what an incomplete last step or round has changed; sends no message."""


class Strategy(Protocol):
    """Trains a model on several ranks: makes steps, evaluates, and frees resources. Every rank has
    one, and all call its methods in the same order.

    optimizer    updates the parameters of this rank
    full_state   the whole arrays of the model, gathered from the ranks
    last         undoes or finishes the last step if a rank is lost; None if that cannot happen or
                 be done
    """

    layout: Layout
    optimizer: Optimizer
    full_state: WholeArrays
    last: Undo | None
    traffic: StepTraffic

    @property
    def position(self) -> WorkerPosition | None:
        """The position of this rank in its data, if ranks may be at different steps; else None."""

    def steps(self, loader: Loader, start: StepState) -> Generator[StepResult, None, None]:
        """Makes an epoch's steps from `start` on, each in a `next`; close the generator to
        stop early."""

    def evaluate(self, loader: Loader, step: int, outputs: Outputs) -> None:
        """Runs forward passes over `loader`; `outputs` gets the results, summed over all ranks."""

    def describe(self) -> dict[str, Any]:
        """Returns fields on how ranks train, for the start event."""

    def finish(self) -> dict[str, Any]:
        """Makes all copies of the model equal after the last epoch; returns facts about the
        training for the last event. Every rank calls it; further epochs may follow."""

    def close(self) -> None:
        """Frees Comms and shared memory; parameters move to own memory; all ranks call it."""

    def leave(self) -> None:
        """Stops the threads of this rank without a message, after the loss of a rank."""
