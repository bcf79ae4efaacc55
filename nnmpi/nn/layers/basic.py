"""Linear, embedding, dropout, flatten; and functions that check options of layers."""

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np

from nnmpi.arrays import backend, keyed
from nnmpi.arrays.backend import META, Array
from nnmpi.arrays.kernels.rows import dropout_mask_loop
from nnmpi.arrays.kernels.window import Size
from nnmpi.arrays.meta import is_meta
from nnmpi.arrays.meta.log import call_log, log_check
from nnmpi.autograd import Tensor, apply, array_of, as_tensor
from nnmpi.autograd.lookup import EmbeddingResult
from nnmpi.autograd.ops import elementwise, linear, lookup
from nnmpi.autograd.ops.shape import axis_within, flattened, reshape
from nnmpi.nn import initial
from nnmpi.nn.in_place import applied_by_layer
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Init, Parameter
from nnmpi.nn.passes import Pass, current_pass


def check_sizes(layer: str, least: int, **sizes: int) -> None:
    """Raises ValueError for sizes that are no integers, or below `least`."""
    for name, size in sizes.items():
        if not isinstance(size, int | np.integer) or size < least:
            raise ValueError(f"{layer}: {name}={size!r} must be an integer, at least {least}")


def check_choice(layer: str, name: str, value: str, known: Collection[str]) -> None:
    """Raises ValueError unless the value of the option `name` is one of `known`."""
    if value not in known:
        raise ValueError(f"{layer}: {name}={value!r} must be one of {', '.join(known)}")


def each_axis(layer: str, axes: int, least: int, **size: Size) -> tuple[int, ...]:
    """Returns the single option, such as kernel_size=3, as an integer for each axis; raises
    ValueError unless each is at least `least`."""
    ((name, given),) = size.items()
    sizes = tuple(given) if isinstance(given, Sequence) else (given,) * axes
    if len(sizes) != axes or any(not isinstance(n, int | np.integer) or n < least for n in sizes):
        several = f" or a tuple of {axes}" if axes > 1 else ""
        raise ValueError(f"{layer}: {name}={given!r} must be an integer{several}, at least {least}")
    return sizes


class ChannelRange(NamedTuple):
    """The channels `start` to `stop` - 1 of `total` that a rank has of a divided layer."""

    start: int
    stop: int
    total: int


ALL = ChannelRange(0, 1, 1)


class Linear(Module):
    """A linear layer y = x @ weight.T + bias with weight (out_features, in_features)."""

    last_axis = "channels"
    op = staticmethod(linear.linear)

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        check_sizes("Linear", 0, in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter.lazy((out_features, in_features), initial.fan_in(in_features))
        self.bias = Parameter.lazy((out_features,), initial.fan_in(in_features)) if bias else None

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """Computes the output for x (..., in_features); `relu` applies ReLU in the same op."""
        return apply(self.op, x, self.weight, self.bias, relu=relu)

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments of the layer's op, without those of fused layers."""
        return {}

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


class Embedding(Module):
    """A table of vectors: row i of the weight (num_embeddings, embedding_dim) for every integer i.

    Row `padding_idx` starts at zero and gets no gradient. Gradients are dense, also with `sparse`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> None:
        name = type(self).__name__
        if max_norm is not None or scale_grad_by_freq:
            raise ValueError(
                f"{name}: max_norm={max_norm}, scale_grad_by_freq={scale_grad_by_freq} are not "
                "supported: leave them out, and limit rows as you need, with F.normalize"
            )
        check_sizes(name, 0, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_row(padding_idx, num_embeddings)
        draw: Init = initial.normal(1.0)
        if self.padding_idx is not None:
            first = self.padding_idx * embedding_dim
            draw = initial.zero_within(draw, first, first + embedding_dim)
        self.weight = Parameter.lazy((num_embeddings, embedding_dim), draw)

    @classmethod
    def from_pretrained(
        cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None, **options: Any
    ) -> Self:
        """Returns an Embedding with a copy of `embeddings`, not trained if `freeze`."""
        table = as_tensor(embeddings).detach()
        if table.ndim != 2:
            raise ValueError(
                f"{cls.__name__}.from_pretrained: a table of shape {table.shape}: it must be "
                "(num_embeddings, embedding_dim)"
            )
        rows, columns = table.shape
        layer = cls(rows, columns, padding_idx=padding_idx, **options)
        layer.weight = Parameter(table.array, requires_grad=not freeze)
        return layer

    @staticmethod
    def multiply_adds(settings: Mapping[str, Any], sample: tuple[int, ...], elements: int) -> int:
        """Returns the operations of a forward pass for one sample, by which the cost of the layer
        is estimated. That of other layers depends on `settings` and an output `sample` too."""
        return elements

    def forward(self, index: Any) -> Tensor:
        """Returns the rows of the weight with the numbers `index`: one axis more."""
        index = self.checked(index)
        y = apply(lookup.embedding, self.weight, index=index, padding=self.padding_idx)
        on_host = isinstance(index, np.ndarray)  # on a device, a look for equal rows would wait
        return EmbeddingResult(y, index.copy()) if on_host else y

    def checked(self, index: Any) -> Array:
        """Returns `index` on the weight's device; raises ValueError if a row does not exist."""
        return row_numbers(index, self.num_embeddings, self.weight)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


def row_numbers(index: Any, rows: int, weight: Tensor) -> Array:
    """Returns `index` on the device of `weight`, if all are from 0 to rows - 1."""
    index = array_of(index)
    if index.dtype.kind not in "iu":
        raise ValueError(
            f"Embedding: indices must be integers, not {index.dtype}: use x.astype('int64')"
        )
    if is_meta(index):
        log_check(check_rows, index, rows)
    elif isinstance(index, np.ndarray):  # on a device the check would wait
        check_rows(index, rows)
    return backend.of(weight._array).asarray(index)


def check_rows(index: np.ndarray, rows: int) -> None:
    """Raises ValueError unless all integers in `index` are numbers of rows, 0 to rows - 1."""
    if not index.size:
        return
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= rows:
        raise ValueError(
            f"Embedding: indices from {low} to {high}, but there are {rows} rows: they must "
            f"be 0 to {rows - 1}"
        )


def padding_row(index: int | None, rows: int) -> int | None:
    """Returns the number of the row that `padding_idx` of an Embedding means; it may be negative,
    to count from the end. Raises ValueError if there is no such row."""
    if index is None:
        return None
    if not isinstance(index, int | np.integer) or not -rows <= index < rows:
        raise ValueError(
            f"Embedding: padding_idx={index!r} is not one of the {rows} rows: give an integer from "
            f"{-rows} to {rows - 1}"
        )
    return int(index) % rows


def check_probability(layer: str, name: str, p: float) -> None:
    """Raises ValueError unless p is at least 0 and less than 1."""
    if not 0 <= p < 1:
        raise ValueError(f"{layer}: {name}={p} must be at least 0 and less than 1")


def dropout_key(layer: Module, path: str, x: Array) -> tuple[keyed.Key, Array]:
    """Returns the key from which a layer draws its dropout masks in this forward pass (made of the
    seed, the step and `path`), and the row number of each sample of x in the data set."""
    current, on = current_pass.get() or Pass(layer.root.passes), backend.of(x)
    if current.samples is not None and len(current.samples) != len(x):
        raise ValueError(
            f"{type(layer).__name__} {layer.path}: input of shape {x.shape} in a batch of "
            f"{len(current.samples)}: the first axis must be the samples"
        )
    rows = on.xp.arange(len(x)) if current.samples is None else on.asarray(current.samples)
    return current.key(layer.root.seed, "dropout", path), rows


def dropout_mask(key: keyed.Key, rows: Array, index: Array, p: float, dtype: Any, xp: Any) -> Array:
    """Draws a dropout mask (samples, elements) from `key`: 0 with probability p, else 1 / (1 - p).

    rows: the row numbers of the samples in the data set
    index: the indices of the elements in a whole sample, C order
    """
    mask = xp.empty((len(rows), len(index)), dtype)
    dropout_mask_loop(index, rows, *key, int(p * 2**32), 1 / (1 - p), mask)
    return mask


class Dropout(Module):
    """Dropout: in training, elements become 0 with probability p, others are divided by 1 - p.

    The mask depends on the seed, the step, the path of the layer and the row number of the sample
    in the data set, so it is the same however work is divided among ranks. A layer that is used
    twice in one pass has the same mask twice; make two layers instead.

    If it is divided among ranks, `part` is the range of channels on this rank, along `axis`.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        check_probability(type(self).__name__, "p", p)
        self.p, self.inplace, self.part, self.axis = float(p), inplace, ALL, 0

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        if not self.training or self.p == 0:
            return x
        current = current_pass.get()
        if current is None:  # called without Module.__call__, which sets the pass
            y: Tensor = self(x)
            return y
        shape = self.mask_shape(x.shape)
        xp, key = backend.xp_of(x.array), dropout_key(self, self.path, x.array)
        index = self._indices(shape[1:], xp)
        mask = dropout_mask(*key, index, self.p, x.dtype, xp).reshape(shape)
        return applied_by_layer(lambda x: apply(elementwise.multiply, x, mask), x, self.inplace)

    def mask_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of the mask for an input of this shape."""
        return shape

    def _indices(self, shape: tuple[int, ...], xp: Any) -> Array:
        """Returns the index in the whole sample (C order) of each element of this rank's part.
        Several consecutive elements may belong to one channel, as they do after a Flatten."""
        shape = shape or (1,)
        if xp is META.xp and call_log.get() is None:  # the indices of a long sample are large
            return np.broadcast_to(np.uint32(0), prod(shape))
        index, _ = self.along(0, shape, xp)
        for axis in range(1, len(shape)):
            local, total = self.along(axis, shape, xp)
            index = (index[:, None] * total + local).reshape(-1)
        return index

    def along(self, axis: int, shape: tuple[int, ...], xp: Any) -> tuple[Array, int]:
        """Returns the indices in a whole sample of this rank's positions along an axis, and the
        length of that axis in the whole sample; `shape` is that of the sample on this rank."""
        length, (start, stop, total) = shape[axis], self.part
        if axis != axis_within(self.axis, len(shape)):
            return xp.arange(length, dtype="uint32"), length
        repeat = length // (stop - start)
        return xp.arange(start * repeat, start * repeat + length, dtype="uint32"), total * repeat

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Dropout2d(Dropout):
    """Dropout of whole channels of images (N, C, H, W)."""

    def mask_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) != 4:
            raise ValueError(f"Dropout2d: input of shape {shape}; it must be images (N, C, H, W)")
        return (*shape[:2], 1, 1)


class Flatten(Module):
    """Merges the axes start_dim to end_dim, in the order of NCHW."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        t, current = as_tensor(x), current_pass.get()
        shape = flattened(t.shape, self.start_dim, self.end_dim)
        # only a program that calls the layer itself may write to the result
        is_called = current is None or (current.samples is None and current.around is None)
        return t.reshape(shape) if is_called else apply(reshape, t, shape=shape)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class ChannelsFirst(Module):
    """Returns x (N, ..., C) as a view (N, C, ...), as losses take scores."""

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        return x.transpose((0, x.ndim - 1, *range(1, x.ndim - 1)))
