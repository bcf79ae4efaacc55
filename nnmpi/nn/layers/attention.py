"""Attention: each position of a sequence takes a weighted mean of what others offer."""

from functools import partial

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels.attention import KeepOf, Tile
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.autograd.ops import attention
from nnmpi.nn.layers.basic import ALL, check_probability, check_sizes, dropout_key, dropout_mask
from nnmpi.nn.layers.sequences import check_base, check_even, past
from nnmpi.nn.module import Module


def keep_of(layer: Module, p: float, like: Array, T: int, S: int, first: int = 0) -> KeepOf:
    """Dropout of blocks of probabilities, by where in all of a sample, (heads, T, S), they are.

    like: an array of all samples here, of their type; first: the number of the first head here
    """
    xp = backend.xp_of(like)
    key, samples = dropout_key(layer, layer.path, like)

    def keep(queries: Array, keys: Array, tile: Tile) -> Array:
        last = first + tile.heads.stop
        kind = "uint32" if last * T * S <= 1 << 32 else "int64"  # kernels take uint32
        h = xp.arange(first + tile.heads.start, last, dtype=kind)
        i, j = (a.astype(kind, copy=False) for a in (queries[tile.queries], keys[tile.keys]))
        index = ((h[:, None, None] * T + i[:, None]) * S + j).reshape(-1)
        mask = dropout_mask(key, samples[tile.samples], index, p, like)
        return mask.reshape(len(mask), len(h), 1, len(i), len(j))

    return lambda queries, keys: partial(keep, queries, keys)


def everywhere(like: Array, T: int, S: int) -> tuple[Array, Array]:
    """The positions of T queries and of S keys, where these are all that there are."""
    xp = backend.xp_of(like)
    return xp.arange(T, dtype="uint32"), xp.arange(S, dtype="uint32")


class SelfAttention(Module):
    """softmax(q k^T / sqrt(D)) v of x (N, T, H 3 D), the query, key and value of each head of a
    position side by side; the output is (N, T, H D).

    `is_causal`: a position looks at itself and at those before it. In training, weights become 0
    with probability `dropout`, and the others are divided by 1 - dropout. `rotary`: the base of
    rotary positions, mostly 10,000, with which queries and keys are turned first, channel 2 i with
    2 i + 1 as by RotaryPositionalEmbeddings; None: they are not.

    Sharding sets `num_heads`, and `part`: the channels of the output that are here.
    """

    def __init__(
        self,
        num_heads: int,
        is_causal: bool = False,
        dropout: float = 0.0,
        rotary: float | None = None,
    ) -> None:
        check_sizes("SelfAttention", 1, num_heads=num_heads)
        self.num_heads, self.is_causal, self.part = num_heads, bool(is_causal), ALL
        check_probability("SelfAttention", "dropout", dropout)
        if rotary is not None:
            check_base("SelfAttention", "rotary", rotary)
        self.dropout, self.rotary = float(dropout), rotary

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        if x.ndim != 3 or x.shape[2] % (3 * self.num_heads):
            raise ValueError(
                f"SelfAttention {self.path}: input of shape {x.shape}; it takes (N, T, "
                f"{self.num_heads} heads x 3 x size): the queries, keys and values of each head"
            )
        N, T, width = x.shape
        qkv = x.reshape(N, T, self.num_heads, 3, width // (3 * self.num_heads))
        return self.attended(qkv).reshape(N, T, width // 3)

    def attended(self, qkv: Tensor) -> Tensor:
        """The output (N, T, H, D) of queries, keys and values (N, T, H, 3, D)."""
        T, keep = qkv.shape[1], None
        if (before := past.get()) is not None:
            qkv = self.turned(qkv, before.places(qkv.data))
            return Tensor(before.attend(self, qkv.data, self.is_causal))
        if self.drops:
            keep = self.keep_of(qkv.data, T)(*everywhere(qkv.data, T, T))
        options = {"scale": qkv.shape[-1] ** -0.5, "causal": self.is_causal, "keep": keep}
        return apply(attention.self_attention, self.turned(qkv), **options)

    def turned(self, qkv: Tensor, positions: Array | None = None) -> Tensor:
        """Queries and keys at these positions, 0 to T - 1 by default, with rotary positions."""
        if self.rotary is None:
            return qkv
        check_even("SelfAttention", qkv.shape[-1])
        return apply(attention.rotary, qkv, base=self.rotary, positions=positions, parts=2)

    @property
    def drops(self) -> bool:
        """Whether some weights become 0."""
        return self.training and self.dropout > 0

    def keep_of(self, x: Array, T: int) -> KeepOf:
        """Dropout in this pass, where all samples have T positions; x (N, ..., D)."""
        return keep_of(self, self.dropout, x, T, T, self.part.start // x.shape[-1])

    def extra_repr(self) -> str:
        dropout = f", dropout={self.dropout}" * bool(self.dropout)
        turns = f", rotary={self.rotary}" * (self.rotary is not None)
        return f"{self.num_heads}, is_causal={self.is_causal}{dropout}{turns}"
