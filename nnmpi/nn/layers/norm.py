"""Normalisation layers: BatchNorm with its running statistics, GroupNorm, LayerNorm and others."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels.norm import track_loop
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.autograd.ops import activations, norm
from nnmpi.nn import initial
from nnmpi.nn.layers.basic import check_sizes
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import LOCAL, BatchStats, current_pass


def _scale_and_shift(
    shape: tuple[int, ...], scales: bool, shifts: bool
) -> tuple[Parameter | None, Parameter | None]:
    """Returns (weight, bias) of a normalisation: ones and zeros, or None."""
    drawn = Parameter.lazy
    weight = drawn(shape, initial.constant(1.0)) if scales else None
    return weight, drawn(shape, initial.constant(0.0)) if shifts else None


class _BatchNorm(Module):
    """Normalises each channel to mean 0 and variance 1 over the batch, then scales and shifts it.

    Training uses the statistics of the batch over all ranks that have a part of it (see
    `BatchStats`), and updates the running statistics: they move towards the new ones by the
    fraction `momentum`, or with momentum=None become the mean over all batches. Evaluation uses the
    running statistics, or the statistics of the batch if `track_running_stats` is False.
    """

    shapes: ClassVar[dict[int, str]]  # shapes of inputs, by the number of axes

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        check_sizes(type(self).__name__, 0, num_features=num_features)
        self.num_features, self.eps = num_features, float(eps)
        self.channels = num_features  # on this rank
        self.momentum = None if momentum is None else float(momentum)
        self.track_running_stats = track_running_stats
        self.weight, self.bias = _scale_and_shift((num_features,), affine, affine)
        if track_running_stats:
            self.register_buffer("running_mean", np.zeros(num_features, np.float32))
            self.register_buffer("running_var", np.ones(num_features, np.float32))
            self.register_buffer("num_batches_tracked", np.zeros((), np.int64))

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        x = as_tensor(x)
        if x.ndim not in self.shapes or x.shape[1] != self.channels:
            raise ValueError(
                f"{type(self).__name__}: input of shape {x.shape}; "
                f"it must be {' or '.join(self.shapes.values())} with C = {self.channels}"
            )
        current = current_pass.get()
        stats = LOCAL if current is None else current.batch_stats
        return self.normalised(x, stats, relu)

    def normalised(self, x: Tensor, batch_stats: BatchStats, relu: bool) -> Tensor:
        """Returns x normalised, scaled and shifted. In training, `batch_stats` combines the moments
        of this rank's samples with those of other ranks; `relu` applies ReLU in the same op."""
        if not self.training and self.track_running_stats:
            mean, var, n = self.running_mean._array, self.running_var._array, 0
        else:
            n, mean, var = self._moments(x.array, batch_stats)
        options = {"mean": mean, "var": var, "n": n, "eps": self.eps, "parts": n or 1, "relu": relu}
        parameters = self.weight, self.bias
        return apply(norm.batch_norm, x, *parameters, total=batch_stats.sum, **options)

    def _moments(self, x: Array, batch_stats: BatchStats) -> norm.Moments:
        if batch_stats is LOCAL and self.track_running_stats:  # then one kernel does both
            self._refuse_one(x.size // max(self.channels, 1))
            return norm.moments(x, self._running())
        stats = batch_stats.moments(norm.moments(x), self._track)
        self._refuse_one(stats.n)  # `_track` refuses it too, but may be called later
        return stats

    def _refuse_one(self, n: int) -> None:
        if n < 2:
            raise ValueError(
                f"{type(self).__name__}: one number per channel has no variance; "
                "train on more than one sample"
            )

    def _track(self, stats: norm.Moments) -> None:
        """Updates running mean and variance; the variance is unbiased, as in PyTorch."""
        self._refuse_one(stats.n)
        if self.track_running_stats:
            *running, share = self._running()
            track_loop(*running, stats.mean, stats.m2, stats.n, share)

    def _running(self) -> Sequence[Any]:
        """Returns the arrays of the running statistics, and by what share they move."""
        share: Any = self.momentum
        if share is None:  # the mean over all batches
            share = (1 / (self.num_batches_tracked._array + 1)).astype(self.running_mean.dtype)
        running = self.running_mean, self.running_var, self.num_batches_tracked
        return *(t._array for t in running), share

    def extra_repr(self) -> str:
        untracked = "" if self.track_running_stats else ", track_running_stats=False"
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}{untracked}"


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C) or (N, C, L)."""

    shapes: ClassVar = {2: "(N, C)", 3: "(N, C, L)"}


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, C, H, W)."""

    shapes: ClassVar = {4: "(N, C, H, W)"}


def row_norm_names(model: Module) -> list[str]:
    """Returns the class names of the model's batch norms that accept inputs (N, C). They fail for a
    batch of one sample, as a single value per channel has no variance."""
    norms = (m for m in model.modules() if isinstance(m, _BatchNorm))
    return [type(m).__name__ for m in norms if 2 in m.shapes]


def refuse_untracked(model: Module) -> None:
    """Raises ValueError if the model has a batch norm without running statistics: its scores in
    evaluation would depend on the other samples of the batch."""
    for path, m in model.named_modules():
        if isinstance(m, _BatchNorm) and not m.track_running_stats:
            raise ValueError(
                f"{path} ({type(m).__name__}) has track_running_stats=False, so that scores of "
                "the test set would depend on the samples beside them and on the layout: leave "
                "the option out, or use GroupNorm"
            )


class GroupNorm(Module):
    """Normalises each sample over each group of channels, then scales and shifts each channel."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        check_sizes("GroupNorm", 1, num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: {num_channels} channels cannot be divided into {num_groups} equal "
                "groups; num_groups must divide num_channels"
            )
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, float(eps)
        self.channels = num_channels  # on this rank, in whole groups
        self.weight, self.bias = _scale_and_shift((num_channels,), affine, affine)

    def forward(self, x: Tensor, silu: bool = False) -> Tensor:
        x = as_tensor(x)
        if x.ndim < 2 or x.shape[1] != self.channels:
            raise ValueError(
                f"GroupNorm: input of shape {x.shape}; it must be (N, C, ...) with "
                f"C = {self.channels}"
            )
        groups = self.num_groups * self.channels // self.num_channels
        # SiLU's slope is computed from its value, which has too few digits in 16 bits
        is_one_op = silu and not types_of(x.dtype).is_mixed
        options = {"groups": groups, "eps": self.eps, "silu": is_one_op}
        y = apply(norm.group_norm, x, self.weight, self.bias, **options)
        return y if is_one_op or not silu else apply(activations.silu, y)

    def extra_repr(self) -> str:
        affine = self.weight is not None
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={affine}"


class InstanceNorm2d(GroupNorm):
    """Normalises each channel of each image (N, C, H, W), then scales and shifts it if `affine`.

    There are no running statistics, so `momentum` changes nothing.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
    ) -> None:
        if track_running_stats:
            raise ValueError(
                "InstanceNorm2d: track_running_stats=True would use other statistics in "
                "evaluation than in training: leave it out, or use BatchNorm2d"
            )
        super().__init__(num_features, num_features, eps, affine)
        self.num_features, self.momentum = num_features, momentum

    def forward(self, x: Tensor, silu: bool = False) -> Tensor:
        x = as_tensor(x)
        if x.ndim != 4 or (self.training and x.shape[2] * x.shape[3] == 1):
            raise ValueError(
                f"InstanceNorm2d: input of shape {x.shape}; it must be (N, C, H, W), and have more "
                "than one pixel in training, since one pixel has no variance"
            )
        return super().forward(x, silu)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, affine={self.weight is not None}"


class _OverLastAxes(Module):
    """The base of layers that normalise each sample over its last axes."""

    eps: float | None
    weight: Parameter | None
    normalized_shape: tuple[int, ...]

    def _take(self, normalized_shape: int | Sequence[int]) -> None:
        """Checks and stores `normalized_shape`, the lengths of the last axes."""
        shape = normalized_shape if isinstance(normalized_shape, Sequence) else [normalized_shape]
        for n in shape:
            check_sizes(type(self).__name__, 0, normalized_shape=n)
        self.normalized_shape = tuple(int(n) for n in shape)

    def extra_repr(self) -> str:
        affine = "" if self.weight is not None else ", elementwise_affine=False"
        return f"{self.normalized_shape}, eps={self.eps}{affine}"


class LayerNorm(_OverLastAxes):
    """Normalises each sample over its last axes, then scales and shifts it."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        self._take(normalized_shape)
        self.eps: float = float(eps)
        scales, shifts = elementwise_affine, elementwise_affine and bias
        self.weight, self.bias = _scale_and_shift(self.normalized_shape, scales, shifts)

    def forward(self, x: Tensor) -> Tensor:
        options = {"shape": self.normalized_shape, "eps": self.eps}
        return apply(norm.layer_norm, as_tensor(x), self.weight, self.bias, **options)


class RMSNorm(_OverLastAxes):
    """Divides each sample by its root mean square over the last axes: x / sqrt(mean(x^2) + eps) *
    weight.

    The default of `eps` is the machine epsilon of the accumulation type, as in PyTorch.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        self._take(normalized_shape)
        self.eps = None if eps is None else float(eps)
        self.weight, _ = _scale_and_shift(self.normalized_shape, elementwise_affine, False)

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        eps = float(np.finfo(types_of(x.dtype).sums).eps) if self.eps is None else self.eps
        return apply(norm.rms_norm, x, self.weight, shape=self.normalized_shape, eps=eps)
