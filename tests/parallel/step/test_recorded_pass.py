"""Passes are recorded as lists of calls."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnmpi import nn
from nnmpi.arrays import meta
from nnmpi.autograd import Tensor
from nnmpi.nn.passes import LOCAL
from nnmpi.nn.record import KeyedPass
from nnmpi.parallel.step.recorded_pass import record


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
