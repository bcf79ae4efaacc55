"""LossScale: what losses are multiplied by, so that float16 holds small gradients.

    a gradient was not finite       scale / 2, and the step is skipped
    2,000 steps in a row were       scale * 2

The numbers are those of PyTorch's GradScaler. A value: ranks that agree on whether a step was
skipped have the same scale without a message.
"""

from typing import NamedTuple, Self

GROWTH_INTERVAL = 2000
"""After so many good steps the scale is doubled."""


class LossScale(NamedTuple):
    """The scale, and how many steps in a row were good; one that is not dynamic never changes."""

    scale: float = 1.0
    good_steps: int = 0
    is_dynamic: bool = False

    @classmethod
    def of(cls, dtype: str) -> Self | None:
        """The scale of the first step in 16 bits: 1 for bfloat16, with the range of float32."""
        return {"float16": cls(2.0**16, is_dynamic=True), "bfloat16": cls()}.get(dtype)

    def after(self, updated: bool) -> "LossScale":
        """The loss scale of the next step, after one that was updated, or skipped."""
        if not self.is_dynamic:
            return self
        if not updated:
            return LossScale(max(self.scale / 2, 2.0**-24), 0, True)
        if self.good_steps + 1 == GROWTH_INTERVAL:
            return LossScale(self.scale * 2, 0, True)
        return LossScale(self.scale, self.good_steps + 1, True)


class Scaler:
    """The loss scale of a run: the loss reads it in a step, the update changes it at its end."""

    def __init__(self, initial: LossScale) -> None:
        self.current = initial
