"""Decoding: a sequence goes through a model some positions at a time, and attention keeps the keys
and values of those before. So a new token costs one position.

    with decoding(before, 5): model(first 5 tokens)
    with decoding(before, 1): model(the next one)        its query looks at 6 keys
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.autograd import no_grad
from nnmpi.autograd.ops.attention import attention


class Past:
    """Keys and values of the first `length` positions, of each layer of attention that has run;
    room is made for all `positions`."""

    def __init__(self, positions: int) -> None:
        self.positions, self.length = positions, 0
        self._kept: dict[object, Array] = {}

    def places(self, parts: Array) -> Array:
        """Where in the sequence the new positions of `parts` (N, T, ...) are."""
        return xp_of(parts).arange(self.length, self.length + parts.shape[1])

    def attend(self, layer: object, parts: Array, causal: bool) -> Array:
        """Attention (N, T, H, D) of new positions, of which `parts` (N, T, H, 3, D) has query, key
        and value, to all so far; the new ones are kept."""
        N, T, H, _, D = parts.shape
        if not causal or (self.length and T > 1):
            raise ValueError(
                f"{T} new positions behind {self.length}: decoding takes causal attention, all of "
                "a prompt at once, and then one position at a time"
            )
        if layer not in self._kept:
            shape = (2, N, H, self.positions, D)
            self._kept[layer] = xp_of(parts).empty(shape, parts.dtype)
        end = self.length + T
        kept = self._kept[layer]
        kept[:, :, :, self.length : end] = parts[:, :, :, 1:].transpose(3, 0, 2, 1, 4)
        q, (k, v) = parts[:, :, :, 0].transpose(0, 2, 1, 3), kept[:, :, :, :end]
        y = attention(q, k, v, scale=D**-0.5, causal=T > 1).value
        return y.transpose(0, 2, 1, 3)


past: ContextVar[Past | None] = ContextVar("past", default=None)
"""The positions before, in a pass that decodes."""


@contextmanager
def decoding(before: Past, new: int) -> Iterator[None]:
    """A pass through `new` positions behind those before, which have grown at its end."""
    token = past.set(before)
    try:
        with no_grad():
            yield
    finally:
        past.reset(token)
    before.length += new
