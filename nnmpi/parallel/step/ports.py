"""The ports of a stage (`stage.py`): where its input comes from (source), where its output goes
(sink).

Samples ──► stage ──► LossSink    a model that is not cut
Inlet   ──► stage ──► Outlet      a stage of a pipeline (channels.py)

Rules:

- Memory that a port has handed out belongs to the port again after `done(micro)`: copy what has to
  live longer (as `Executor._evaluate` does).
- The loss is divided in one place, `LossSink.seeds`, by the divisor of the whole batch on all
  ranks. A mean over a micro-batch or over a rank would weigh samples of uneven parts differently.
- `Sink.put` gets the outputs of each micro-batch, once, also if the forward pass is repeated later
  (RECOMPUTE). They may lie in memory that serves the next micro-batch: copy what lives longer.
- The loss stays on its device: `float(loss)` would wait in each micro-batch.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, Backend
from nnmpi.autograd import Tensor, as_tensor
from nnmpi.data import StepBatch
from nnmpi.data.inputs import Structure, each
from nnmpi.nn import Module
from nnmpi.optim.loss_scale import Scaler
from nnmpi.parallel.step.objective import Objective, Outputs

Tensors: TypeAlias = Structure[Tensor]
"""The input of a stage: a tensor, or a tuple or dict of tensors (see `nnmpi.data.inputs`)."""


class Task(NamedTuple):
    """The subject of a training: model, objective, backend, and in mixed precision scaler."""

    model: Module
    objective: Objective
    on: Backend
    scaler: Scaler | None = None


class Port:
    """The input side or the output side of a stage. `has_memory`: it has memory for each
    micro-batch, so `give_back` and `done` are called."""

    has_memory = False

    def begin(self, load: StepBatch) -> None:
        """Stores the batch of a step whose micro-batches pass here."""
        self._load = load

    def done(self, micro: int) -> None:
        """Frees the memory of a micro-batch, which is not needed any more."""
        raise NotImplementedError


class Source(Port):
    """The input side of a stage: provides its input, and takes the gradients of the input."""

    def next_input(self, micro: int) -> Tensors:
        """Returns the input of a stage for a micro-batch."""
        raise NotImplementedError

    def give_back(self, micro: int, x: Any) -> None:
        """Takes back x, which `next_input` has returned, after the backward pass has computed the
        gradients of its tensors; an Inlet sends these to the previous stage."""
        raise NotImplementedError


class Sink(Port):
    """The output side of a stage: takes outputs, provides gradients."""

    def root(self, micro: int, y: Any) -> Tensor:
        """Returns the tensor at which the backward pass starts: the output y, or its loss."""
        raise NotImplementedError

    def put(self, micro: int, outputs: Sequence[Array]) -> None:
        """Takes the outputs of a stage for a micro-batch, or their loss, after its forward pass."""
        raise NotImplementedError

    def seeds(self, micro: int, outputs: Sequence[Array]) -> Sequence[Array | None]:
        """Returns the outputs' gradients, which start the backward pass; None for one without."""
        raise NotImplementedError

    def evaluate(self, micro: int, y: Any) -> None:
        """Takes the output y of a micro-batch in an evaluation."""
        raise NotImplementedError


class Samples(Source):
    """The source of the first stage: provides the samples of a micro-batch as input."""

    def __init__(self, on: Backend) -> None:
        self._on = on

    def next_input(self, micro: int) -> Tensors:
        x = self._load.micro[micro].x
        if isinstance(x, np.ndarray):
            return Tensor(self._on.asarray(x))
        return each(partial(as_tensor, on=self._on), x)


class LossSink(Sink):
    """The sink of the last stage: computes the loss, and starts the backward pass with the gradient
    of the mean over the whole batch. `outputs` has the scores of an evaluation; `tail` is what a
    device computes right behind the backward pass, if all steps have one micro-batch."""

    outputs: Outputs
    tail: Any = None

    def __init__(self, objective: Objective) -> None:
        self.criterion = objective.loss
        self._sum: Any = 0.0
        self._seeds: tuple[Any, Sequence[Array]] = None, ()  # reused if they fit; read-only

    def begin(self, load: StepBatch) -> None:
        self._load, self._sum = load, 0.0

    def root(self, micro: int, y: Tensor) -> Tensor:
        return self.loss_of(y, self.labels(micro))

    def labels(self, micro: int) -> Any:
        """Returns the labels of a micro-batch."""
        return self._load.micro[micro].y

    def loss_of(self, y: Tensor, labels: Any) -> Tensor:
        """Returns the sum of losses over a micro-batch."""
        return self.criterion(y, labels)

    def put(self, micro: int, outputs: Sequence[Array]) -> None:
        # never the array itself, but where it stays until the next step
        self._sum = outputs[0] if self.tail else self._sum + outputs[0]

    def seeds(self, micro: int, outputs: Sequence[Array], scale: float = 1.0) -> Sequence[Array]:
        value, like = scale / divisor if (divisor := self._load.divisor) else 0.0, outputs[0]
        key = value, like.shape, like.dtype, type(like)
        if self._seeds[0] != key:
            seed = backend.xp_of(like).full(like.shape, value, like.dtype)
            if isinstance(seed, np.ndarray):
                seed.flags.writeable = False  # it serves later steps too
            self._seeds = key, [seed]
        return self._seeds[1]

    def loss(self) -> Any:
        """Returns the losses since the last call and resets them; 0 without the last stage."""
        total, self._sum = self._sum, 0.0
        return total

    def evaluate(self, micro: int, y: Tensor) -> None:
        self.outputs.add(y, self._load.micro[micro])
