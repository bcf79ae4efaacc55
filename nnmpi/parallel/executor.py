"""Worker: carries out the program of a step on one rank, whatever the parallelism.

F  forward      B  backward      REDUCE, UPDATE  given to an Exchange, which knows the ranks
"""

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import tensor
from nnmpi.backend import Backend
from nnmpi.data import Load, Loader
from nnmpi.data.loader import Cut
from nnmpi.kernels.progress_hook import breathing
from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import ALONE, Across, Pass, current_pass
from nnmpi.parallel.checks.slow_ranks import Beside, Clock, Delay
from nnmpi.schedules import Kind, Op, one_stage


class Task(NamedTuple):
    """What is trained, on what, and what it should do; `loss` sums over samples."""

    model: Module
    loss: Callable[[Tensor, Any], Tensor]
    on: Backend
    across: Across = ALONE

    def forward(self, x: np.ndarray, now: Pass) -> Tensor:
        """The scores of samples, with randomness keyed by the step and by each of them."""
        token = current_pass.set(now)
        try:
            scores: Tensor = self.model(tensor(x, on=self.on))
        finally:
            current_pass.reset(token)
        return scores


class Facts(NamedTuple):
    """What is known after a step: sums over the batch, and what came of them.

    All ranks know the same, but for the workers of a parameter server, which know their own.
    """

    loss: float
    stop: bool
    updated: bool  # or left out, since a number was not finite


def _nothing() -> None:
    """Nothing is under way yet."""


class Exchange(Protocol):
    """What ranks do together in a step."""

    def begin(self) -> None: ...
    def reduce(self, loss: Any, stop: bool) -> None: ...
    def ready(self, p: Parameter) -> None: ...
    def push(self) -> None: ...
    def update(self, lr: float) -> Facts: ...
    def close(self) -> None: ...


class Stepped(NamedTuple):
    """A step over so many samples: the sum of their losses, and what all ranks agreed on."""

    step: int  # counts the steps, this one included
    samples: int
    loss: float
    stop: bool
    updated: bool


class Wishes(NamedTuple):
    """What the trainer wants of each step."""

    rate: Callable[[int], float]  # the learning rate of a step
    stop: Callable[[], bool]  # whether to end after it
    steps: int  # how many there are in the run


def refuse(leaf: Tensor) -> NoReturn:
    """A gradient has come for what is no parameter of the model."""
    raise ValueError(
        f"the model uses a tensor of shape {leaf.shape} that wants a gradient and is none of its "
        "parameters, so it would be neither trained nor saved: make it an attribute of a module, "
        "as nn.Parameter"
    )


Program: TypeAlias = Callable[[int], list[Op]]
"""What a step of so many micro-batches consists of."""


class Worker:
    """Carries out the steps of one rank, whatever ranks do together in them."""

    def __init__(
        self,
        task: Task,
        exchange: Exchange,
        cut: Cut,
        wishes: Wishes,
        delay: Delay,
        program: Program = one_stage,
    ) -> None:
        self._clock = Clock()
        self._task = task._replace(across=Beside.of(task.across, self._clock))
        self._exchange, self._wishes, self._delay = exchange, wishes, delay
        self._leave = self._clock.beside(exchange.reduce)
        self._ready, self._known = self._clock.beside(exchange.ready), {*task.model.parameters()}
        self._push = self._clock.beside(exchange.push)
        self.cut, self._program = cut, program
        self._do: dict[Kind, Callable[[int], None]] = {
            Kind.F: self._forward,
            Kind.B: self._backward,
            Kind.REDUCE: self._reduce,
            Kind.UPDATE: self._update,
        }
        self.step = 0

    def steps(self, loader: Loader, epoch: int) -> Generator[Stepped, None, None]:
        """The steps of an epoch; close the generator to stop early."""
        with closing(loader.loads(epoch, self.cut)) as loads:
            for load in loads:
                yield self.run(load)

    def run(self, load: Load) -> Stepped:
        """One step."""
        self._load = load
        self._live: dict[int, Tensor] = {}
        self._loss: Any = 0.0
        self._on_leaf: Callable[[Parameter], None] | None = None
        self._breath: Callable[[], None] = _nothing
        self._exchange.begin()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._clock.begin()
            for op in self._program(len(load.micro)):
                self._do[op.kind](op.micro)
        self.step += 1
        return Stepped(self.step, len(load.rows), *self._facts)

    def _forward(self, m: int) -> None:
        batch = self._load.micro[m]
        now = Pass(self.step, batch.samples, self._task.across)
        loss = self._task.loss(self._task.forward(batch.x, now), batch.y)
        self._live[m] = loss
        self._loss = self._loss + loss.data

    def _backward(self, m: int) -> None:
        loss = self._live.pop(m)
        xp = backend.xp_of(loss.data)
        seed = xp.full(loss.shape, 1 / len(self._load.rows), loss.dtype)
        with breathing(self._breath):
            loss.backward(seed, on_leaf=self._on_leaf)

    def _reduce(self, _: int) -> None:
        self._leave(self._loss, self._wishes.stop())
        self._loss = 0.0
        self._on_leaf, self._breath = self._final, self._push

    def _final(self, p: Parameter) -> None:
        if p not in self._known:
            refuse(p)
        self._ready(p)

    def _update(self, _: int) -> None:
        self._delay.wait(self.step, self._clock.seconds())
        self._facts: Facts = self._exchange.update(self._wishes.rate(self.step))

    def close(self) -> None:
        """Gives back what was shared; every rank calls it."""
        self._exchange.close()
