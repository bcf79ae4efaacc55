"""PyTorch's `amp`: contexts and scalers of mixed precision, which change nothing.

Layers compute in the type of their weights, and losses are not scaled. To compute in 16 bits,
convert the model by `model.to("bfloat16")`, or give a Trainer the option `dtype`.
"""

from collections.abc import Mapping
from contextlib import ContextDecorator
from typing import Any, Self

from nnmpi.optim.optimizer import Optimizer
from nnmpi.options.notes import note


class autocast(ContextDecorator):  # noqa: N801 - PyTorch's name
    """A context or decorator that changes nothing: layers compute in the type of their weights."""

    def __init__(
        self,
        device_type: str = "cuda",
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        self.device, self.fast_dtype, self._enabled = device_type, dtype, enabled
        if enabled:
            note(
                "autocast changes nothing: layers compute in the type of their weights; "
                'model.to("bfloat16"), or Config(dtype="bfloat16") of a Trainer, computes in 16 '
                "bits"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Does nothing."""


class GradScaler:
    """A loss scaler whose scale is always 1, since gradients in float32 and bfloat16 need none.

    A Trainer with Config(dtype="float16") scales its losses itself.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._enabled = enabled
        if enabled:
            note("GradScaler changes nothing: the scale is 1, and no step is left out")

    def scale(self, outputs: Any) -> Any:
        """Returns the loss as it is."""
        return outputs

    def unscale_(self, optimizer: Optimizer) -> None:
        """Does nothing: gradients have no scale."""

    def step(self, optimizer: Optimizer, *args: Any, **options: Any) -> Any:
        """Calls the step of the optimizer."""
        return optimizer.step(*args, **options)

    def update(self, new_scale: float | None = None) -> None:
        """Does nothing: the scale stays 1."""

    def get_scale(self) -> float:
        """Returns 1."""
        return 1.0

    def is_enabled(self) -> bool:
        """Returns the argument `enabled` of the scaler."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Returns {"scale": 1.0}, or {} if the scaler is not enabled."""
        return {"scale": 1.0} if self._enabled else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Does nothing: the scale stays 1."""
