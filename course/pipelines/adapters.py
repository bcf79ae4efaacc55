"""Pipelines: the only file that you fill. README.md says what is asked and how it is graded.

Op(kind, micro, stage): Kind.F, the forward pass, or Kind.B, the backward pass, of a micro-batch.
An op has these three as attributes: `op.kind is Kind.F`, `op.micro`, `op.stage`.
"""

from typing import Any

import numpy as np

from nnmpi.comm import Comm
from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.pipeline import Schedule

# ---- schedules as values


def gpipe(p: int, m: int) -> list[list[Op]]:
    """The passes of each of p ranks for m micro-batches: all forward, then all backward.

    Rank r has stage r. Backward passes begin with the last micro-batch: F0 F1 F2 B2 B1 B0.
    """
    raise NotImplementedError


def one_f_one_b(p: int, m: int) -> list[list[Op]]:
    """The passes of each of p ranks for m micro-batches by 1F1B, for every m, also below p.

    Rank r begins with p - 1 - r forward passes (or m, if that is less); then one forward and one
    backward pass in turn, as long as forward passes are left; then the backward passes left.
    """
    raise NotImplementedError


SCHEDULE = Schedule("mine", lambda p, m, v: one_f_one_b(p, m), lambda p, m, v: None, "")
"""For `nnmpi simulate pipeline` and `nnmpi train`. Leave it as it is."""


# ---- what they cost


def bubble(p: int, m: int) -> float:
    """The bubble of both schedules: the idle time of all ranks over their time of computation.

    All forward passes take the same time, and all backward passes; messages take none.
    """
    raise NotImplementedError


def held(schedule: str, p: int, m: int, r: int) -> int:
    """The most micro-batches whose activations rank r of p holds at once, by "gpipe" or "1f1b".

    A micro-batch is held from its forward pass until its backward pass has ended.
    """
    raise NotImplementedError


# ---- running one


def run(
    comm: Comm, passes: list[Op], stage: Any, inputs: list[np.ndarray], targets: list[np.ndarray]
) -> None:
    """Runs the passes of this rank, in their order, for one training step of the whole pipeline.

    inputs, targets   of each micro-batch i, of shape (n_i, d); n_i may differ. Rank 0 computes with
                      the inputs and the last rank with the targets; the shapes hold everywhere:
                      all activations and gradients between stages have the shape of inputs[i]
    stage.forward(x)          returns y, of the shape of x
    stage.backward(x, y, gy)  returns the gradient of x, given that of y, and adds the gradient of
                              the stage's weights to its sum

    The loss is the sum over all rows of |y - target|^2 / 2, divided by the number n_0 + n_1 + ...
    of rows in the whole step; its gradient in micro-batch i is (y - target) / that number.
    """
    raise NotImplementedError
