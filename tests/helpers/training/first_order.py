"""How far the first loss of training in 16 bits is from that of float64, to first order.

A run in 16 bits rounds what it stores: parameters, and the value of each op. So a number y becomes
y (1 + d), |d| <= u, the unit roundoff, and the loss changes by d y dL/dy. One step in float64, from
the same samples, has each dL/dy in its backward pass. Roundings are independent and as often up as
down, so with d spread evenly the change has a standard deviation of at most

    s = u / sqrt(3) * sqrt(sum of (y dL/dy)^2)     over all numbers of the model that are stored

and is held to SIGMAS of it. Layers run one op at a time, so that no value is left out; views of
others count again. Sums and the loss are in float32, whose rounding is small beside this.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from helpers.kernels.halves import UNIT
from helpers.training.pipelined import Heard, Options, digits

from nnmpi import Config, Tensor, Trainer, nn
from nnmpi.autograd.recording import TapeNode
from nnmpi.comm import comm_self
from nnmpi.nn.parameter import Parameter

SIGMAS = 5


class Effects:
    """The squares of y dL/dy, added up, of parameters and of values that are made in the model."""

    def __init__(self) -> None:
        self.squares, self.in_model = 0.0, False

    def add(self, y: Any, g: Any) -> None:
        self.squares += float(np.square(y * g).sum())


@contextmanager
def counted() -> Iterator[Effects]:
    """Within it backward passes count the effects of values and of parameters."""
    found, init, receive = Effects(), TapeNode.__init__, Parameter.receive

    def made(
        node: TapeNode, y: Any, parents: Any, needs: Any, vjps: Any, prepare: Any = None
    ) -> None:
        if not found.in_model:
            init(node, y, parents, needs, vjps, prepare)
            return
        value = y._array

        def noted(g: Any, needs: Any) -> Any:
            found.add(value, g)
            return g if prepare is None else prepare(g, needs)

        init(node, y, parents, needs, vjps, noted)

    def received(p: Parameter, vjp: Any, g: Any) -> None:
        def noted(g: Any, out: Any) -> Any:
            new = vjp(g, out)
            found.add(p.array, new)
            return new

        receive(p, noted, g)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TapeNode, "__init__", made)
        patch.setattr(Parameter, "receive", received)
        yield found


def first_loss(options: Options, rounded_to: str = "", effects: Effects | None = None) -> float:
    """The loss of the first step on one rank; with effects of ops one by one, from samples that are
    rounded."""
    others = dict(options)
    build, given, heard = others.pop("build", None), others.pop("given", digits)(), Heard()

    def begin(_: nn.Module, x: tuple[Any, ...]) -> tuple[Any, ...]:
        effects.in_model = True
        return tuple(
            Tensor(t.array.astype(rounded_to).astype(t.dtype)) if t.dtype.kind == "f" else t
            for t in x
        )

    def end(*_: Any) -> None:
        effects.in_model = False

    with Trainer(Config(**others, steps=1), build, given, comm_self()) as trainer:
        if effects is not None:
            for module in trainer.model.modules():
                module.register_forward_hook(lambda *_: None)
            trainer.model.register_forward_pre_hook(begin)
            trainer.model.register_forward_hook(end)
        trainer.fit(heard)
    return heard.losses[0]


def error_and_bound(dtype: str, options: Options) -> tuple[float, float]:
    """How far the first loss of a run in 16 bits is from that of float64, and may be."""
    with counted() as found:
        exact = first_loss({**options, "dtype": "float64"}, dtype, found)
    got = first_loss({**options, "dtype": dtype})
    return abs(got - exact), SIGMAS * UNIT[dtype] * (found.squares / 3) ** 0.5
