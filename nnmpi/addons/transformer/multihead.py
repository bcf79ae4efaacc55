"""PyTorch's multi-head attention, with its masks."""

import math
from typing import Any

from nnmpi.addons.transformer.attention import all_positions, keep_of
from nnmpi.addons.transformer.kernels.attention import Keep
from nnmpi.addons.transformer.kernels.tiles import Tile
from nnmpi.addons.transformer.ops import attention
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import is_float
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.autograd.functional import where
from nnmpi.autograd.method_functions import softmax, swapaxes
from nnmpi.autograd.ops import linear
from nnmpi.nn import initial
from nnmpi.nn.layers.basic import Linear, check_probability, check_sizes
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter


class MultiheadAttention(Module):
    """Attention of queries (T, N, E) to keys (S, N, kdim) and values (S, N, vdim) in `num_heads`
    heads.

    Queries, keys and values are each multiplied by a matrix first, and the result by another one,
    to (T, N, E). With `batch_first` the first two axes are (N, T) and (N, S).

    In training, probabilities become 0 with probability `dropout`; the mask does not depend on
    ranks. Tensor parallelism does not split this layer, since its weight has the rows of all
    queries first, then those of all keys and values. It splits SelfAttention.
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
        zeros = initial.constant(0.0)
        self.in_proj_bias = Parameter.lazy((3 * E,), zeros) if bias else None
        self.out_proj = Linear(E, E, bias)
        if bias:
            self.out_proj.bias = Parameter.lazy((E,), zeros)

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
        """Returns the output and, with `need_weights`, the probabilities: (N, T, S), the mean over
        heads, or (N, H, T, S) without `average_attn_weights`.

        key_padding_mask: (N, S); attn_mask: (T, S) or (N H, T, S). Both are bool, true where a key
            is NOT seen, or numbers that are added to the scores. A query that sees no key gets the
            bias of the output, where PyTorch gives NaN.
        is_causal: query i sees keys 0 to i only, of those that the masks let it see
        need_weights: False saves memory, since the matrix of all probabilities is never stored
        """
        inputs = self._by_sample(query, key, value)
        q, k, v = map(self._heads, self._projected(*inputs))
        (N, H, T, D), S = q.shape, k.shape[2]
        options: dict[str, Any] = {"causal": bool(is_causal)}
        options["mask"] = _merged(_visible(key_padding_mask, attn_mask, q._array, S))
        if self.training and self.dropout:
            keep = keep_of(self, self.dropout, q._array, T, S)
            options["keep"] = keep(*all_positions(q._array, T, S))
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
        """Returns the inputs with samples first: (N, T, E), (N, S, kdim) and (N, S, vdim); a tensor
        that is given for several of them stays one."""
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
        """Returns q, k, v projected to (N, T or S, E); by one matrix product if they are the same
        tensor."""
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
    return Parameter.lazy((rows, columns), initial.uniform(math.sqrt(6 / (rows + columns))))


def _visible(key_padding_mask: Any, attn_mask: Any, q: Array, S: int) -> list[Array]:
    """Returns the given masks in forms that broadcast to (N, H, T, S): bool, true where a key is
    seen, or floats to add to the scores. Raises ValueError for other shapes and types."""
    N, H, T, _ = q.shape
    taken: dict[str, tuple[Any, dict[tuple[int, ...], tuple[int, ...]]]] = {
        "key_padding_mask": (key_padding_mask, {(N, S): (N, 1, 1, S)}),
        "attn_mask": (attn_mask, {(T, S): (1, 1, T, S), (N * H, T, S): (N, H, T, S)}),
    }
    masks: list[Array] = []
    for name, (mask, shapes) in taken.items():
        if mask is None:
            continue
        a = as_tensor(mask, backend.of(q)).array
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
    """Returns one mask with the effect of at most two: boolean (true where a key is seen) if all
    are, else floats to add, -inf where a key is not seen. None without masks."""
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
    """Returns softmax(q k^T + mask), (N, H, T, S), for a scaled q, times the dropout mask. Hidden
    keys have 0, and so do rows that see no key."""
    xp, (N, H, T, _), S = backend.xp_of(q._array), q.shape, k.shape[2]
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
