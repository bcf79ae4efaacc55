"""A backward pass of two units, beside a replay that computes all gradients with the first one."""

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pytest

from nnmpi import Tensor, nn
from nnmpi.nn.passes import LOCAL
from nnmpi.parallel.step.beside_tape import Compared
from nnmpi.parallel.step.recorded_wires import Notes
from nnmpi.parallel.step.replay import Replay
from nnmpi.parallel.step.stage import PassState, Stage, TapePass
from nnmpi.schedules.lists.step_list import BackwardKind

UNITS = 0, 1


class AtOnce(Replay):
    """As two graphs on a GPU, which are not cut: `spoilt` is the parameter with a wrong
    gradient."""

    outputs: Sequence[Any] = ()
    gradients: Sequence[Any] = ()

    def __init__(self, wanted: dict[Any, Any], spoilt: Any) -> None:
        self._wanted, self._spoilt = wanted, spoilt

    def _first(self, seeds: Sequence[Any]) -> Generator[None, None, None]:
        for p, gradient in self._wanted.items():
            p.grad = gradient + (p is self._spoilt)
        yield from ()

    def _second(self) -> Generator[None, None, None]:
        yield


@pytest.mark.parametrize("spoilt", [None, 0, 1])
def test_gradients_of_each_unit_are_compared(spoilt: int | None) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x, seed = Tensor(np.arange(6.0).reshape(2, 3).astype("float32")), np.float32(1.0)
    parameters = [*model.parameters()]
    model(x).sum().backward()
    wanted = {p: p.grad.copy() for p in parameters if p.grad is not None}
    for p in parameters:
        p.grad = None
    ends: Any = None  # nobody takes or sends anything
    halves = frozenset(parameters[:2]), frozenset(parameters[2:])
    stage = Stage(model, ends, ends, frozenset(parameters), UNITS, halves)
    state = PassState(x, LOCAL, BackwardKind(adds=False, halves=False, in_flight=1))
    on_tape = TapePass(stage, state, model(x).sum())
    replay = AtOnce(wanted, None if spoilt is None else parameters[2 * spoilt])
    ended = list[bool]()
    compared = Compared(on_tape, replay, state, stage, Notes(), ended.append)
    assert len([*compared.backward([np.asarray(seed)])]) == 1
    assert ended == [spoilt is None]
    for p in parameters:  # also where the replay is wrong
        np.testing.assert_array_equal(p.grad, wanted[p])
