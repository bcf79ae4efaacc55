"""PyTorch's older names of `nnmpi.amp`, without the argument for the type of the device."""

from functools import partial
from typing import Any

from nnmpi.addons import finder
from nnmpi.addons.torchlike import amp

__path__ = [finder.ENTRY]

GradScaler = partial(amp.GradScaler, "cuda")
custom_fwd = partial(amp.custom_fwd, device_type="cuda")
custom_bwd = partial(amp.custom_bwd, device_type="cuda")


class autocast(amp.autocast):  # noqa: N801 - PyTorch's name
    """`nnmpi.autocast` for the GPU."""

    def __init__(
        self, enabled: bool = True, dtype: Any = None, cache_enabled: bool | None = None
    ) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)
