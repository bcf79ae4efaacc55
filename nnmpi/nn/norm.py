"""Normalisation layers and their running statistics."""

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.functional import as_tensor
from nnmpi.autograd.ops import norm
from nnmpi.nn import init
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import LOCAL, BatchStats, current_pass
from nnmpi.nn.place import Place


class _BatchNorm(Module):
    """Normalises each channel to mean 0 and variance 1 over the batch, then scales and shifts.

    Training uses the statistics of the batch, over all ranks that hold a part of it (see
    `BatchStats`), and updates the running statistics. Evaluation uses the running statistics.

    `part`: only channels `start` to `stop` - 1 of `num_features` are here.
    """

    ndim = 0

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        *,
        part: tuple[int, int] | None = None,
    ) -> None:
        self.num_features, self.eps, self.momentum = num_features, float(eps), float(momentum)
        one, zero = init.constant(1.0), init.constant(0.0)
        place = Place("", (num_features,), (part or (0, num_features),))
        self.weight = Parameter.drawn(place, one) if affine else None
        self.bias = Parameter.drawn(place, zero) if affine else None
        self.register_buffer("running_mean", np.zeros(place.local_shape, np.float32), place)
        self.register_buffer("running_var", np.ones(place.local_shape, np.float32), place)
        self.register_buffer("num_batches_tracked", np.zeros((), np.int64))

    running_mean: backend.Array
    running_var: backend.Array
    num_batches_tracked: backend.Array

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        (channels,) = self.running_mean.shape
        if x.ndim != self.ndim or x.shape[1] != channels:
            axes = "(N, C)" if self.ndim == 2 else "(N, C, H, W)"
            raise ValueError(
                f"{type(self).__name__}: input of shape {x.shape}; "
                f"it must be {axes} with C = {channels}"
            )
        now = current_pass.get()
        stats = LOCAL if now is None else now.batch_stats
        return self.normalised(x, self.weight, self.bias, stats)

    def normalised(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, batch_stats: BatchStats
    ) -> Tensor:
        """x normalised, then scaled and shifted, with statistics over what `batch_stats` joins."""
        if not self.training:
            mean, var, n = self.running_mean, self.running_var, 0
        else:
            stats = batch_stats.moments(norm.moments(x.data), self._track)
            self._refuse_one(stats)  # `_track` refuses it too, but may be called later
            mean, var, n = stats.mean, stats.m2 / stats.n, stats.n
        return apply(
            norm.batch_norm,
            x,
            weight,
            bias,
            mean=mean,
            var=var,
            n=n,
            eps=self.eps,
            total=batch_stats.sum,
        )

    def _refuse_one(self, stats: norm.Moments) -> None:
        if stats.n < 2:
            raise ValueError(
                f"{type(self).__name__}: one number per channel has no variance; "
                "train on more than one sample"
            )

    def _track(self, stats: norm.Moments) -> None:
        """Update the running statistics; the variance is the unbiased one, as in PyTorch."""
        self._refuse_one(stats)
        for running, now in (
            (self.running_mean, stats.mean),
            (self.running_var, stats.m2 / (stats.n - 1)),
        ):
            running *= 1 - self.momentum
            running += self.momentum * now
        self.num_batches_tracked += 1

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C)."""

    ndim = 2


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, C, H, W)."""

    ndim = 4


def over_rows(model: Module) -> list[str]:
    """The class names of the layers that see one value per channel and sample: BatchNorm1d."""
    return [type(m).__name__ for m in model.modules() if isinstance(m, _BatchNorm) and m.ndim == 2]


class LayerNorm(Module):
    """Normalises each sample to mean 0, variance 1 over its last axes, then scales and shifts."""

    def __init__(self, normalized_shape: int | tuple[int, ...], eps: float = 1e-5) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape, self.eps = tuple(shape), float(eps)
        self.weight = Parameter.drawn(self.normalized_shape, init.constant(1.0))
        self.bias = Parameter.drawn(self.normalized_shape, init.constant(0.0))

    def forward(self, x: Tensor) -> Tensor:
        k = len(self.normalized_shape)
        if x.shape[x.ndim - k :] != self.normalized_shape:
            raise ValueError(
                f"LayerNorm: input of shape {x.shape}; it must end in {self.normalized_shape}"
            )
        return apply(norm.layer_norm, x, self.weight, self.bias, axes=k, eps=self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}"
