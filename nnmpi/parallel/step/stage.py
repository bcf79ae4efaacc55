"""Stages, parts of the model that a rank runs as a whole, and their passes by autograd."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.autograd import Tensor
from nnmpi.autograd.recording import TapeNode, recording
from nnmpi.autograd.tape import UnfinishedBackward, begun
from nnmpi.data.inputs import parts
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import BatchStats, Pass, current_pass
from nnmpi.nn.recompute import DIFFERS, digest
from nnmpi.parallel.step.ports import Sink, Source, Tensors
from nnmpi.schedules.lists.step_list import BackwardKind

if TYPE_CHECKING:
    from nnmpi.parallel.stores.unit_values import UnitValues


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


class Stage(NamedTuple):
    """A part of the model that a rank runs, with its source and its sink; `units`, `of_units`,
    `absent` and `unrepeated` are the fields of its StageUnits.

    A pass stops between units: a backward pass as soon as the gradients of a unit are final, a
    forward pass before it reads parameters of the next unit. But `forward` of a module cannot stop,
    so with autograd the whole forward pass runs as if it were the first unit; a further unit asks
    for its values when they are read (ZeRO 3), and `values` answers."""

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
        """Returns a context for a pass that cannot stop: follow() replays a unit before the next
        one asks for its values."""
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
        if isinstance(self._root, JoinedOutputs):
            self._root.parts = self.outputs = ()

    def backward(self, seeds: Sequence[Array | None]) -> Generator[None, None, None]:
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
    """Runs the forward pass of a micro-batch in a stage by autograd, without stops."""
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
        """Raises ValueError if outputs of a recomputed pass differ from those of `note`."""
        if self._digests and self._digests != [*map(digest, outputs)]:
            raise ValueError(f"stage {stage}: {DIFFERS}")
