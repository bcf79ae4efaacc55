"""Layers of sequences (N, T, C): N samples of T positions, each with C channels."""

from typing import Any

from nnmpi.arrays import backend
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.autograd.ops import rotary
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


def check_base(layer: str, name: str, base: float) -> None:
    """Raises ValueError unless powers of the base of rotary positions are angles."""
    if isinstance(base, bool) or not base > 0:
        raise ValueError(f"{layer}: {name}={base} must be a number above 0, such as 10,000")


def check_even(layer: str, D: int) -> None:
    """Raises ValueError unless the channels of a head are pairs."""
    if D % 2:
        raise ValueError(f"{layer}: rotary positions turn pairs of channels, and a head has {D}")


class RotaryPositionalEmbeddings(Module):
    """x (N, T, H, D) with pairs of channels of each head turned by angles that grow with the
    position, so that products of queries and keys depend on the difference of their positions.

    Pair i is channels 2 i and 2 i + 1, as in the paper and in torchtune; without `interleaved` it
    is i and i + D / 2, as in `transformers`. Its angle at position t is t base^(-2 i / D).

    dim: the channels D of a head; max_seq_len: how many positions there are
    """

    def __init__(
        self, dim: int, max_seq_len: int = 4096, base: float = 10_000, interleaved: bool = True
    ) -> None:
        name = "RotaryPositionalEmbeddings"
        check_sizes(name, 1, dim=dim, max_seq_len=max_seq_len)
        check_even(name, dim)
        check_base(name, "base", base)
        self.dim, self.max_seq_len, self.base = dim, max_seq_len, base
        self.interleaved = bool(interleaved)

    def forward(self, x: Tensor, *, input_pos: Any = None) -> Tensor:
        """`input_pos`: the positions (T,) or (N, T), 0 to T - 1 by default."""
        x = as_tensor(x)
        if x.ndim != 4 or x.shape[1] > self.max_seq_len or x.shape[3] != self.dim:
            raise ValueError(
                f"RotaryPositionalEmbeddings {self.path}: input of shape {x.shape}; it takes (N, "
                f"T, H, {self.dim}) of at most {self.max_seq_len} positions"
            )
        at = input_pos
        if at is not None:
            at = as_tensor(at, backend.of(x.operand)).data
            if at.dtype.kind not in "iu" or at.shape not in (x.shape[1:2], x.shape[:2]):
                raise ValueError(
                    f"RotaryPositionalEmbeddings {self.path}: input_pos of shape {at.shape} and "
                    f"type {at.dtype} for an input {x.shape}: give integers, (T,) or (N, T)"
                )
        options = {"positions": at, "interleaved": self.interleaved}
        return apply(rotary.rotary, x, base=self.base, **options)

    def extra_repr(self) -> str:
        return f"{self.dim}, {self.max_seq_len}, base={self.base}, interleaved={self.interleaved}"


class ChannelsFirst(Module):
    """x (N, ..., C) as (N, C, ...), a view: scores of positions as losses of classes take them."""

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        return x.transpose((0, x.ndim - 1, *range(1, x.ndim - 1)))
