"""Rows of matrices by integers: the mask of dropout, the gradient of an embedding."""

from nnmpi import keyed
from nnmpi.backend import Array, xp_of
from nnmpi.native.table import InOut, Out, kernel


@kernel
def dropout_mask_loop(
    index: Array,
    rows: Array,
    k0: int,
    k1: int,
    k2: int,
    k3: int,
    least: int,
    factor: float,
    mask: Out,
) -> None:
    """mask (n, m) = factor where the bits of index (m) and row (n) are at least `least`, else 0."""
    bits = keyed.bits(keyed.Key(k0, k1, k2, k3), index[None], rows[:, None])
    xp_of(mask).multiply(bits >= least, mask.dtype.type(factor), out=mask)


@kernel
def embedding_gradient_loop(g: Array, index: Array, dw: InOut) -> None:
    """dw[index] += g, one after the other."""
    xp_of(dw).add.at(dw, index, g)
