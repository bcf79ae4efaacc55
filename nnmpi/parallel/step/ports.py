"""Stages, parts of the model that a rank runs as a whole, and their ports: where the input comes
from (source), and where the output goes (sink).

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

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, Backend
from nnmpi.arrays.kernels.epilogue import constant
from nnmpi.autograd import Tensor, as_tensor
from nnmpi.autograd.recording import TapeNode, recording
from nnmpi.autograd.tape import UnfinishedBackward, begun
from nnmpi.data import StepBatch
from nnmpi.data.inputs import Structure, each, parts
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import BatchStats, Pass, current_pass
from nnmpi.nn.recompute import DIFFERS, digest
from nnmpi.optim.loss_scale import Scaler
from nnmpi.parallel.step.objective import Objective, Outputs
from nnmpi.schedules.lists.step_list import BackwardKind

if TYPE_CHECKING:
    from nnmpi.parallel.stores.unit_values import UnitValues

Tensors: TypeAlias = Structure[Tensor]
"""The input of a stage: a tensor, or a tuple or dict of tensors (see `nnmpi.data.inputs`)."""


class Task(NamedTuple):
    """The subject of a training: the model, the objective, the backend, and in mixed precision the
    scaler."""

    model: Module
    objective: Objective
    on: Backend
    scaler: Scaler | None = None


def forward(module: Module, x: Tensors, current: Pass) -> Any:
    """Returns a module's output in a Pass, on which random numbers depend."""
    token = current_pass.set(current)
    try:
        return call(module, x)
    finally:
        current_pass.reset(token)


def call(module: Module, x: Tensors) -> Any:
    """Returns the output for a tensor, a tuple, or a dict of arguments."""
    if isinstance(x, dict):
        return module(**x)
    return module(*x) if isinstance(x, tuple) else module(x)


def needing_gradients(x: Tensors) -> tuple[Tensor, ...]:
    """Returns the tensors of an input that require a gradient."""
    return tuple(t for _, t in parts(x) if t._requires_grad)


class JoinedOutputs(Tensor):
    """A scalar that depends on all outputs of a stage, so that one backward pass covers all of
    them: it starts each output (in `parts`) with the gradient that `seed` has set."""

    __slots__ = ("gradients", "parts")

    def __init__(self, parts: Sequence[Tensor]) -> None:
        super().__init__(np.zeros(()))
        self.parts = parts
        self.gradients: Sequence[Any] = ()
        needs = [t._requires_grad for t in parts]
        if True in needs and recording.get():
            vjps = tuple(partial(self._gradient, k) for k in range(len(parts)))
            self._requires_grad = True
            self.node = TapeNode(self, [t.node or t for t in parts], needs, vjps)

    def seed(self, gradients: Sequence[Array | None]) -> Array:
        """Sets the outputs' gradients (or None); returns the zero that starts the backward pass."""
        self.gradients = gradients
        return np.zeros(())

    def _gradient(self, k: int, g: Any, out: Array | None) -> Any:
        return self.gradients[k]


def joined(y: Any) -> JoinedOutputs:
    """Returns a stage's outputs as a scalar, from which one backward pass covers all."""
    return JoinedOutputs(y if isinstance(y, tuple) else (y,))


def outputs_of(root: Tensor) -> Sequence[Tensor]:
    """Returns the outputs of a stage, given the tensor from which its backward pass starts."""
    return root.parts if isinstance(root, JoinedOutputs) else (root,)


def seed_of(root: Tensor, gradients: Sequence[Any]) -> Any:
    """Returns the gradient of `root` that starts a backward pass, given the outputs'."""
    return root.seed(gradients) if isinstance(root, JoinedOutputs) else gradients[0]


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
        """Returns the gradients of the outputs, with which the backward pass starts; None for one
        without."""
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
    of the mean over the whole batch. `outputs` has the scores of an evaluation."""

    outputs: Outputs

    def __init__(self, objective: Objective) -> None:
        self.criterion = objective.loss
        self._sum: Any = None
        self._seeds: tuple[Any, Sequence[Array]] = None, ()  # reused if they fit; read-only

    def begin(self, load: StepBatch) -> None:
        self._load, self._sum = load, None

    def root(self, micro: int, y: Tensor) -> Tensor:
        return self.loss_of(y, self.labels(micro))

    def labels(self, micro: int) -> Any:
        """Returns the labels of a micro-batch."""
        return self._load.micro[micro].y

    def loss_of(self, y: Tensor, labels: Any) -> Tensor:
        """Returns the sum of losses over a micro-batch."""
        return self.criterion(y, labels)

    def put(self, micro: int, outputs: Sequence[Array]) -> None:
        self._sum = outputs[0].copy() if self._sum is None else self._sum + outputs[0]

    def seeds(self, micro: int, outputs: Sequence[Array], scale: float = 1.0) -> Sequence[Array]:
        value, like = scale / divisor if (divisor := self._load.divisor) else 0.0, outputs[0]
        key = value, like.shape, like.dtype, type(like)
        if self._seeds[0] != key:
            seed = constant(like.shape, value, like.dtype, backend.xp_of(like))
            if isinstance(seed, np.ndarray):
                seed.flags.writeable = False  # it serves later steps too
            self._seeds = key, [seed]
        return self._seeds[1]

    def loss(self) -> Any:
        """Returns the losses since the last call and resets them; 0 without the last stage."""
        total, self._sum = self._sum, None
        return 0.0 if total is None else total

    def evaluate(self, micro: int, y: Tensor) -> None:
        self.outputs.add(y, self._load.micro[micro])


class Stage(NamedTuple):
    """A part of the model that a rank runs, with its source and its sink.

    A pass stops between units: a backward pass as soon as the gradients of a unit are final, a
    forward pass before it reads parameters of the next unit. But `forward` of a module cannot stop,
    so with autograd the whole forward pass runs as if it were the first unit; a further unit asks
    for its values when they are read (ZeRO 3).

    units        the numbers of its units in the list of a step's operations
    of_units     for each unit, the parameters that no earlier unit uses
    absent       for each unit, the parameters that may not be in memory while it runs (ZeRO 3)
    unrepeated   for each unit, those of `absent` that may not be in memory in its backward pass
                 either
    values       answers units that ask for values (ZeRO 3)"""

    module: Module
    source: Source
    sink: Sink
    parameters: frozenset[Parameter]
    units: Sequence[int] = (0,)
    of_units: Sequence[frozenset[Parameter]] = (frozenset(),)
    absent: Sequence[frozenset[Parameter]] = ()
    unrepeated: Sequence[frozenset[Parameter]] = ()
    values: "UnitValues | None" = None

    def beside(self, follow: Callable[[], object]) -> AbstractContextManager[None]:
        """Returns a context for a pass that cannot stop: follow() replays each unit before the
        next."""
        return nullcontext() if self.values is None else self.values.telling(follow)


def run_stage(stage: Stage, state: "PassState", micro: int, current: Pass) -> Tensor:
    """Runs the forward pass of a stage on a micro-batch; returns the tensor at which its backward
    pass starts. The Pass `current` determines the random numbers."""
    return stage.sink.root(micro, forward(stage.module, state.input, current))


ENDED = object()
"""Stands for the end of a pass where another stop is expected."""


class StagePass(Protocol):
    """Runs the backward pass of a micro-batch in a stage, by `backward`, or by `first_half` and
    later `second_half`."""

    @property
    def outputs(self) -> Sequence[Array]:
        """The outputs of the stage, or their loss."""

    def release(self) -> None:
        """Drops outputs that were sent, to free what no backward pass needs."""

    def backward(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        """Runs the backward pass from the outputs' gradients; stops between units."""

    def first_half(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        """Computes received inputs' gradients from those of outputs; stops between units."""

    def second_half(self) -> Generator[None, None, None]:
        """Computes the remaining gradients, those of parameters; stops between units."""


ForwardPass: TypeAlias = Callable[["PassState", int, Pass], Generator[None, None, StagePass]]
"""(state, number of the micro-batch, current): runs the forward pass of a micro-batch in a stage; a
generator that stops between units, and returns a StagePass."""


class TapePass:
    """The StagePass by autograd: the forward pass has recorded its operations."""

    def __init__(self, stage: Stage, state: "PassState", root: Tensor) -> None:
        self._stage, self._state, self._root = stage, state, root
        self.outputs: Sequence[Array] = [t.array for t in outputs_of(root)]
        self._rest: UnfinishedBackward | None = None

    def release(self) -> None:
        """Drops outputs that were sent, to free what no backward pass needs."""
        if isinstance(self._root, JoinedOutputs):
            self._root.parts = self.outputs = ()

    def backward(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        """Runs the backward pass from the outputs' gradients; stops between units."""
        if self._root._requires_grad:
            self._rest = begun(self._root, seed_of(self._root, seeds))
        return self.second_half()

    def first_half(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
        """Computes received inputs' gradients from those of outputs, without stopping."""
        leaves, seed = needing_gradients(self._state.input), seed_of(self._root, seeds)
        if leaves and self._root._requires_grad:
            self._rest = self._root.backward(seed, until=leaves)
        elif self._root._requires_grad:  # the input is data: all of the backward pass is left
            self._rest = begun(self._root, seed)
        yield from ()

    def second_half(self) -> Generator[None, None, None]:
        """Computes the remaining gradients, those of parameters; stops between units."""
        rest, self._rest = self._rest, None
        if rest is None:  # the first stage has used none of its parameters
            return pauses(self._stage.units)
        if (kind := self._state.kind) is None or not kind.adds:
            self._check(rest.leaves())
        stage = self._stage
        return rest.in_parts(stage.of_units[::-1], stage.absent[::-1], stage.unrepeated[::-1])

    def _check(self, leaves: Iterable[Any]) -> None:
        """Raises ValueError if a leaf requires a gradient but is neither a parameter of the stage
        nor its input; once a step, or where steps overlap, for each micro-batch."""
        known, inputs = self._stage.parameters, {*needing_gradients(self._state.input)}
        for leaf in leaves:
            if leaf not in known and leaf not in inputs:
                raise ValueError(
                    f"the model uses a tensor of shape {leaf.shape} that requires a gradient, but "
                    "is not one of its parameters, so it would be neither trained nor saved: make "
                    "it an nn.Parameter and an attribute of a module"
                )


def by_tape(
    stage: Stage, state: "PassState", micro: int, current: Pass
) -> Generator[None, None, TapePass]:
    """Runs the forward pass of a micro-batch in a stage by autograd, without stopping between
    units."""
    yield from ()
    return TapePass(stage, state, run_stage(stage, state, micro, current))


def pauses(units: Sequence[int]) -> Generator[None, None, None]:
    """Yields between every two units, and does nothing else: a pass without work."""
    for _ in units[1:]:
        yield


@dataclass(slots=True, eq=False)
class PassState:
    """The state of a micro-batch in a stage between its two passes: `input`, `stats` (sums
    BatchNorm statistics), `kind` (facts about the backward pass), and `run`, its StagePass."""

    input: Tensors
    stats: BatchStats
    kind: BackwardKind | None
    run: StagePass = field(init=False)  # after the forward pass
    _digests: list[int] = field(default_factory=list, init=False)

    def note(self, outputs: Sequence[Array]) -> None:
        """Keeps checksums of outputs, to compare with those of a recomputation."""
        self._digests = [*map(digest, outputs)]

    def compare(self, outputs: Sequence[Array], stage: int) -> None:
        """Raises ValueError if the outputs of a recomputed forward pass differ from those that
        `note` has seen."""
        if self._digests and self._digests != [*map(digest, outputs)]:
            raise ValueError(f"stage {stage}: {DIFFERS}")
