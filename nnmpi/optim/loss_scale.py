"""LossScale: the factor by which losses are multiplied, so that float16 can hold small gradients.

    a gradient was not finite            scale / 2, and the step is skipped
    2,000 steps in a row were finite     scale * 2

The constants are those of PyTorch's GradScaler. A LossScale is immutable: ranks that agree on
whether a step was skipped compute the same next one without a message.
"""

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np

from nnmpi.nn.place import Place, StateArray

GROWTH_INTERVAL = 2000
"""The scale is doubled after this many good steps in a row."""

LOSS_SCALE = "loss scale"
"""The name of the loss scale among state arrays; no parameter can have this name."""

LARGEST = 2.0**127
"""The largest scale that a float32 loss can be multiplied by."""


class LossScale(NamedTuple):
    """The loss scale and the number of steps in a row without overflow. Both change from step to
    step only if `is_dynamic`, as for float16."""

    scale: float = 1.0
    good_steps: int = 0
    is_dynamic: bool = False

    @classmethod
    def of(cls, dtype: str) -> Self:
        """Returns the loss scale of the first step for a 16-bit dtype. For bfloat16, which has the
        range of float32, it is constantly 1."""
        return {"float16": cls(2.0**16, is_dynamic=True), "bfloat16": cls()}[dtype]

    def after(self, updated: bool) -> "LossScale":
        """Returns the loss scale of the next step; `updated` is False if this step was skipped."""
        if not self.is_dynamic:
            return self
        if not updated:
            return LossScale(max(self.scale / 2, 2.0**-24), 0, True)
        if self.good_steps + 1 == GROWTH_INTERVAL:
            return LossScale(self.scale * 2, 0, True)
        return LossScale(self.scale, self.good_steps + 1, True)


class Scaler:
    """Holds the loss scale of a run: the loss reads it, the update replaces it."""

    def __init__(self, initial: LossScale) -> None:
        self.current = initial

    def state_arrays(self) -> Iterator[StateArray]:
        """Yields the state `loss scale`: scale and number of good steps, unless constant."""
        if self.current.is_dynamic:
            place, rest = Place.of_whole(LOSS_SCALE, (2,)), (self._read, self._write)
            yield StateArray(place, (0,), 0, 2, "float64", True, *rest)

    def _read(self, lo: int, hi: int) -> np.ndarray:
        return np.array(self.current[:2], float)[lo:hi]

    def _write(self, values: np.ndarray) -> None:
        scale, good_steps = values.tolist()
        if not (0 < scale <= LARGEST and 0 <= good_steps < GROWTH_INTERVAL):
            raise ValueError(f"a loss scale of {scale} after {good_steps} good steps cannot be")
        self.current = LossScale(scale, int(good_steps), True)
