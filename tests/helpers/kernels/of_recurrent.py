"""Arguments of the kernels of recurrent layers."""

from collections.abc import Callable
from typing import Any

import numpy as np
from helpers.kernels.numbers import Rng, numbers

from nnmpi.addons.recurrent import kernels as recurrent  # noqa: F401 - fills the table of kernels

CLOSE = 2e-6  # relative to the largest number: other polynomials

Draw = Callable[[Rng, Any], list[Any]]


def steps(gates: int, kinds: str) -> Draw:
    """Arrays of sequences: g of all gates side by side, s of a state; some are rows of larger ones,
    or parts of rows."""

    def draw(rng: Rng, dtype: Any) -> list[Any]:
        n, H = int(rng.choice([1, 3, 32])), int(rng.choice([1, 5, 16, 100]))

        def one(kind: str) -> np.ndarray:
            width = H * gates if kind == "g" else H
            whole = numbers(rng, (n + 2, width + int(rng.integers(2) * 7)), dtype)
            return whole[1 : n + 1, :width]

        return list(map(one, kinds))

    return draw


CASES: dict[str, tuple[Draw, float, bool]] = {
    "lstm_loop": (steps(4, "ggssss"), CLOSE, False),
    "lstm_gradient_loop": (steps(4, "ssgssg"), 0, False),
    "gru_loop": (steps(3, "ggsss"), CLOSE, False),
    "gru_gradient_loop": (steps(3, "sgssgg"), 0, False),
}
"""As in tests/kernels/test_table.py."""
