"""Layers under PyTorch's names as functions of JAX, in the forms that its compiler runs fastest.

Images are (N, H, W, C) and weights of convolutions (kh, kw, C, O): W1 takes 1.5 times as long with
(N, C, H, W). Arrays of a model are set from outside, and read while it is traced.
"""

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp

IMAGES = ("NHWC", "HWIO", "NHWC")


class Module:
    """A layer, or layers that are its attributes.

    order: the axes in memory of parameters, by their number of axes
    shapes: of the parameters in PyTorch
    sums: names of running statistics
    """

    order: ClassVar = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.sums: list[str] = []

    def modules(self) -> Iterator["Module"]:
        """This one and all below it, in PyTorch's order."""
        yield self
        for child in vars(self).values():
            if isinstance(child, Module):
                yield from child.modules()

    def parameters(self) -> list["Variable"]:
        return [Variable(m, name) for m in self.modules() for name in m.shapes]

    def buffers(self) -> list["Variable"]:
        """All running statistics."""
        return [Variable(m, name) for m in self.modules() for name in m.sums]

    def forward(self, x: Array) -> Array:
        raise NotImplementedError

    def __call__(self, x: Array) -> Array:
        return self.forward(x)


class Variable(NamedTuple):
    """An array of a module."""

    module: Module
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.module.shapes[self.name]

    def get(self) -> Array:
        found: Array = getattr(self.module, self.name)
        return found

    def set(self, value: Array) -> None:
        setattr(self.module, self.name, value)

    def in_memory(self, value: np.ndarray) -> Array:
        """Values of PyTorch's shape, with axes in this library's order."""
        return jnp.asarray(value.transpose(self.module.order[value.ndim]).copy())


class Sequential(Module):
    def __init__(self, *layers: Module) -> None:
        super().__init__()
        self.layers = layers
        vars(self).update({str(i): layer for i, layer in enumerate(layers)})

    def forward(self, x: Array) -> Array:
        for layer in self.layers:
            x = layer(x)
        return x


class Linear(Module):
    def __init__(self, k: int, o: int) -> None:
        super().__init__()
        self.shapes = {"weight": (o, k), "bias": (o,)}

    def forward(self, x: Array) -> Array:
        return x @ self.weight + self.bias


class Conv2d(Module):
    def __init__(
        self,
        c: int,
        o: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.shapes = {"weight": (o, c // groups, kernel, kernel)} | (
            {"bias": (o,)} if bias else {}
        )
        self.stride, self.padding, self.groups = stride, padding, groups

    def forward(self, x: Array) -> Array:
        y = self.depthwise(x) if self.groups > 1 else self.dense(x)
        return y + self.bias if "bias" in self.shapes else y

    def dense(self, x: Array) -> Array:
        """A convolution over all channels; of few of them, as one product of matrices."""
        c = x.shape[-1]
        if c < 8:
            columns = jnp.concatenate(self.taps(x), -1)
            return columns @ self.weight.reshape(columns.shape[-1], -1)
        strides, pads = (self.stride,) * 2, [(self.padding,) * 2] * 2
        return lax.conv_general_dilated(x, self.weight, strides, pads, dimension_numbers=IMAGES)

    def depthwise(self, x: Array) -> Array:
        """The sum of shifted images: feature_group_count takes several times as long."""
        pairs = zip(self.taps(x), self.weight.reshape(-1, x.shape[-1]), strict=True)
        return sum(pixels * weight for pixels, weight in pairs)

    def taps(self, x: Array) -> list[Array]:
        """The pixels below each element of the kernel, for all its places."""
        (_, h, w, _), (kh, kw, _, _) = x.shape, self.weight.shape
        p, s = self.padding, self.stride
        x = jnp.pad(x, ((0, 0), (p, p), (p, p), (0, 0)))
        return [
            x[:, i : i + h + 2 * p - kh + 1 : s, j : j + w + 2 * p - kw + 1 : s]
            for i in range(kh)
            for j in range(kw)
        ]


class ConvTranspose2d(Module):
    """A kernel of twice the stride: windows from one product of matrices, and sums of four each.

    lax.conv_general_dilated with lhs_dilation takes several times as long.
    """

    order: ClassVar = Module.order | {4: (0, 2, 3, 1)}

    def __init__(self, c: int, o: int, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        assert kernel == 2 * stride
        self.shapes = {"weight": (c, o, kernel, kernel), "bias": (o,)}
        self.stride, self.padding = stride, padding

    def forward(self, x: Array) -> Array:
        (n, h, w, c), o, s, p = x.shape, *self.bias.shape, self.stride, self.padding
        windows = (x.reshape(-1, c) @ self.weight.reshape(c, -1)).reshape(n, h, w, 2, s, 2, s, o)
        y = sum(
            jnp.pad(
                windows[:, :, :, a, :, b].transpose(0, 1, 3, 2, 4, 5),
                ((0, 0), (a, 1 - a), (0, 0), (b, 1 - b), (0, 0), (0, 0)),
            )
            for a in (0, 1)
            for b in (0, 1)
        )
        return y.reshape(n, (h + 1) * s, (w + 1) * s, o)[:, p:-p, p:-p] + self.bias


class MaxPool2d(Module):
    """The maximum over axes of windows: lax.reduce_window's gradient is several times slower."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Array) -> Array:
        n, h, w, c = x.shape
        s = self.size
        return x.reshape(n, h // s, s, w // s, s, c).max((2, 4))


class AdaptiveAvgPool2d(Module):
    """The mean over the image."""

    def __init__(self, size: int) -> None:
        super().__init__()
        assert size == 1

    def forward(self, x: Array) -> Array:
        return x.mean((1, 2), keepdims=True)


class Flatten(Module):
    """In PyTorch's order of features."""

    def forward(self, x: Array) -> Array:
        return x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)


class BatchNorm2d(Module):
    momentum = 0.1

    def __init__(self, c: int) -> None:
        super().__init__()
        self.shapes = {"weight": (c,), "bias": (c,)}
        self.sums = ["running_mean", "running_var"]
        self.running_mean, self.running_var = jnp.zeros(c), jnp.ones(c)

    def forward(self, x: Array) -> Array:
        mean, squares = (a.mean((0, 1, 2)) for a in (x, x * x))
        var = squares - mean * mean
        n = x.size / x.shape[-1]
        new, old = self.momentum, 1 - self.momentum
        self.running_mean = old * self.running_mean + new * mean
        self.running_var = old * self.running_var + new * n / (n - 1) * var
        return (x - mean) * (lax.rsqrt(var + 1e-5) * self.weight) + self.bias


class GroupNorm(Module):
    def __init__(self, groups: int, c: int) -> None:
        super().__init__()
        self.shapes = {"weight": (c,), "bias": (c,)}
        self.groups = groups

    def forward(self, x: Array) -> Array:
        c = x.shape[-1]
        channels = (a.mean((1, 2)) for a in (x, x * x))  # (N, C): fast, since C is contiguous
        mean, squares = (a.reshape(-1, self.groups, c // self.groups).mean(2) for a in channels)
        scale = lax.rsqrt(squares - mean * mean + 1e-5)
        mean, scale = (jnp.repeat(a, c // self.groups, 1)[:, None, None] for a in (mean, scale))
        return (x - mean) * (scale * self.weight) + self.bias


class ReLU(Module):
    def forward(self, x: Array) -> Array:
        return jax.nn.relu(x)


class SiLU(Module):
    def forward(self, x: Array) -> Array:
        return jax.nn.silu(x)


class GELU(Module):
    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.is_tanh = approximate == "tanh"

    def forward(self, x: Array) -> Array:
        return jax.nn.gelu(x, approximate=self.is_tanh)


class LayerNorm(Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.shapes = {"weight": (c,), "bias": (c,)}

    def forward(self, x: Array) -> Array:
        mean = x.mean(-1, keepdims=True)
        var = jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * (lax.rsqrt(var + 1e-5) * self.weight) + self.bias


class Embedding(Module):
    order: ClassVar = {2: (0, 1)}

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.shapes = {"weight": (words, width)}

    def forward(self, x: Array) -> Array:
        return self.weight[x]


class functional:  # noqa: N801  # the name of torch.nn's module
    @staticmethod
    def scaled_dot_product_attention(q: Array, k: Array, v: Array, is_causal: bool) -> Array:
        """Of (N, H, T, D); jax.nn.dot_product_attention takes (N, T, H, D)."""
        rows = (a.swapaxes(1, 2) for a in (q, k, v))
        return jax.nn.dot_product_attention(*rows, is_causal=is_causal).swapaxes(1, 2)
