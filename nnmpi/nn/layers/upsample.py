"""Larger images."""

from collections.abc import Sequence
from typing import Any

from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.functional import as_tensor
from nnmpi.autograd.ops.resample import upsample2d
from nnmpi.kernels.window import Size
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
        given: Any = scale_factor if size is None else size
        both = tuple(given) if isinstance(given, Sequence) else (given, given)
        if (size is None) == (scale_factor is None) or len(both) != 2 or min(both) <= 0:
            raise ValueError(
                f"Upsample: size={size}, scale_factor={scale_factor}: give one of the two, as a "
                "number above 0 or (rows, columns)"
            )
        self.size: Any = None if size is None else both
        self.scale_factor: Any = both if size is None else None
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
