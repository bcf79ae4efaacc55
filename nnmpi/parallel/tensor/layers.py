"""Layers whose channels are divided among the ranks of a Comm: ordinary modules.

x whole on all ranks ──► Column ──► some channels a rank ──► Row ──► y whole on all ranks
                                     (ReLU, BatchNorm, pooling, Dropout: local)

One all-reduce serves two layers: in Row on the way forward, in Column on the way back. Arguments
are PyTorch's, with the whole sizes; each rank draws, saves and updates its part of the weight. On
a Comm of one rank they are the ordinary layers.
"""

from typing import Any

from nnmpi.autograd import Tensor, apply
from nnmpi.comm import Comm
from nnmpi.nn import Embedding, Linear, Module
from nnmpi.nn.parameter import Parameter
from nnmpi.parallel.tensor import ops, products
from nnmpi.parallel.tensor.parts import divided, own, part_of
from nnmpi.parallel.tensor.sums import Bounds


class Sharded(Module):
    """The base of all sharded layers: which part this is."""

    comm: Comm
    bounds: Bounds
    weight: Parameter

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank {self.comm.rank} of {self.comm.size}"


class Column(Sharded):
    """Weight and bias are those of some outputs."""

    bias: Parameter | None

    def _take(self) -> None:
        """Keep this rank's part of the parameters."""
        self.weight = part_of(self.weight, 0, self.bounds, self.comm)
        self.bias = part_of(self.bias, 0, self.bounds, self.comm)


class Row(Sharded):
    """The weight is that of some inputs; the bias is whole."""

    bias: Parameter | None

    def _take(self) -> None:
        """Keep this rank's part of the weight."""
        self.weight = part_of(self.weight, 1, self.bounds, self.comm)


class ColumnLinear(Column, Linear):
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
        self.bounds = divided(out_features, comm.size, f"ColumnLinear with {out_features} outputs")
        self._take()

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """x (..., in_features); `relu` applies ReLU in the same op."""
        y = apply(products.column_linear, x, self.weight, self.bias, comm=self.comm, relu=relu)
        return ops.gather(y, self.comm, self.bounds, -1) if self.gather_output else y


class RowLinear(Row, Linear):
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
        self.bounds = bounds or divided(
            in_features, comm.size, f"RowLinear with {in_features} inputs"
        )
        check_bounds(self.bounds, in_features, comm, "RowLinear")
        self._take()

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """x (..., some of in_features); `relu` applies ReLU in the same op."""
        return apply(products.row_linear, x, self.weight, self.bias, comm=self.comm, relu=relu)


class ShardedEmbedding(Sharded, Embedding):
    """Embedding of which each rank has some rows; indices and output are whole on all ranks."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, comm: Comm, padding_idx: int | None = None
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        self.comm = comm
        self.bounds = divided(num_embeddings, comm.size, f"Embedding with {num_embeddings} rows")
        self._take()

    def _take(self) -> None:
        """Keep this rank's part of the parameters."""
        self.weight = part_of(self.weight, 0, self.bounds, self.comm)

    def forward(self, index: Any) -> Tensor:
        """Integers of any shape, as an array or a tensor."""
        return apply(
            products.sharded_lookup,
            self.weight,
            index=self.checked(index),
            start=own(self.bounds, self.comm)[0],
            padding=self.padding_idx,
            comm=self.comm,
        )


def check_bounds(bounds: Bounds, channels: int, comm: Comm, layer: str) -> None:
    """Raises ValueError unless the bounds cut so many channels into a part for each rank."""
    if len(bounds) != comm.size + 1 or (bounds[0], bounds[-1]) != (0, channels):
        raise ValueError(
            f"{layer}: bounds {bounds} for {channels} channels on {comm.size} ranks: they must be "
            f"{comm.size + 1} numbers from 0 to {channels}"
        )
