"""Softmax of attention scores, forward and backward, for some queries."""

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels.softmax import softmax_loop
from nnmpi.arrays.native.table import InOut, Out, kernel


@kernel
def probabilities_loop(s: InOut, p: Out, lse: Out, later: int) -> None:
    """Writes p = softmax of scores s (..., rows, keys), and lse, the logarithm of the sum of e^s.
    Row i sees keys 0 to later + i, or all if `later` is -1; scores of other keys become -inf."""
    xp = xp_of(s)
    if later >= 0:
        hide_later(s, later)
    softmax_loop(s, p, -1)
    lse[...] = s.max(axis=-1) - xp.log(p.max(axis=-1))  # the largest p is e^(s - lse)


@kernel
def scores_gradient_loop(
    s: InOut, dp: InOut, lse: Array, delta: Array, scale: float, later: int
) -> None:
    """Computes the backward pass of softmax in attention, in place: s, the scores, become
    probabilities p, and dp becomes the gradient of the scores, scale p (dp - delta). delta is the
    sum of p dp of each row; lse and `later` are those of `probabilities_loop`."""
    if later >= 0:
        hide_later(s, later)
    s -= lse[..., None]
    xp_of(s).exp(s, out=s)
    softmax_backward(s, dp, delta, scale)


def softmax_backward(p: Array, dp: Array, delta: Array, scale: float) -> None:
    """Overwrites dp, the gradient of softmax's probabilities p, by the gradient of its scores:
    scale p (dp - delta), where delta is the sum of p dp of each row."""
    dp -= delta[..., None]
    dp *= p
    dp *= scale


def hide_later(s: Array, first: int) -> None:
    """Adds -inf to the scores of row i with keys after first + i."""
    xp = xp_of(s)
    rows, keys = s.shape[-2:]
    begin = min(first + 1, keys)  # all rows see the keys before
    later = xp.arange(begin, keys)[None, :] > first + xp.arange(rows)[:, None]
    s[..., begin:] += xp.where(later, -xp.inf, 0).astype(s.dtype)
