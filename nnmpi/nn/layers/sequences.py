"""Layers of sequences (N, T, C): N samples of T positions, each with C channels."""

from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import as_tensor
from nnmpi.nn import init
from nnmpi.nn.decoding import past
from nnmpi.nn.layers.sizes import check_sizes
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter


class PositionalEmbedding(Module):
    """x + weight[:T]: a row of the weight (num_positions, embedding_dim) for each position.

    While decoding, positions are counted from those before.
    """

    def __init__(self, num_positions: int, embedding_dim: int) -> None:
        check_sizes("PositionalEmbedding", 1, num_positions=num_positions)
        check_sizes("PositionalEmbedding", 0, embedding_dim=embedding_dim)
        self.num_positions, self.embedding_dim = num_positions, embedding_dim
        self.weight = Parameter.drawn((num_positions, embedding_dim), init.normal(1.0))

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        before = past.get()
        start = 0 if before is None else before.length
        stop = start + x.shape[1] if x.ndim == 3 else 0
        if x.ndim != 3 or stop > self.num_positions:
            raise ValueError(
                f"PositionalEmbedding {self.path}: input of shape {x.shape}; it takes (N, T, "
                f"{self.embedding_dim}) of at most {self.num_positions} positions"
            )
        return x + self.weight[start:stop]

    def extra_repr(self) -> str:
        return f"{self.num_positions}, {self.embedding_dim}"


class ChannelsFirst(Module):
    """x (N, ..., C) as (N, C, ...), a view: scores of positions as losses of classes take them."""

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        return x.transpose(0, x.ndim - 1, *range(1, x.ndim - 1))
