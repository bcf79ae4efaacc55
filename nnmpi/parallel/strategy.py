"""What the trainer and the strategies know of each other."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from nnmpi.data import Loader
from nnmpi.mesh import Mesh
from nnmpi.nn.parameter import Parameter
from nnmpi.optim import Optimizer
from nnmpi.parallel.executor import Stepped, Task, Wishes

Tell: TypeAlias = Callable[[dict[str, Any]], None]


class Job(NamedTuple):
    """What is to be trained, before anything of it is shared among ranks."""

    task: Task
    parameters: Sequence[Parameter]  # those that are trained, in the order in which they are used
    optimizer: Callable[[Sequence[Parameter]], Optimizer]
    wishes: Wishes
    tell: Tell  # takes an event
    twin: "Job | None" = None  # the same job again, its model made anew: for --verify


class AgreedError(ArithmeticError):
    """What ends a run on all ranks alike, with the same words, between the same two steps."""


class Memory(NamedTuple):
    """Bytes that a rank adds to those of its node."""

    gradients: int
    optimizer: int


class Strategy(Protocol):
    """What the trainer knows of a layout."""

    mesh: Mesh
    optimizer: Optimizer

    def steps(self, loader: Loader, epoch: int) -> Generator[Stepped, None, None]:
        """The steps of an epoch; close the generator to stop early."""

    def share(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        """Which rows of a test batch this rank evaluates."""

    def total(self, sums: np.ndarray) -> None:
        """Sums over the ranks what each has found in its share, in place."""

    def describe(self) -> dict[str, Any]:
        """What it tells of itself before the first step."""

    def outcome(self) -> dict[str, Any]:
        """What it tells of itself at the end."""

    def close(self) -> None:
        """Gives back what was shared; every rank calls it."""
