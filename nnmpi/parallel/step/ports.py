"""Stages of a model and their ports: where the input of a stage comes from, where its output goes.

Samples ──► stage ──► Loss        a model that is not cut
Samples ──► stage ──► Metrics     the same in evaluation (evaluation.py)
Inlet   ──► stage ──► Outlet      a stage of a pipeline (pipeline/channels.py)
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import as_tensor, tensor
from nnmpi.backend import Array, Backend
from nnmpi.data import Load
from nnmpi.nn import Module
from nnmpi.nn.passes import Pass, current_pass
from nnmpi.parallel.step.objective import Objective
from nnmpi.schedules import Op


Inputs: TypeAlias = Tensor | tuple[Tensor, ...]
"""What a stage takes: one tensor, or several."""


class Task(NamedTuple):
    """What is trained."""

    model: Module
    objective: Objective
    on: Backend

    def forward(self, x: np.ndarray, now: Pass) -> Tensor:
        """The scores of samples."""
        scores: Tensor = forward(self.model, tensor(x, on=self.on), now)
        return scores


def forward(module: Module, x: Inputs, now: Pass) -> Any:
    """The output of a module, with randomness keyed by the step and by each sample."""
    token = current_pass.set(now)
    try:
        return module(*x) if isinstance(x, tuple) else module(x)
    finally:
        current_pass.reset(token)


def tensors(x: Inputs) -> tuple[Tensor, ...]:
    """Each of the tensors."""
    return x if isinstance(x, tuple) else (x,)


def needing_gradients(x: Inputs) -> tuple[Tensor, ...]:
    """Those that require a gradient."""
    return tuple(t for t in tensors(x) if t.requires_grad)


class Source(Protocol):
    """Where the input of a stage comes from."""

    def begin(self, load: Load) -> None:
        """Starts a step."""

    def take(self, micro: int) -> Inputs:
        """The input of a micro-batch."""

    def give_back(self, micro: int, x: Inputs) -> None:
        """The tensors of x have their gradients, if they require one."""

    def done(self, micro: int) -> None:
        """The micro-batch is not needed any more: its memory may be used again."""


class Output(Protocol):
    """Where the output of a stage goes in a forward pass."""

    def begin(self, load: Load) -> None:
        """Starts a step."""

    def root(self, micro: int, y: Any) -> Tensor:
        """The tensor that a backward pass starts from: y itself, or the loss of y."""

    def put(self, micro: int, root: Tensor) -> None:
        """Takes it, once for each micro-batch."""


class Sink(Output, Protocol):
    """The same in training."""

    def seed(self, micro: int, root: Tensor) -> Array:
        """The gradient of the tensor that a backward pass starts from."""

    def done(self, micro: int) -> None:
        """The micro-batch is not needed any more: its memory may be used again."""

    def loss(self) -> Any:
        """The sum of the losses since it was last asked for."""


class Samples:
    """The source of the first stage: the samples of a micro-batch."""

    def __init__(self, on: Backend) -> None:
        self._on = on

    def begin(self, load: Load) -> None:
        self._load = load

    def take(self, micro: int) -> Tensor:
        return as_tensor(self._load.micro[micro].x, self._on)

    def give_back(self, micro: int, x: Inputs) -> None:
        pass

    def done(self, micro: int) -> None:
        pass


class Loss:
    """The sink of the last stage: the loss beside the labels, as a mean over the whole batch."""

    def __init__(self, loss: Callable[[Tensor, Any], Tensor]) -> None:
        self._loss_of = loss

    def begin(self, load: Load) -> None:
        self._load, self._sum = load, 0.0

    def root(self, micro: int, y: Tensor) -> Tensor:
        return self._loss_of(y, self._load.micro[micro].y)

    def put(self, micro: int, root: Tensor) -> None:
        self._sum = self._sum + root.data

    def seed(self, micro: int, root: Tensor) -> Array:
        xp = backend.xp_of(root.data)
        divisor = self._load.divisor
        return xp.full(root.shape, 1 / divisor if divisor else 0.0, root.dtype)

    def done(self, micro: int) -> None:
        pass

    def loss(self) -> Any:
        total, self._sum = self._sum, 0.0
        return total


class Stage(NamedTuple):
    """A part of the model between two ports."""

    module: Module
    source: Source
    sink: Sink

    @classmethod
    def whole(cls, task: Task) -> "Stage":
        """A model that is not cut."""
        return cls(task.model, Samples(task.on), Loss(task.objective))

    def begin(self, load: Load) -> None:
        """Starts a step."""
        self.source.begin(load)
        self.sink.begin(load)

    def done(self, micro: int) -> None:
        """The micro-batch is not needed any more."""
        self.source.done(micro)
        self.sink.done(micro)


class Messages(Protocol):
    """The messages between the stages of a pipeline."""

    def start(self, op: Op) -> None:
        """Starts the send or the receive of an operation."""

    def poll(self) -> None:
        """Called often during computations: messages progress."""

    def finish(self) -> None:
        """Waits until all sends are complete."""


class NoMessages:
    """Of a model that is not cut."""

    def start(self, op: Op) -> None:
        raise AssertionError(f"there is no channel for {op}")

    def poll(self) -> None:
        pass

    def finish(self) -> None:
        pass


NO_MESSAGES: Messages = NoMessages()
