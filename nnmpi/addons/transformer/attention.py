"""Attention: each position of a sequence takes a weighted mean of the values of others."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nnmpi.addons.transformer.kernels.attention import KeepOf
from nnmpi.addons.transformer.kernels.tiles import Tile
from nnmpi.addons.transformer.ops import attention
from nnmpi.addons.transformer.sequences import check_base, check_even, kv_cache
from nnmpi.arrays import backend, keyed
from nnmpi.arrays.backend import Array
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.nn.layers.basic import (
    ALL,
    check_probability,
    check_sizes,
    dropout_key,
    dropout_mask,
)
from nnmpi.nn.module import Module


def keep_of(
    layer: Module, p: float, like: Array, T: int, S: int, first: int = 0, groups: int = 1
) -> KeepOf:
    """Returns a function that makes dropout masks: f(query positions, key positions) returns the
    Keep of attention probabilities, which become 0 with probability p.

    Masks depend on the position of each element in a whole sample (heads, T, S), so they are the
    same however samples, heads and positions are divided among ranks.

    like: an array of the samples on this rank, which gives their number and type
    first: the first head on this rank
    groups: the number of query heads per key head
    """
    key, samples = dropout_key(layer, layer.path, like)
    mask = _AttentionMask(key, samples, p, like.dtype, (T, S), first, groups)
    return lambda queries, keys: mask._replace(queries=queries, keys=keys)


class _AttentionMask(NamedTuple):
    """The dropout masks of attention probabilities, by tile; its slices index `queries` and `keys`,
    arrays of positions in the sequence.

    key      the key of the random numbers
    samples  the row number of each sample in the data set
    shape    (T, S) of whole samples; p, first and groups are those of the function `keep_of`
    """

    key: keyed.Key
    samples: Array
    p: float
    dtype: Any
    shape: tuple[int, int]
    first: int
    groups: int
    queries: Array = None
    keys: Array = None

    def __call__(self, tile: Tile) -> Array:
        (T, S), groups, rows = self.shape, self.groups, self.samples[tile.samples]
        last = self.first + tile.heads.stop * groups
        kind = "uint32" if last * T * S <= 1 << 32 else "int64"  # compiled kernels take uint32
        xp = backend.xp_of(rows)
        h = xp.arange(self.first + tile.heads.start * groups, last, dtype=kind)
        i, j = self.queries[tile.queries], self.keys[tile.keys]
        i, j = (a.astype(kind, copy=False) for a in (i, j))
        index = ((h[:, None, None] * T + i[:, None]) * S + j).reshape(-1)
        mask = dropout_mask(self.key, rows, index, self.p, self.dtype, xp)
        return mask.reshape(len(mask), len(h) // groups, groups, len(i), len(j))


def all_positions(like: Array, T: int, S: int) -> tuple[Array, Array]:
    """Returns 0 to T - 1 and 0 to S - 1 as arrays like `like`: positions of undivided sequences."""
    xp = backend.xp_of(like)
    return xp.arange(T, dtype="uint32"), xp.arange(S, dtype="uint32")


class SelfAttention(Module):
    """Self-attention softmax(q k^T / sqrt(D)) v of x (N, T, H 3 D), in which the query, key and
    value of each head are side by side at each position; the output is (N, T, H D).

    With `num_kv_heads` K, each G = H / K heads share a key and a value: x is (N, T, K (G + 2) D),
    with G queries, a key and a value side by side.

    `is_causal`: a position sees itself and earlier ones. In training, attention weights become 0
    with probability `dropout`, and the others are divided by 1 - dropout. `rotary`: the base of
    rotary positions, usually 10,000, by which queries and keys are rotated first; None: no
    rotation. `interleaved`: which channels are pairs, as in RotaryPositionalEmbeddings.

    If the layer is divided among ranks, `num_heads` and `num_kv_heads` are those of this rank, and
    `part` is the range of output channels that this rank has.
    """

    last_axis = last_input_axis = "heads"

    def __init__(
        self,
        num_heads: int,
        is_causal: bool = False,
        dropout: float = 0.0,
        rotary: float | None = None,
        num_kv_heads: int | None = None,
        interleaved: bool = True,
    ) -> None:
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_sizes("SelfAttention", 1, num_heads=num_heads, num_kv_heads=kv_heads)
        if num_heads % kv_heads:
            raise ValueError(
                f"SelfAttention: num_heads={num_heads} must be a multiple of "
                f"num_kv_heads={kv_heads}, which equally many heads share"
            )
        self.num_heads, self.num_kv_heads, self.part = num_heads, kv_heads, ALL
        self.is_causal, self.interleaved = bool(is_causal), bool(interleaved)
        self.groups = num_heads // kv_heads  # of queries, G; the same in a part
        check_probability("SelfAttention", "dropout", dropout)
        if rotary is not None:
            check_base("SelfAttention", "rotary", rotary)
        self.dropout, self.rotary = float(dropout), rotary

    @staticmethod
    def multiply_adds(settings: Mapping[str, Any], sample: tuple[int, ...], elements: int) -> int:
        """Returns the multiply-adds of a forward pass for a sample with this shape of output: two
        for each output element and each position that its query sees."""
        return elements * sample[0] * (1 if settings["is_causal"] else 2)

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        K, packed = self.num_kv_heads, self.groups + 2
        if x.ndim != 3 or x.shape[2] % (K * packed):
            raise ValueError(
                f"SelfAttention {self.path}: input of shape {x.shape}; it takes (N, T, {K} heads "
                f"x {packed} x size): the queries, keys and values of each head"
            )
        N, T, width = x.shape
        D = width // (K * packed)
        return self.attended(x.reshape(N, T, K, packed, D)).reshape(N, T, self.num_heads * D)

    def attended(self, qkv: Tensor) -> Tensor:
        """Returns attention (N, T, K G, D) of qkv (N, T, K, G + 2, D): G queries, a key and a value
        for each of K key heads."""
        T, keep = qkv.shape[1], None
        if (cache := kv_cache.get()) is not None:
            qkv = self.rotated(qkv, cache.new_positions(qkv.array))
            return Tensor(cache.attend(self, qkv.array, self.is_causal))
        if self.drops:
            keep = self.keep_of(qkv.array, T)(*all_positions(qkv.array, T, T))
        options = {"scale": qkv.shape[-1] ** -0.5, "causal": self.is_causal, "keep": keep}
        return apply(attention.self_attention, self.rotated(qkv), **options)

    def rotated(self, qkv: Tensor, positions: Array | None = None) -> Tensor:
        """Returns qkv with rotary positions, by default 0 to T - 1, if `rotary` is set."""
        if self.rotary is None:
            return qkv
        check_even("SelfAttention", qkv.shape[-1])
        options = {"positions": positions, "interleaved": self.interleaved}
        return apply(attention.rotary, qkv, base=self.rotary, parts=self.groups + 1, **options)

    @property
    def drops(self) -> bool:
        """True if dropout is active in this pass."""
        return self.training and self.dropout > 0

    def keep_of(self, x: Array, T: int) -> KeepOf:
        """Returns the dropout masks of this pass for x (N, ..., D) with T positions."""
        first = self.part.start // x.shape[-1]
        return keep_of(self, self.dropout, x, T, T, first, self.groups)

    def extra_repr(self) -> str:
        shared = f", num_kv_heads={self.num_kv_heads}" * (self.groups > 1)
        dropout = f", dropout={self.dropout}" * bool(self.dropout)
        turns = f", rotary={self.rotary}" * (self.rotary is not None)
        pairs = f", interleaved={self.interleaved}" * (not self.interleaved)
        return f"{self.num_heads}, is_causal={self.is_causal}{dropout}{turns}{shared}{pairs}"
