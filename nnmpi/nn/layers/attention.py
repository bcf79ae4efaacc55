"""Attention: each position of a sequence takes a weighted mean of the values of others.

MultiheadAttention is PyTorch's; SelfAttention has a layout that tensor parallelism can split.
"""

import math
from typing import Any, NamedTuple

from nnmpi.arrays import backend, keyed
from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.kernels.attention import Keep, KeepOf, Tile
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.autograd.functional import where
from nnmpi.autograd.method_functions import softmax, swapaxes
from nnmpi.autograd.ops import attention, linear
from nnmpi.nn import init
from nnmpi.nn.layers.basic import (
    ALL,
    Linear,
    check_probability,
    check_sizes,
    dropout_key,
    dropout_mask,
)
from nnmpi.nn.layers.sequences import check_base, check_even, kv_cache
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter


def keep_of(
    layer: Module, p: float, like: Array, T: int, S: int, first: int = 0, groups: int = 1
) -> KeepOf:
    """Returns a function that makes dropout masks for blocks of attention probabilities, keyed by
    their position in a whole sample (heads, T, S).

    like: an array of all samples on this rank, of their type; first: the first head on this rank;
    groups: the query heads of each key head
    """
    key, samples = dropout_key(layer, layer.path, like)
    mask = _AttentionMask(key, samples, p, like.dtype, (T, S), first, groups)
    return lambda queries, keys: mask._replace(queries=queries, keys=keys)


class _AttentionMask(NamedTuple):
    """Makes dropout masks for tiles of probabilities of the queries and keys at these positions.

    shape   (T, S) of whole samples; the other fields are those of `keep_of`
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
    """Returns the positions of T queries and of S keys, for sequences that are not cut."""
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

    Sharding sets `num_heads`, `num_kv_heads`, and `part`: the channels of the output on this rank.
    """

    last_axis = "heads"

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
        """Returns the output (N, T, K G, D) for queries, keys and values (N, T, K, G + 2, D)."""
        T, keep = qkv.shape[1], None
        if (cache := kv_cache.get()) is not None:
            qkv = self.rotated(qkv, cache.new_positions(qkv.data))
            return Tensor(cache.attend(self, qkv.data, self.is_causal))
        if self.drops:
            keep = self.keep_of(qkv.data, T)(*all_positions(qkv.data, T, T))
        options = {"scale": qkv.shape[-1] ** -0.5, "causal": self.is_causal, "keep": keep}
        return apply(attention.self_attention, self.rotated(qkv), **options)

    def rotated(self, qkv: Tensor, positions: Array | None = None) -> Tensor:
        """Returns qkv with queries and keys rotated by their positions, 0 to T - 1 by default, if
        `rotary` is set."""
        if self.rotary is None:
            return qkv
        check_even("SelfAttention", qkv.shape[-1])
        options = {"positions": positions, "interleaved": self.interleaved}
        return apply(attention.rotary, qkv, base=self.rotary, parts=self.groups + 1, **options)

    @property
    def drops(self) -> bool:
        """True if dropout is active."""
        return self.training and self.dropout > 0

    def keep_of(self, x: Array, T: int) -> KeepOf:
        """Returns the dropout of this pass for samples that all have T positions; x is (N, ...,
        D)."""
        first = self.part.start // x.shape[-1]
        return keep_of(self, self.dropout, x, T, T, first, self.groups)

    def extra_repr(self) -> str:
        shared = f", num_kv_heads={self.num_kv_heads}" * (self.groups > 1)
        dropout = f", dropout={self.dropout}" * bool(self.dropout)
        turns = f", rotary={self.rotary}" * (self.rotary is not None)
        pairs = f", interleaved={self.interleaved}" * (not self.interleaved)
        return f"{self.num_heads}, is_causal={self.is_causal}{dropout}{turns}{shared}{pairs}"


class MultiheadAttention(Module):
    """Attention of queries (T, N, E) to keys (S, N, kdim) and values (S, N, vdim) in `num_heads`
    heads.

    Each of the three is projected by a matrix first, and the result by another one, to (T, N, E).
    With `batch_first` the first two axes are (N, T) and (N, S).

    In training, probabilities become 0 with probability `dropout`; masks are keyed by sample, head,
    query and key. The weight holds the queries of all heads in consecutive rows, so tensor
    parallelism does not split it; the layout of SelfAttention is one that it splits.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
    ) -> None:
        if add_bias_kv or add_zero_attn:
            raise ValueError(
                f"MultiheadAttention: add_bias_kv={add_bias_kv}, add_zero_attn={add_zero_attn}: "
                "further keys are not supported: append them to key and value before the layer"
            )
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, bool(batch_first)
        self.kdim, self.vdim = (embed_dim if n is None else n for n in (kdim, vdim))
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads}
        check_sizes("MultiheadAttention", 1, **sizes, kdim=self.kdim, vdim=self.vdim)
        check_probability("MultiheadAttention", "dropout", dropout)
        if embed_dim % num_heads:
            raise ValueError(
                f"MultiheadAttention: embed_dim={embed_dim} is not a multiple of {num_heads} heads"
            )
        self.dropout, E = float(dropout), embed_dim
        # as in PyTorch, weights of projections start as Glorot proposed, and biases as 0
        if self.kdim == self.vdim == E:
            self.in_proj_weight = _glorot(3 * E, E)
        else:
            self.q_proj_weight, self.k_proj_weight = _glorot(E, E), _glorot(E, self.kdim)
            self.v_proj_weight = _glorot(E, self.vdim)
        zeros = init.constant(0.0)
        self.in_proj_bias = Parameter.drawn((3 * E,), zeros) if bias else None
        self.out_proj = Linear(E, E, bias)
        if bias:
            self.out_proj.bias = Parameter.drawn((E,), zeros)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the output, and the probabilities (N, T, S), or (N, H, T, S) of each head, if
        needed.

        key_padding_mask: (N, S); attn_mask: (T, S) or (N H, T, S). Both are bool, true where a key
            is NOT seen, or numbers that are added to the scores. A query that sees no key gets the
            bias of the output, where PyTorch gives NaN.
        is_causal: query i sees keys 0 to i only, of those that the masks let it see
        need_weights: without them the matrix of all scores is never in memory
        """
        inputs = self._by_sample(query, key, value)
        q, k, v = map(self._heads, self._projected(*inputs))
        (N, H, T, D), S = q.shape, k.shape[2]
        options: dict[str, Any] = {"causal": bool(is_causal)}
        options["mask"] = _merged(_visible(key_padding_mask, attn_mask, q.operand, S))
        if self.training and self.dropout:
            keep = keep_of(self, self.dropout, q.operand, T, S)
            options["keep"] = keep(*all_positions(q.operand, T, S))
        weights = None
        if need_weights:
            weights = _probabilities(q * D**-0.5, k, **options)
            y = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            y = apply(attention.attention, q, k, v, scale=D**-0.5, **options)
        y = self.out_proj(y.transpose(0, 2, 1, 3).reshape(N, T, H * D))
        return y if self.batch_first else swapaxes(y, 0, 1), weights

    def _by_sample(self, *inputs: Any) -> list[Tensor]:
        """Returns queries (N, T, E), keys (N, S, kdim) and values (N, S, vdim); inputs that are one
        tensor stay one."""
        q, k, v = map(as_tensor, inputs)
        widths = self.embed_dim, self.kdim, self.vdim
        fit = all(t.ndim == 3 and t.shape[2] == n for t, n in zip((q, k, v), widths, strict=True))
        sample = 0 if self.batch_first else 1
        if not fit or k.shape[:2] != v.shape[:2] or q.shape[sample] != k.shape[sample]:
            wanted = "(N, T, {}), (N, S, {}) and (N, S, {})"
            wanted = wanted if self.batch_first else "(T, N, {}), (S, N, {}) and (S, N, {})"
            raise ValueError(
                f"MultiheadAttention {self.path}: query {q.shape}, key {k.shape}, value {v.shape}: "
                f"with batch_first={self.batch_first} they must be {wanted.format(*widths)}"
            )
        if self.batch_first:
            return [q, k, v]
        # by id: `_projected` needs one product for inputs that are the same tensor
        turned = {id(t): swapaxes(t, 0, 1) for t in (q, k, v)}
        return [turned[id(t)] for t in (q, k, v)]

    def _projected(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        """Returns queries, keys and values, (N, T or S, E); a single input is projected by one
        product."""
        E, bias = self.embed_dim, self.in_proj_bias
        if q is k is v and self.kdim == self.vdim == E:
            y = apply(linear.linear, q, self.in_proj_weight, bias, relu=False)
            return [*y.split(E, 2)]
        if self.kdim == self.vdim == E:
            weights = self.in_proj_weight.split(E)
        else:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        biases = (None,) * 3 if bias is None else bias.split(E)
        parts = zip((q, k, v), weights, biases, strict=True)
        return [apply(linear.linear, x, w, b, relu=False) for x, w, b in parts]

    def _heads(self, x: Tensor) -> Tensor:
        """Returns x (N, T, E) as (N, H, T, D)."""
        N, T, E = x.shape
        return x.reshape(N, T, self.num_heads, E // self.num_heads).transpose(0, 2, 1, 3)


def _glorot(rows: int, columns: int) -> Parameter:
    """Returns a weight that is uniform within sqrt(6 / (rows + columns))."""
    return Parameter.drawn((rows, columns), init.uniform(math.sqrt(6 / (rows + columns))))


def _visible(key_padding_mask: Any, attn_mask: Any, q: Array, S: int) -> list[Array]:
    """Returns the given masks, broadcastable to (N, H, T, S): bool, true where a key is seen, or
    floats to add to the scores."""
    N, H, T, _ = q.shape
    taken: dict[str, tuple[Any, dict[tuple[int, ...], tuple[int, ...]]]] = {
        "key_padding_mask": (key_padding_mask, {(N, S): (N, 1, 1, S)}),
        "attn_mask": (attn_mask, {(T, S): (1, 1, T, S), (N * H, T, S): (N, H, T, S)}),
    }
    masks: list[Array] = []
    for name, (mask, shapes) in taken.items():
        if mask is None:
            continue
        a = as_tensor(mask, backend.of(q)).data
        if a.shape not in shapes or not (a.dtype.kind == "b" or is_float(a.dtype)):
            raise ValueError(
                f"MultiheadAttention: {name} of shape {a.shape} and type {a.dtype}; it must be "
                f"bool, or floats that are added, of {' or '.join(map(str, shapes))}"
            )
        a = a.reshape(shapes[a.shape])
        # a bool mask of PyTorch is true where a key is NOT seen
        masks.append(~a if a.dtype.kind == "b" else a.astype(q.dtype))
    return masks


def _merged(masks: list[Array]) -> Array | None:
    """Returns two masks as one: bool if both are, else floats with minus infinity where a key is
    not seen."""
    if len(masks) < 2:
        return masks[0] if masks else None
    a, b = masks
    if a.dtype == b.dtype:
        return a & b if a.dtype.kind == "b" else a + b
    seen, added = (a, b) if a.dtype.kind == "b" else (b, a)
    return backend.xp_of(a).where(seen, added, -math.inf)


def _probabilities(
    q: Tensor, k: Tensor, mask: Array | None, causal: bool, keep: Keep | None = None
) -> Tensor:
    """Returns softmax(q k^T + mask), (N, H, T, S), for a scaled q, times the dropout mask that
    `keep` gives. Keys where a boolean mask is False, and later keys if `causal`, are hidden; rows
    that see no key are 0."""
    xp, (N, H, T, _), S = backend.xp_of(q.operand), q.shape, k.shape[2]
    scores, seen = q @ swapaxes(k, 2, 3), mask
    if mask is not None and mask.dtype.kind != "b":
        seen = mask > -math.inf
        scores = scores + xp.where(seen, mask, 0)
    if causal:
        earlier = xp.arange(S) <= xp.arange(T)[:, None]
        seen = earlier if seen is None else seen & earlier
    if seen is not None:
        hidden = ~seen & seen.any(axis=-1, keepdims=True)  # else rows that see nothing give NaN
        scores = where(hidden, -math.inf, scores)
    p = softmax(scores)
    if seen is not None:
        p = p * seen.astype(q.dtype)
    if keep is not None:
        axes = (slice(0, n) for n in (N, H, T, S))
        p = p * keep(Tile(*axes)).reshape(N, H, T, S)
    return p
