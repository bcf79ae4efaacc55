"""Queries, keys and values of attention, as a device multiplies them."""

from __future__ import annotations

from typing import NamedTuple

from nnmpi.arrays.backend import Array, of, xp_of


class Heads(NamedTuple):
    """Queries, keys and values, or their gradients.

    whole    the array (N, T, K, G + 2, D) of which the three are views; None: they are apart
    """

    q: Array
    k: Array
    v: Array
    whole: Array | None = None

    @classmethod
    def of(cls, qkv: Array) -> Heads:
        """Views of qkv (N, T, K, G + 2, D): at each position, for each of K key heads, G queries,
        the key and the value."""
        k, v = (qkv[:, :, :, i].transpose(0, 2, 1, 3) for i in (-2, -1))
        return cls(qkv[:, :, :, :-2].transpose(0, 2, 3, 1, 4), k, v, qkv)

    def packed(self) -> Heads:
        """Returns arrays whose matrices lie at one distance in memory on a device, where a library
        then multiplies the matrices of all heads in one call; on the host these arrays."""
        if of(self.q).is_host:
            return self
        if self.whole is None:
            return Heads(*map(without_gaps, self[:3]))
        by_head = without_gaps(self.whole.transpose(0, 2, 3, 1, 4))
        return Heads.of(by_head.transpose(0, 3, 1, 2, 4))

    def packed_zeros(self) -> Heads:
        """Returns zeros in the form of `packed`; on the host these arrays, as they are."""
        if of(self.q).is_host:
            return self
        xp, dtype = xp_of(self.q), self.q.dtype
        if self.whole is None:
            return Heads(*(xp.zeros(a.shape, dtype) for a in self[:3]))
        N, T, K, parts, D = self.whole.shape
        return Heads.of(xp.zeros((N, K, parts, T, D), dtype).transpose(0, 3, 1, 2, 4))

    def unpack(self, packed: Heads) -> None:
        """Copies what was computed in `packed_zeros` to these arrays."""
        if self.whole is not None and packed.whole is not None:
            self.whole[...] = packed.whole
        else:
            for mine, other in zip(self[:3], packed[:3], strict=True):
                mine[...] = other


def without_gaps(a: Array) -> Array:
    """Returns a copy without gaps of an array on a device; on the host the array itself."""
    return a if of(a).is_host else xp_of(a).ascontiguousarray(a)
