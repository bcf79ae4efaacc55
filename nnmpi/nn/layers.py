"""Layers without running statistics: linear, convolution, pooling, embedding, dropout."""

import math
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend, keyed
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.functional import as_tensor
from nnmpi.autograd.ops import conv, elementwise, linear
from nnmpi.autograd.ops.shape import axis_within
from nnmpi.autograd.recording import recording
from nnmpi.backend import Array
from nnmpi.kernels.conv import CONVOLUTIONS
from nnmpi.nn import init
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.passes import current_pass

CHANNELS_LAST = (2, 3, 1, 0)
"""Memory order (kh, kw, C, O) of a convolution's weight (O, C, kh, kw)."""


class Channels(NamedTuple):
    """Channels `start` to `stop` - 1 of `total`."""

    start: int
    stop: int
    total: int


ALL = Channels(0, 1, 1)


class Linear(Module):
    """y = x @ weight.T + bias; weight (out_features, in_features)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        _check("Linear", 0, in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter.drawn((out_features, in_features), init.fan_in(in_features))
        self.bias = Parameter.drawn((out_features,), init.fan_in(in_features)) if bias else None

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """x (..., in_features); `relu` applies ReLU in the same op."""
        return apply(linear.linear, x, self.weight, self.bias, relu=relu)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Conv2d(Module):
    """Convolution of images (N, C, H, W) by square kernels; weight (out, in, k, k)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        *,
        groups: int = 1,
        bias: bool = True,
        algorithm: str = "auto",
    ) -> None:
        if groups != 1:
            raise ValueError(f"Conv2d: groups={groups} is not supported, only 1")
        if algorithm not in CONVOLUTIONS:
            raise ValueError(
                f"Conv2d: algorithm {algorithm!r} is none of {', '.join(CONVOLUTIONS)}"
            )
        _check("Conv2d", 0, in_channels=in_channels, out_channels=out_channels, padding=padding)
        _check("Conv2d", 1, kernel_size=kernel_size, stride=stride)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.algorithm = algorithm
        fan = init.fan_in(in_channels * kernel_size**2)
        shape = (out_channels, in_channels, kernel_size, kernel_size)
        self.weight = Parameter.drawn(shape, fan, CHANNELS_LAST)
        self.bias = Parameter.drawn((out_channels,), fan) if bias else None

    def forward(self, x: Tensor, relu: bool = False, pool: bool = False) -> Tensor:
        """`relu` and `pool` apply ReLU and a 2x2 max-pool in the same op."""
        return apply(
            conv.conv2d,
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            relu=relu,
            pool=pool,
            algorithm=self.algorithm,
            keep=recording.get(),
        )

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}"
        )


class _Pool2d(Module):
    """The base of the poolings: a square window, its stride and padding."""

    def __init__(self, kernel_size: int, stride: int | None = None, padding: int = 0) -> None:
        self.kernel_size, self.padding = kernel_size, padding
        self.stride = kernel_size if stride is None else stride
        _check(type(self).__name__, 1, kernel_size=kernel_size, stride=self.stride)
        _check(type(self).__name__, 0, padding=padding)

    def _window(self) -> dict[str, int]:
        return {"kernel": self.kernel_size, "stride": self.stride, "padding": self.padding}

    def extra_repr(self) -> str:
        return f"{self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxPool2d(_Pool2d):
    """The maximum of each window."""

    def forward(self, x: Tensor) -> Tensor:
        return apply(conv.max_pool2d, as_tensor(x), **self._window())


class AvgPool2d(_Pool2d):
    """The mean of each window."""

    def forward(self, x: Tensor) -> Tensor:
        return apply(conv.avg_pool2d, as_tensor(x), **self._window())


class Embedding(Module):
    """Row i of the weight (num_embeddings, embedding_dim) for every integer i of the input."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        _check("Embedding", 0, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = Parameter.drawn((num_embeddings, embedding_dim), init.normal(1.0))

    def forward(self, index: Any) -> Tensor:
        """Integers of any shape, as an array or a tensor."""
        return self.weight[self.checked(index)]

    def checked(self, index: Any) -> Array:
        """The integers as an array where the weight is; raises ValueError if a row is missing."""
        if isinstance(index, Tensor):
            index = index.data
        elif not backend.is_array(index):
            index = np.asarray(index)
        if index.dtype.kind not in "iu":
            raise ValueError(f"Embedding: indices must be integers, not {index.dtype}")
        if isinstance(index, np.ndarray) and index.size:
            low, high = int(index.min()), int(index.max())
            if low < 0 or high >= self.num_embeddings:
                raise ValueError(
                    f"Embedding: indices from {low} to {high}, but there are "
                    f"{self.num_embeddings} rows: they must be 0 to {self.num_embeddings - 1}"
                )
        return backend.of(self.weight.operand).asarray(index)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


class Dropout(Module):
    """In training, elements become 0 with probability p; the others are divided by 1 - p.

    The mask depends on the seed, the step, the path of the layer and the global
    index of the sample, so it is the same in every layout of ranks. A layer that
    is used twice in one pass has the same mask twice; make two layers instead.

    `part`: the input has channels `start` to `stop` - 1 of so many, along `axis` of a sample.
    """

    def __init__(self, p: float = 0.5, *, part: Channels = ALL, axis: int = 0) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"Dropout: p={p} must be at least 0 and less than 1")
        self.p, self.part, self.axis = float(p), part, axis

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        if not self.training or self.p == 0:
            return x
        now = current_pass.get()
        assert now is not None, "Module.__call__ sets the pass"
        if now.samples is not None and len(now.samples) != x.shape[0]:
            raise ValueError(
                f"Dropout {self.path}: input of shape {x.shape} in a batch of {len(now.samples)}: "
                "the first axis must be that of the samples"
            )
        on = backend.of(x.data)
        key = keyed.key(self.root.seed, "dropout", now.step, self.path)
        rows = on.xp.arange(x.shape[0]) if now.samples is None else on.asarray(now.samples)
        index = self._indices(x.shape[1:], on.xp)
        kept = keyed.bits(key, index[None], rows[:, None]) >= int(self.p * 2**32)
        mask = kept.reshape(x.shape).astype(x.dtype) * (1 / (1 - self.p))
        return apply(elementwise.multiply, x, mask)

    def _indices(self, shape: tuple[int, ...], xp: Any) -> Array:
        """The C-order index in the whole sample of each element of a sample of this shape.

        Several elements in a row may be of one channel, as they are behind Flatten.
        """
        shape = shape or (1,)
        axis = axis_within(self.axis, len(shape))
        start, stop, total = self.part
        width, repeat = shape[axis], shape[axis] // (stop - start)
        outer, inner = (
            xp.arange(math.prod(lengths), dtype="uint32")
            for lengths in (shape[:axis], shape[axis + 1 :])
        )
        along = xp.arange(start * repeat, start * repeat + width, dtype="uint32")
        rows = outer[:, None] * (total * repeat) + along
        return (rows[..., None] * len(inner) + inner).reshape(-1)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Flatten(Module):
    """The axes start_dim to end_dim joined into one, in the order of logical NCHW."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        first, last = (axis_within(k, x.ndim) for k in (self.start_dim, self.end_dim))
        if first > last:
            raise ValueError(
                f"Flatten: start_dim={self.start_dim} comes after end_dim={self.end_dim} "
                f"in an input of shape {x.shape}"
            )
        size = math.prod(x.shape[first : last + 1])
        return x.reshape(*x.shape[:first], size, *x.shape[last + 1 :])

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


def _check(layer: str, least: int, **sizes: int) -> None:
    """Refuse sizes that are not integers (NumPy's included) or are too small."""
    for name, size in sizes.items():
        if not isinstance(size, int | np.integer) or size < least:
            raise ValueError(f"{layer}: {name}={size!r} must be an integer, at least {least}")
