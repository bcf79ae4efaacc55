"""Larger images."""

import math
from collections.abc import Sequence
from typing import Any

from nnmpi.arrays.kernels.window import Size
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.autograd.ops.resample import upsample2d
from nnmpi.nn.layers.sizes import each_axis
from nnmpi.nn.module import Module

MODES = ("nearest", "nearest-exact", "bilinear")


class Upsample(Module):
    """Images (N, C, H, W) in another size, or `scale_factor` times as large.

    `mode`: "nearest", "nearest-exact", or "bilinear" between pixels; with `align_corners` those at
    the corners keep their values. Of a scale, pixels are as far apart as it says, or with
    `recompute_scale_factor` as the sizes are.
    """

    def __init__(
        self,
        size: Size | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        if mode not in MODES or (mode != "bilinear" and align_corners is not None):
            raise ValueError(
                f"Upsample: mode={mode!r}, align_corners={align_corners}: mode is one of "
                f"{', '.join(MODES)}, and only bilinear has align_corners"
            )
        given: Any = scale_factor
        if given is not None and not isinstance(given, Sequence):
            given = (given, given)
        is_factor = given is not None and len(given) == 2 and all(0 < f < math.inf for f in given)
        if (size is None) == (given is None) or (size is None and not is_factor):
            raise ValueError(
                f"Upsample: size={size}, scale_factor={scale_factor}: give one of the two, as a "
                "number above 0 or (rows, columns)"
            )
        self.size: Any = None if size is None else each_axis("Upsample", 2, 1, size=size)
        self.scale_factor: Any = None if given is None else tuple(given)
        self.mode, self.align_corners = mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        return apply(
            upsample2d,
            as_tensor(x),
            size=self.size,
            scales=self.scale_factor,
            mode=self.mode,
            align_corners=bool(self.align_corners),
            recompute_scale_factor=bool(self.recompute_scale_factor),
        )

    def extra_repr(self) -> str:
        which = "size" if self.size else "scale_factor"
        return f"{which}={getattr(self, which)}, mode={self.mode!r}"
