"""Dropout masks of functions, which belong to no layer: drawn like other random tensors."""

from typing import Any

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.nn.layers.basic import check_probability
from nnmpi.nn.passes import current_pass
from nnmpi.nn.random_numbers import rand


def drawn_mask(name: str, shape: tuple[int, ...], p: float, like: Array, layer: str) -> Array:
    """Returns a dropout mask like `like`: 0 with probability p, else 1 / (1 - p). It depends on the
    random tensors drawn before: in `forward` of a Trainer, ValueError advises to use `layer`."""
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
