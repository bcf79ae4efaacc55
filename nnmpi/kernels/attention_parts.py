"""Attention over some of the keys at a time: what all parts say together is that of all keys.

    y    the mean of the values seen so far, weighted by the softmax of their scores
    lse  the logarithm of the sum of e^score of these keys, of each query: -inf of none

Of two parts with lse a and b, one counts e^(a - lse) and the other e^(b - lse), where lse is
log(e^a + e^b). Shapes are those of `kernels/attention.py`, lse and delta (N, K, G, T).
"""

from nnmpi.backend import Array, xp_of
from nnmpi.kernels import progress_hook
from nnmpi.kernels.attention import Scores, blocks, over_group, scores
from nnmpi.kernels.softmax import softmax_loop


def add_keys(q: Array, k: Array, v: Array, how: Scores, y: Array, lse: Array) -> None:
    """Makes y and lse those of the keys so far and of these."""
    xp, progress = xp_of(q), progress_hook.get()
    for block in blocks(q, k, how):
        samples, heads, queries, keys = block
        s = scores(q, k, how, block)
        p = xp.empty_like(s)
        softmax_loop(s, p, -1)
        before = lse[samples, heads, :, queries]
        here = s.max(axis=-1) - xp.log(p.max(axis=-1))  # the largest p is e^(s - lse)
        both = xp.logaddexp(before, here)
        if how.keep is not None:
            p *= how.keep(block)
        part = xp.matmul(p, v[samples, heads, None, keys])
        part *= xp.exp(here - both)[..., None]
        rows = y[samples, heads, :, queries]
        rows *= xp.exp(before - both)[..., None]
        rows += part
        lse[samples, heads, :, queries] = both
        progress()


def add_gradients(
    q: Array,
    k: Array,
    v: Array,
    how: Scores,
    dy: Array,
    lse: Array,
    delta: Array,
    dq: Array,
    dk: Array,
    dv: Array,
) -> None:
    """Adds the parts of the gradients that go through these keys.

    lse: of all keys; delta: sum of dy y of each query, which is that of p dp over all keys
    """
    xp, progress = xp_of(q), progress_hook.get()
    for block in blocks(q, k, how):
        samples, heads, queries, keys = block
        p = scores(q, k, how, block)
        p -= lse[samples, heads, :, queries, None]
        xp.exp(p, out=p)
        g = dy[samples, heads, :, queries]
        kept = None if how.keep is None else how.keep(block)
        dv[samples, heads, keys] += over_group(p if kept is None else p * kept, g)
        ds = xp.matmul(g, v[samples, heads, None, keys].swapaxes(-1, -2))
        if kept is not None:
            ds *= kept
        ds -= delta[samples, heads, :, queries, None]
        ds *= p
        ds *= how.scale
        dq[samples, heads, :, queries] += xp.matmul(ds, k[samples, heads, None, keys])
        dk[samples, heads, keys] += over_group(ds, q[samples, heads, :, queries])
        progress()
