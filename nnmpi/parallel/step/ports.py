"""Stages and their ports: where the input of a stage comes from, and where its output goes.

Samples ──► stage ──► LossSink    a model that is not cut
Inlet   ──► stage ──► Outlet      a stage of a pipeline (channels.py)

Rules:

- Memory that a port has handed out belongs to the port again after `done(micro)`: copy what has to
  live longer (as `Executor._evaluate` does).
- The loss is divided in one place, `LossSink.seed`, by the divisor of the whole batch on all ranks.
  A mean over a micro-batch or over a rank would weigh samples of uneven parts differently.
- `put` is called once for each micro-batch, also where RECOMPUTE follows; its root may then have no
  graph. The loss stays on its device: `float(loss)` would wait in each micro-batch.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

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
from nnmpi.parallel.step.objective import Objective
from nnmpi.parallel.step.outputs import Outputs

Tensors: TypeAlias = Structure[Tensor]
"""The input of a stage: a tensor, or a tuple or dict of tensors (see `nnmpi.data.inputs`)."""


class Task(NamedTuple):
    """A model and its objective; with a loss scale if parameters have masters."""

    model: Module
    objective: Objective
    on: Backend
    scaler: Scaler | None = None


def forward(module: Module, x: Tensors, current: Pass) -> Any:
    """Calls a module with an input, with randomness keyed by the step and the samples of the given
    pass."""
    token = current_pass.set(current)
    try:
        return call(module, x)
    finally:
        current_pass.reset(token)


def call(module: Module, x: Tensors) -> Any:
    """Calls a module with an input of one or several tensors."""
    if isinstance(x, dict):
        return module(**x)
    return module(*x) if isinstance(x, tuple) else module(x)


def needing_gradients(x: Tensors) -> tuple[Tensor, ...]:
    """The tensors of an input that require a gradient."""
    return tuple(t for _, t in parts(x) if t.requires_grad)


class JoinedOutputs(Tensor):
    """The outputs of a stage as one scalar, which nobody reads: the root of one backward pass over
    all of them.

    The backward pass gives each part the gradient that `seed` has set.
    """

    __slots__ = ("gradients", "parts")

    def __init__(self, parts: Sequence[Tensor]) -> None:
        super().__init__(np.zeros(()))
        self.parts = parts
        self.gradients: Sequence[Any] = ()
        needs = [t.requires_grad for t in parts]
        if True in needs and recording.get():
            vjps = tuple(partial(self._gradient, k) for k in range(len(parts)))
            self.requires_grad = True
            self.node = TapeNode(self, [t.node or t for t in parts], needs, vjps)

    def seed(self, gradients: Sequence[Array | None]) -> Array:
        """Sets the gradients that the backward pass gives the parts (None where a part requires
        none); returns a zero that the backward pass starts with and ignores."""
        self.gradients = gradients
        return np.zeros(())

    def begun(self, seed: Array) -> UnfinishedBackward:
        """A backward pass from here, of which nothing has been computed yet."""
        return begun(self, seed)

    def _gradient(self, k: int, g: Any, out: Array | None) -> Any:
        return self.gradients[k]


def joined(y: Any) -> JoinedOutputs:
    """The root over the outputs of a stage: a tensor, several, or a root already."""
    if isinstance(y, JoinedOutputs):
        return y
    return JoinedOutputs(y if isinstance(y, tuple) else (y,))


class Port:
    """One side of a stage: its input or its output.

    has_memory   True if the port has memory for a micro-batch: `give_back` and `done` are called
    """

    has_memory = False

    def begin(self, load: StepBatch) -> None:
        """Starts a step on the micro-batches of `load`."""
        self._load = load

    def done(self, micro: int) -> None:
        """Called when a micro-batch is not needed any more: its memory may be reused."""
        raise NotImplementedError


class Source(Port):
    """The port from which the input of a stage comes."""

    def next_input(self, micro: int) -> Tensors:
        """Returns the input of a stage for a micro-batch."""
        raise NotImplementedError

    def give_back(self, micro: int, x: Any) -> None:
        """Takes x, which `next_input` had returned, back with its gradients, if it requires any."""
        raise NotImplementedError


class Sink(Port):
    """The port to which the output of a stage goes."""

    def root(self, micro: int, y: Any) -> Tensor:
        """The tensor from which a backward pass starts: y itself, or the loss of y."""
        raise NotImplementedError

    def put(self, micro: int, root: Tensor) -> None:
        """Takes the root of a micro-batch after its forward pass."""
        raise NotImplementedError

    def seed(self, micro: int, root: Tensor) -> Array:
        """The gradient of the root, with which a backward pass starts."""
        raise NotImplementedError

    def evaluate(self, micro: int, y: Any) -> None:
        """Takes the output of a forward pass that no backward pass follows."""
        raise NotImplementedError


class Samples(Source):
    """The source of the first stage: the samples of a micro-batch."""

    def __init__(self, on: Backend) -> None:
        self._on = on

    def next_input(self, micro: int) -> Tensors:
        x = self._load.micro[micro].x
        if isinstance(x, np.ndarray):
            return Tensor(self._on.asarray(x))
        return each(partial(as_tensor, on=self._on), x)


class LossSink(Sink):
    """The sink of the last stage: computes the loss, as a mean over the whole batch.

    `outputs` accumulates the scores of an evaluation.
    """

    outputs: Outputs

    def __init__(self, objective: Objective) -> None:
        self.criterion = objective.loss
        self._sum: Any = None
        self._seed: tuple[Any, Array] | None = None  # reused as long as it fits; read-only

    def begin(self, load: StepBatch) -> None:
        self._load, self._sum = load, None

    def root(self, micro: int, y: Tensor) -> Tensor:
        return self.loss_of(y, self.labels(micro))

    def labels(self, micro: int) -> Any:
        """The labels of a micro-batch."""
        return self._load.micro[micro].y

    def loss_of(self, y: Tensor, labels: Any) -> Tensor:
        """The loss of the output of the model."""
        return self.criterion(y, labels)

    def put(self, micro: int, root: Tensor) -> None:
        self._sum = root.array if self._sum is None else self._sum + root.array

    def seed(self, micro: int, root: Tensor, scale: float = 1.0) -> Array:
        value = scale / divisor if (divisor := self._load.divisor) else 0.0
        like = root.array
        key = value, like.shape, like.dtype, type(like)
        if self._seed is None or self._seed[0] != key:
            seed = constant(like.shape, value, like.dtype, backend.xp_of(like))
            if isinstance(seed, np.ndarray):
                seed.flags.writeable = False  # it serves later steps too
            self._seed = key, seed
        return self._seed[1]

    def loss(self) -> Any:
        """Returns and clears the sum of the losses since the last call; 0 on a rank without the
        last stage."""
        total, self._sum = self._sum, None
        return 0.0 if total is None else total

    def evaluate(self, micro: int, y: Tensor) -> None:
        self.outputs.add(y, self._load.micro[micro])


class Stage(NamedTuple):
    """A part of the model, between its source and its sink.

    A pass of the stage stops between its units: a backward pass as soon as the gradients of a unit
    are final, a forward pass before it reads parameters of the next unit. It may end before the
    last unit: `forward` of a module cannot stop, so by the tape all of it runs with the first one,
    and the list goes on within it where values of a further unit are needed.

    parameters   of the module
    units        the numbers of its units in lists
    of_units, absent, unrepeated   sets of parameters for each unit: see `StageUnits` in
                                   step_list/runs.py
    """

    module: Module
    source: Source
    sink: Sink
    parameters: frozenset[Parameter]
    units: Sequence[int] = (0,)
    of_units: Sequence[frozenset[Parameter]] = (frozenset(),)
    absent: Sequence[frozenset[Parameter]] = ()
    unrepeated: Sequence[frozenset[Parameter]] = ()


def run_stage(stage: Stage, state: "PassState", micro: int, current: Pass) -> Tensor:
    """Runs the forward pass of a stage on a micro-batch; returns what its backward pass starts
    from."""
    return stage.sink.root(micro, forward(stage.module, state.input, current))


ENDED = object()
"""Stands for the end of a pass, in place of its next stop."""


class StagePass(Protocol):
    """A pass of a micro-batch through a stage, after its forward pass.

    root   the loss, or the outputs, from which its backward pass starts
    """

    @property
    def root(self) -> Tensor:
        """The loss, or the outputs."""

    def backward(self, seed: Array) -> Generator[None, None, None]:
        """Runs the backward pass; stops between units."""

    def first_half(self, seed: Array) -> Generator[None, None, None]:
        """Computes the gradients of the inputs that come from another stage; stops between
        units."""

    def second_half(self) -> Generator[None, None, None]:
        """Computes what is left; stops between units."""


class StagePasses(Protocol):
    """Runs the passes of stages."""

    def __call__(
        self, stage: Stage, state: "PassState", micro: int, current: Pass
    ) -> Generator[None, None, StagePass]:
        """Runs the forward pass of a micro-batch; stops between units."""

    def free(self) -> None:
        """Frees memory that passes keep between steps."""


class TapePass:
    """A pass by module and tape."""

    def __init__(self, stage: Stage, state: "PassState", root: Tensor) -> None:
        self._stage, self._state, self.root = stage, state, root
        self._rest: UnfinishedBackward | None = None

    def backward(self, seed: Array) -> Generator[None, None, None]:
        """Runs the backward pass; stops between units."""
        self._begin(seed)
        return self.second_half()

    def first_half(self, seed: Array) -> Generator[None, None, None]:
        """Computes the gradients of the inputs that come from another stage, without a stop."""
        leaves = needing_gradients(self._state.input)
        if leaves and self.root.requires_grad:
            self._rest = self.root.backward(seed, until=leaves)
        else:  # the input is data: all of the backward pass is left
            self._begin(seed)
        yield from ()

    def second_half(self) -> Generator[None, None, None]:
        """Computes what is left; stops between units."""
        rest, self._rest = self._rest, None
        if rest is None:  # the first stage has used none of its parameters
            return pauses(self._stage.units)
        kind = self._state.kind
        if kind is None or not kind.adds:
            self._check(rest.leaves())
        stage = self._stage
        return rest.in_parts(stage.of_units[::-1], stage.absent[::-1], stage.unrepeated[::-1])

    def _begin(self, seed: Array) -> None:
        root = self.root
        if root.requires_grad:
            self._rest = root.begun(seed) if isinstance(root, JoinedOutputs) else begun(root, seed)

    def _check(self, leaves: Iterable[Any]) -> None:
        """Refuses a leaf that is no parameter of the stage, once for the micro-batches of a step,
        or in each step of strategies whose steps overlap."""
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
    """Runs the forward pass of a micro-batch by module and tape, without a stop."""
    yield from ()
    return TapePass(stage, state, run_stage(stage, state, micro, current))


def pauses(units: Sequence[int]) -> Generator[None, None, None]:
    """Stops between units, with nothing to do in between."""
    for _ in units[1:]:
        yield


class TapePasses:
    """Runs stages by module and tape."""

    def __call__(
        self, stage: Stage, state: "PassState", micro: int, current: Pass
    ) -> Generator[None, None, StagePass]:
        return by_tape(stage, state, micro, current)

    def free(self) -> None:
        return


class BackwardKind(NamedTuple):
    """Facts on a backward pass that are known before it begins.

    adds       True if it adds to gradients that another micro-batch has computed in this step
    halves     True if it has two halves, I and W
    in_flight  how many micro-batches of its stage are kept for a backward pass at once
    """

    adds: bool
    halves: bool
    in_flight: int


def nothing() -> object:
    """Does nothing."""


class PassState:
    """The state of a micro-batch in a stage, between its forward and its backward pass.

    at_next_unit   called where a pass by the tape goes on with its next unit, while the values of
                   the unit in front are there
    """

    __slots__ = ("_digest", "at_next_unit", "input", "kind", "run", "stats")

    def __init__(self, x: Tensors, stats: BatchStats, kind: BackwardKind | None) -> None:
        self.input, self.stats, self.kind, self._digest = x, stats, kind, list[int]()
        self.at_next_unit: Callable[[], object] = nothing
        self.run: StagePass  # after the forward pass

    def release(self) -> None:
        """Forgets outputs that are sent, of which the backward pass needs only what vjps read."""
        if isinstance(root := self.run.root, JoinedOutputs):
            root.parts = ()

    def note(self, root: Tensor) -> None:
        """Notes a checksum of the output of a forward pass that will be recomputed."""
        self._digest = _digest(root)

    def compare(self, root: Tensor, stage: int) -> None:
        """Raises ValueError if the recomputed output differs from the one that was noted."""
        if self._digest and self._digest != _digest(root):
            raise ValueError(f"stage {stage}: {DIFFERS}")


def _digest(root: Tensor) -> list[int]:
    """Checksums of the output of a stage, or of its loss."""
    return [digest(t) for t in (root.parts if isinstance(root, JoinedOutputs) else (root,))]
