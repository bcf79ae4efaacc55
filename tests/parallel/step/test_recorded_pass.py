"""Passes are recorded as lists of calls."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from nnmpi import nn
from nnmpi.arrays import meta
from nnmpi.autograd import Tensor
from nnmpi.nn.passes import LOCAL
from nnmpi.nn.record import KeyedPass
from nnmpi.parallel.step.recorded_pass import PlannedPass, record
from nnmpi.parallel.step.replay import Memory
from nnmpi.parallel.step.stage import joined


def test_a_check_of_computed_values_is_not_moved_before_them() -> None:
    """Checks come first in a list, so that nothing was done if one fails."""
    table, index = nn.Embedding(6, 2), np.arange(4)

    def sum_of(rows: Callable[[Any], Any]) -> Any:
        def forward(arrays: Sequence[Any]) -> tuple[Sequence[Tensor], Tensor]:
            return [], table(rows(arrays[0])).sum()

        current = KeyedPass.of(index, None, LOCAL, meta.like)
        return record([table], forward, [index], current, adds=False, halves=False)

    assert "a check of computed values" in sum_of(lambda tokens: tokens + 1).unfit
    assert sum_of(lambda tokens: tokens).calls[0].is_check


@pytest.mark.parametrize("halves", [True, False])
def test_an_input_that_a_stage_does_not_use_gets_zeros(halves: bool) -> None:
    """The previous stage waits for its gradient, as for those of the others."""
    layer, index = nn.Linear(3, 4), np.arange(2)
    inputs = [np.full((2, 3), fill, np.float32) for fill in (1.0, 2.0)]

    def forward(arrays: Sequence[Any]) -> tuple[Sequence[Tensor], Tensor]:
        used, unused = (Tensor(array, requires_grad=True) for array in arrays)
        return [used, unused], joined(layer(used))

    current = KeyedPass.of(index, None, LOCAL, meta.like)
    recorded = record([layer], forward, inputs, current, adds=False, halves=halves)
    replay = Memory().acquire(PlannedPass(recorded))
    assert [*replay.forward([*inputs, index], 0, LOCAL)] == []
    replay.gradients[1][...] = 7.0  # what an earlier micro-batch has left there
    seeds = [np.ones((2, 4), np.float32)]
    assert [*(replay.first_half if halves else replay.backward)(seeds)] == []
    np.testing.assert_allclose(replay.gradients[0], seeds[0] @ layer.weight.numpy(), rtol=1e-6)
    assert not replay.gradients[1].any()
