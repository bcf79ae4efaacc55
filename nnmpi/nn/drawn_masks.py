"""Dropout of functions: masks drawn as random tensors, for programs with their own loop."""

from typing import Any, NamedTuple

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels.attention import Keep, Tile
from nnmpi.nn.layers.basic import check_probability
from nnmpi.nn.passes import current_pass
from nnmpi.nn.random_numbers import rand


def drawn_mask(name: str, shape: tuple[int, ...], p: float, like: Array, layer: str) -> Array:
    """Returns a mask in the type and on the device of an array: 0 with probability p, and else 1 /
    (1 - p).

    Raises ValueError in `forward` of a Trainer, where it would depend on the layout of ranks: there
    `layer` is to be used in place of the function `name`.
    """
    check_probability(name, "p", p)
    current = current_pass.get()
    if current is not None and current.samples is not None:
        raise ValueError(
            f"{name}: in a Trainer a mask needs a layer, whose path determines it on any number of "
            f"ranks: {layer}"
        )
    kept: Any = rand(shape, device=backend.of(like)) >= p
    mask: Array = kept.array.astype(like.dtype) / (1 - p)
    return mask.astype(like.dtype, copy=False)


def keep_of(q: Array, k: Array, p: float) -> Keep:
    """Returns dropout's factors of the probabilities of queries (N, H, T, D) for keys (N, K, S, D),
    by tiles; consecutive H / K heads share a key."""
    (N, H, T, _), (K, S) = q.shape, k.shape[1:3]
    name = "scaled_dot_product_attention"
    mask = drawn_mask(name, (N, H, T, S), p, q, f"write nn.SelfAttention(dropout={p})")
    return _Tiles(mask.reshape(N, K, H // K, T, S))


class _Tiles(NamedTuple):
    """The parts of a mask (N, K, G, T, S)."""

    mask: Array

    def __call__(self, tile: Tile) -> Array:
        return self.mask[tile.samples, tile.heads, :, tile.queries, tile.keys]
