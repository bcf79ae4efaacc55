"""Models for pipelines whose layer 3 fails in the second step: `--model faulty:build`.

NNMPI_TEST_FAULT says how and where: "raises forward", "leaves backward", "killed wait", ...
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

import nnmpi
from nnmpi import nn
from nnmpi.arrays.kernels import Result
from nnmpi.autograd.tensor import apply
from nnmpi.nn.passes import current_pass

STEP = 1  # counted from 0


def raises() -> NoReturn:
    raise ValueError("no more of this")


def leaves() -> NoReturn:
    sys.exit(0)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


HOW: dict[str, Callable[[], None]] = {"raises": raises, "leaves": leaves, "killed": killed}


class Fails(nn.Module):
    """Ends its rank in a forward pass, in a backward pass, or while it waits for a message."""

    def __init__(self, how: Callable[[], None], where: str) -> None:
        self.inner, self.how, self.where = nn.Linear(20, 20), how, where

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        now = current_pass.get()
        y: nnmpi.Tensor = self.inner(x)
        if not self.training or now is None or now.samples is None or now.step != STEP:
            return y
        if self.where == "forward":
            self.how()
        if self.where == "wait":
            signal.signal(signal.SIGALRM, lambda number, frame: self.how())
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        return apply(self._copy, y) if self.where == "backward" else y

    def _copy(self, a: np.ndarray) -> Result:
        def vjp(g: Any, out: Any) -> Any:
            self.how()
            return g

        return Result(a.copy(), (vjp,))


class Late(nn.Module):
    """Lets the next stage wait, after a micro-batch of that step."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.calls = seconds, 0

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        now = current_pass.get()
        if self.training and now is not None and now.samples is not None and now.step == STEP:
            self.calls += 1
            time.sleep(self.seconds if self.calls > 1 else 0)
        return x


def model(fault: str) -> nn.Sequential:
    """Cut it at 3 and 5: the layer that fails is in the middle one of three stages."""
    how, where = fault.split()
    late = Late(2.0 if where == "wait" else 0.0)
    failing = Fails(HOW[how], where)
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 20), late),
        *(failing, nn.Tanh()),
        *(nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 10)),
    )


def build() -> nn.Sequential:
    return model(os.environ["NNMPI_TEST_FAULT"])
