"""Softmax of attention scores, forward and backward, for some queries."""

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.native.table import InOut, Out, kernel


@kernel
def probabilities_loop(s: InOut, lse: Out, scale: float, later: int) -> None:
    """Replaces s (..., rows, keys) by the softmax of the scores scale s, and writes the logarithm
    of the sum of e^score to lse. Row i sees keys 0 to later + i, or all if `later` is -1; the
    probabilities of other keys become 0."""
    xp = xp_of(s)
    s *= scale
    if later >= 0:
        hide_later(s, later)
    top = s.max(axis=-1)
    s -= top[..., None]
    xp.exp(s, out=s)
    total = s.sum(axis=-1)
    s /= total[..., None]
    lse[...] = top + xp.log(total)


@kernel
def scores_gradient_loop(
    s: InOut, dp: InOut, lse: Array, delta: Array, scale: float, later: int
) -> None:
    """Computes the backward pass of softmax in attention, in place: s, of which the scores are
    scale s, becomes probabilities p, and dp becomes the gradient of s, scale p (dp - delta). delta
    is the sum of p dp of each row; lse and `later` are those of `probabilities_loop`."""
    s *= scale
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
