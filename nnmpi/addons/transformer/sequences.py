"""Layers of sequences (N, T, C), N samples of T positions with C channels each; and decoding, which
passes a few positions at a time through a model, while attention layers cache the keys and values
of earlier ones.

    with decoding(cache, 5): model(first 5 tokens)
    with decoding(cache, 1): model(the next one)        its query sees 6 keys
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from nnmpi.addons.transformer.ops import attention
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.autograd import Tensor, apply, as_tensor, no_grad
from nnmpi.nn import initial
from nnmpi.nn.layers.basic import check_sizes
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter


class KVCache:
    """The keys and values of the first `length` positions of a sequence, which each attention layer
    keeps to generate text token by token; there is memory for `positions` positions."""

    def __init__(self, positions: int) -> None:
        self.positions, self.length = positions, 0
        self._memory: dict[object, Array] = {}

    def new_positions(self, parts: Array) -> Array:
        """Returns the positions of new tokens (N, T, ...): `length` to `length` + T - 1."""
        return xp_of(parts).arange(self.length, self.length + parts.shape[1])

    def attend(self, layer: object, parts: Array, causal: bool) -> Array:
        """Adds the keys and values of new positions of an attention layer to the cache, and returns
        the attention (N, T, K G, D) of these positions to all so far, from `parts` (N, T, K, G + 2,
        D). Raises ValueError unless `causal`."""
        N, T, K, packed, D = parts.shape
        if not causal or (self.length and T > 1):
            raise ValueError(
                f"{T} new positions after {self.length}: decoding needs causal attention, the "
                "whole prompt at once, and then one position at a time"
            )
        if layer not in self._memory:
            shape = (2, N, K, self.positions, D)
            self._memory[layer] = xp_of(parts).empty(shape, parts.dtype)
        end = self.length + T
        cached = self._memory[layer]
        cached[:, :, :, self.length : end] = parts[:, :, :, -2:].transpose(3, 0, 2, 1, 4)
        q, (k, v) = parts[:, :, :, :-2].reshape(N, T, K * (packed - 2), D), cached[:, :, :, :end]
        # a single query sees all keys; the mask would hide all but the first of them
        y = attention.attention(q.transpose(0, 2, 1, 3), k, v, scale=D**-0.5, causal=T > 1).value
        return y.transpose(0, 2, 1, 3)


kv_cache: ContextVar[KVCache | None] = ContextVar("kv_cache", default=None)
"""The cache of a pass that decodes, else None."""


@contextmanager
def decoding(cache: KVCache, new: int) -> Iterator[None]:
    """A context for a pass through `new` further positions, after which the cache includes them."""
    token = kv_cache.set(cache)
    try:
        with no_grad():
            yield
    finally:
        kv_cache.reset(token)
    # only after the pass: all of its layers start at the same length
    cache.length += new


class PositionalEmbedding(Module):
    """Adds to each position a row of the weight (num_positions, embedding_dim): x + weight[:T].
    While decoding, positions are counted from the start of the cached sequence."""

    def __init__(self, num_positions: int, embedding_dim: int) -> None:
        check_sizes("PositionalEmbedding", 1, num_positions=num_positions)
        check_sizes("PositionalEmbedding", 0, embedding_dim=embedding_dim)
        self.num_positions, self.embedding_dim = num_positions, embedding_dim
        self.weight = Parameter.lazy((num_positions, embedding_dim), initial.normal(1.0))

    @staticmethod
    def multiply_adds(settings: Mapping[str, Any], sample: tuple[int, ...], elements: int) -> int:
        """Returns the operations of a forward pass for one sample: one for each element of its
        output."""
        return elements

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        cache = kv_cache.get()
        start = 0 if cache is None else cache.length
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
    """Raises ValueError unless the base of rotary positions is a number above 0."""
    if isinstance(base, bool) or not base > 0:
        raise ValueError(f"{layer}: {name}={base} must be a number above 0, such as 10,000")


def check_even(layer: str, D: int) -> None:
    """Raises ValueError unless a head's channels are even, for rotary positions."""
    if D % 2:
        raise ValueError(f"{layer}: rotary positions turn pairs of channels, but a head has {D}")


class RotaryPositionalEmbeddings(Module):
    """Rotates pairs of channels of each head of x (N, T, H, D) by angles that grow with the
    position.

    So products of queries and keys depend on the difference of their positions. Pair i is channels
    2 i and 2 i + 1, as in the RoFormer paper and in torchtune; without `interleaved` it is i and i
    + D / 2, as in `transformers`. Its angle at position t is t base^(-2 i / D).

    dim: the channels D of a head; max_seq_len: the largest number of positions
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
        """Returns x rotated by `input_pos`, (T,) or (N, T), by default 0 to T - 1."""
        x = as_tensor(x)
        if x.ndim != 4 or x.shape[1] > self.max_seq_len or x.shape[3] != self.dim:
            raise ValueError(
                f"RotaryPositionalEmbeddings {self.path}: input of shape {x.shape}; it takes (N, "
                f"T, H, {self.dim}) of at most {self.max_seq_len} positions"
            )
        at = input_pos
        if at is not None:
            at = as_tensor(at, backend.of(x._array)).array
            if at.dtype.kind not in "iu" or at.shape not in (x.shape[1:2], x.shape[:2]):
                raise ValueError(
                    f"RotaryPositionalEmbeddings {self.path}: input_pos of shape {at.shape} and "
                    f"type {at.dtype} for an input {x.shape}: give integers, (T,) or (N, T)"
                )
        options = {"positions": at, "interleaved": self.interleaved}
        return apply(attention.rotary, x, base=self.base, **options)

    def extra_repr(self) -> str:
        return f"{self.dim}, {self.max_seq_len}, base={self.base}, interleaved={self.interleaved}"
