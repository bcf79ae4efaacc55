"""PyTorch's older names of `nnmpi.amp`, without the first argument, the type of the device."""

from functools import partial
from typing import Any

from nnmpi import amp

GradScaler = partial(amp.GradScaler, "cuda")


class autocast(amp.autocast):  # noqa: N801 - PyTorch's name
    """A context or decorator that changes nothing: layers compute in the type of their weights."""

    def __init__(
        self, enabled: bool = True, dtype: Any = None, cache_enabled: bool | None = None
    ) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)
