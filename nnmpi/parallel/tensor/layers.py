"""Layers whose channels are divided among the ranks of a Comm: ordinary modules.

x whole on all ranks ──► Column ──► some channels a rank ──► Row ──► y whole on all ranks
                                     (ReLU, BatchNorm, pooling, Dropout: local)

One all-reduce serves two layers: in Row on the way forward, in Column on the way back. Arguments
are PyTorch's, with the whole sizes; each rank draws, saves and updates its part of the weight. On
a Comm of one rank they are the ordinary layers.
"""

from typing import Any, Self

from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.recording import recording
from nnmpi.comm import Comm
from nnmpi.nn import Conv2d, Embedding, Linear, Module
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.tensor import ops, products
from nnmpi.parallel.tensor.parts import copy_of, divided, own, part_of
from nnmpi.parallel.tensor.sums import Bounds


class _Sharded(Module):
    """The base of all: which part this is."""

    comm: Comm
    bounds: Bounds
    weight: Parameter

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank {self.comm.rank} of {self.comm.size}"


class _Column(_Sharded):
    """Weight and bias are those of some outputs."""

    bias: Parameter | None

    def _take(self, layer: Linear | Conv2d) -> Self:
        """Take this rank's part of the parameters of a layer of the same sizes."""
        self.weight = part_of(layer.weight, 0, self.bounds, self.comm)
        self.bias = part_of(layer.bias, 0, self.bounds, self.comm)
        return self


class _Row(_Sharded):
    """The weight is that of some inputs; the bias is whole."""

    bias: Parameter | None

    def _take(self, layer: Linear | Conv2d) -> Self:
        """Take this rank's part of the parameters of a layer of the same sizes."""
        self.weight = part_of(layer.weight, 1, self.bounds, self.comm)
        self.bias = copy_of(layer.bias)
        return self


class ColumnLinear(_Column, Linear):
    """Linear of which each rank computes some outputs: weight (some of out_features, in_features).

    The input is whole on all ranks. The output is sharded, with `bounds`; with `gather_output`
    it is whole.
    """

    fuses_as = Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        comm: Comm,
        bias: bool = True,
        *,
        gather_output: bool = False,
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.comm, self.gather_output = comm, gather_output
        self.bounds = divided(out_features, comm, f"ColumnLinear with {out_features} outputs")
        self._take(self)

    @classmethod
    def of(cls, layer: Linear, comm: Comm, gather_output: bool) -> Self:
        """The sharded form of a layer, with its values."""
        bias = layer.bias is not None
        new = cls(layer.in_features, layer.out_features, comm, bias, gather_output=gather_output)
        return new._take(layer)

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """x (..., in_features); `relu` applies ReLU in the same op."""
        y = apply(products.column_linear, x, self.weight, self.bias, comm=self.comm, relu=relu)
        return ops.gather(y, self.comm, self.bounds, -1) if self.gather_output else y


class RowLinear(_Row, Linear):
    """Linear of which each rank has some inputs: weight (out_features, some of in_features).

    The input is sharded, with `bounds`; the output is whole. The bias is a copy on each rank, and
    is added after the sum.
    """

    fuses_as = Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        comm: Comm,
        bias: bool = True,
        *,
        bounds: Bounds | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.comm = comm
        self.bounds = bounds or divided(in_features, comm, f"RowLinear with {in_features} inputs")
        _check(self.bounds, in_features, comm, "RowLinear")
        self._take(self)

    @classmethod
    def of(cls, layer: Linear, comm: Comm, bounds: Bounds) -> Self:
        """The sharded form of a layer, with its values."""
        bias = layer.bias is not None
        return cls(layer.in_features, layer.out_features, comm, bias, bounds=bounds)._take(layer)

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """x (..., some of in_features); `relu` applies ReLU in the same op."""
        return apply(products.row_linear, x, self.weight, self.bias, comm=self.comm, relu=relu)


class ColumnConv2d(_Column, Conv2d):
    """Conv2d of which each rank computes some output channels.

    The input is whole on all ranks. The output is sharded, with `bounds`; with `gather_output`
    it is whole.
    """

    fuses_as = Conv2d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        comm: Comm,
        stride: int = 1,
        padding: int = 0,
        *,
        bias: bool = True,
        algorithm: str = "auto",
        gather_output: bool = False,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            bias=bias,
            algorithm=algorithm,
        )
        self.comm, self.gather_output = comm, gather_output
        self.bounds = divided(out_channels, comm, f"ColumnConv2d with {out_channels} outputs")
        self._take(self)

    @classmethod
    def of(cls, layer: Conv2d, comm: Comm, gather_output: bool) -> Self:
        """The sharded form of a layer, with its values."""
        bias, algorithm = layer.bias is not None, layer.algorithm
        sizes = _sizes(layer, comm)
        new = cls(*sizes, bias=bias, algorithm=algorithm, gather_output=gather_output)
        return new._take(layer)

    def forward(self, x: Tensor, relu: bool = False, pool: bool = False) -> Tensor:
        """`relu` and `pool` apply ReLU and a 2x2 max-pool in the same op."""
        y = apply(
            products.column_conv2d,
            x,
            self.weight,
            self.bias,
            comm=self.comm,
            relu=relu,
            pool=pool,
            **_options(self),
        )
        return ops.gather(y, self.comm, self.bounds, 1) if self.gather_output else y


class RowConv2d(_Row, Conv2d):
    """Conv2d of which each rank has some input channels.

    The input is sharded, with `bounds`; the output is whole. The bias is a copy on each rank, and
    is added after the sum. ReLU and pooling come after the sum too, so they are not fused.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        comm: Comm,
        stride: int = 1,
        padding: int = 0,
        *,
        bias: bool = True,
        algorithm: str = "auto",
        bounds: Bounds | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            bias=bias,
            algorithm=algorithm,
        )
        self.comm = comm
        self.bounds = bounds or divided(in_channels, comm, f"RowConv2d with {in_channels} inputs")
        _check(self.bounds, in_channels, comm, "RowConv2d")
        self._take(self)

    @classmethod
    def of(cls, layer: Conv2d, comm: Comm, bounds: Bounds) -> Self:
        """The sharded form of a layer, with its values."""
        bias, algorithm = layer.bias is not None, layer.algorithm
        new = cls(*_sizes(layer, comm), bias=bias, algorithm=algorithm, bounds=bounds)
        return new._take(layer)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return apply(
            products.row_conv2d, x, self.weight, self.bias, comm=self.comm, **_options(self)
        )


class ShardedEmbedding(_Sharded, Embedding):
    """Embedding of which each rank has some rows; indices and output are whole on all ranks."""

    def __init__(self, num_embeddings: int, embedding_dim: int, comm: Comm) -> None:
        super().__init__(num_embeddings, embedding_dim)
        self.comm = comm
        self.bounds = divided(num_embeddings, comm, f"Embedding with {num_embeddings} rows")
        self._take(self)

    @classmethod
    def of(cls, layer: Embedding, comm: Comm) -> Self:
        """The sharded form of a layer, with its values."""
        return cls(layer.num_embeddings, layer.embedding_dim, comm)._take(layer)

    def _take(self, layer: Embedding) -> Self:
        """Take this rank's part of the weight of a layer of the same sizes."""
        self.weight = part_of(layer.weight, 0, self.bounds, self.comm)
        return self

    def forward(self, index: Any) -> Tensor:
        """Integers of any shape, as an array or a tensor."""
        index, (start, _) = self.checked(index), own(self.bounds, self.comm)
        return apply(products.sharded_lookup, self.weight, index=index, start=start, comm=self.comm)


def _sizes(layer: Conv2d, comm: Comm) -> tuple[int, int, int, Comm, int, int]:
    """The positional arguments of the sharded form of a convolution."""
    return (
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        comm,
        layer.stride,
        layer.padding,
    )


def _options(layer: Conv2d) -> dict[str, Any]:
    """The options of the op for a convolution."""
    return {
        "stride": layer.stride,
        "padding": layer.padding,
        "algorithm": layer.algorithm,
        "keep": recording.get(),
    }


def _check(bounds: Bounds, channels: int, comm: Comm, layer: str) -> None:
    if len(bounds) != comm.size + 1 or (bounds[0], bounds[-1]) != (0, channels):
        raise ValueError(
            f"{layer}: bounds {bounds} for {channels} channels on {comm.size} ranks: they must be "
            f"{comm.size + 1} numbers from 0 to {channels}"
        )
