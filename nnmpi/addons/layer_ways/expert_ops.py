"""A mixture of experts: which experts each token goes to, and what the experts compute.

    x (N, ..., C) ──► route ──► gates (N, ..., E) ──► experts ──► y (N, ..., C)
          └────────────────────────────────────────────┘

N samples have T tokens each. Every decision is made within a sample, so it does not depend on
which other samples a rank or a micro-batch holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod
from typing import Any

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.linear import matmul
from nnmpi.arrays.kernels.precision import widened
from nnmpi.autograd.ops import activations, elementwise
from nnmpi.autograd.ops.linear import product

ACTIVATIONS: Mapping[str, Callable[[Array], Result]] = {
    "gelu": activations.gelu,
    "gelu_tanh": activations.gelu_tanh,
    "relu": elementwise.relu,
    "silu": activations.silu,
}


def slots_of(tokens: int, experts: int, top_k: int, factor: float) -> int:
    """Returns the capacity of an expert, the most tokens of one sample that it takes: `factor`
    times its share of `top_k` choices per token if they are spread evenly, rounded up."""
    return min(max(ceil(factor * top_k * tokens / experts), 1), tokens)


def tokens_of(x: Any) -> int:
    """The number of tokens in each sample of x (N, ..., C)."""
    return prod(x.shape[1:-1])


def choices(p: Array, top_k: int) -> Array:
    """A mask (N, T, E) of each token's `top_k` most probable experts."""
    xp = xp_of(p)
    order = xp.argsort(-p, axis=-1, kind="stable")[..., :top_k]  # stable: ties go to lower indices
    chosen: Array = xp.zeros(p.shape, bool)
    xp.put_along_axis(chosen, order, True, axis=-1)
    return chosen


def all_here(counts: Array) -> tuple[Any, Array]:
    """Returns (0, counts): the default of `counted` of `route`, for samples wholly on this rank."""
    return 0, counts


def probabilities(x: Array, w: Array) -> Array:
    """The router's probabilities softmax(x w^T), (N, T, E)."""
    xp = xp_of(x)
    z = matmul(x.reshape(len(x), tokens_of(x), x.shape[-1]), w.T)
    z = xp.exp(z - z.max(axis=-1, keepdims=True))
    return z / z.sum(axis=-1, keepdims=True)


@widened
def route(
    x: Array,
    w: Array,
    *,
    top_k: int,
    factor: float,
    auxiliary: float = 0.0,
    samples: int = 0,
    tokens: int | None = None,
    counted: Callable[[Array], tuple[Any, Array]] = all_here,
) -> Result:
    """Computes the router of a mixture of experts: the gates (N, ..., E), each token's weight for
    each expert, 0 for experts that it does not use.

    A token of x (N, ..., C) goes to the `top_k` experts with the largest p = softmax(x w^T), with
    router weights w (E, C). Its gates are their p, divided by the sum of these p if top_k > 1. In
    each sample, an expert takes tokens in order until its capacity is reached; the gates of the
    tokens after that are 0.

    The gradient also contains that of the load-balancing loss: `auxiliary` times the mean over
    `samples` samples of E sum_e f_e P_e, where f_e is the share of a sample's choices that fell on
    expert e, and P_e the mean of p_e over its tokens. This is 1 if experts are equally loaded.

    If each sample is divided among ranks, `tokens` is the number in the whole sample. `counted`
    gets the number of this rank's tokens that chose each expert (N, 1, E); it returns how many
    tokens of earlier ranks chose it, and how many of all ranks. The gradient of w must then be
    summed over ranks.
    """
    xp, E, T = xp_of(x), len(w), tokens_of(x) if tokens is None else tokens
    p = probabilities(x, w)
    chosen = choices(p, top_k)
    # communicates where ranks share samples, so every rank has to come here
    preceding, in_all = counted(chosen.sum(axis=1, keepdims=True))
    total = (p * chosen).sum(axis=-1, keepdims=True) if top_k > 1 else xp.ones_like(p[..., :1])
    gates = p * chosen / total
    taken = chosen & (preceding + xp.cumsum(chosen, axis=1) <= slots_of(T, E, top_k, factor))
    y = (gates * taken).reshape(*x.shape[:-1], E)
    of_load = auxiliary * E / (T * max(samples, 1)) if auxiliary else 0.0
    share = in_all.astype(p.dtype) / max(T * top_k, 1) * of_load if auxiliary else 0.0
    shape, normal = x.shape, gates if top_k > 1 else 0.0

    def prepare(g: Array, needs: Sequence[bool]) -> Array:
        """Returns the logits' gradient (N, T, E), of gates and load balancing."""
        d = g.reshape(p.shape) * taken
        if top_k > 1:
            d = d - (d * normal).sum(axis=-1, keepdims=True)
        dp = d * chosen / total
        if auxiliary:
            dp += share
        return p * (dp - (p * dp).sum(axis=-1, keepdims=True))

    def vjp_w(dz: Array, out: Array | None) -> Array:
        return product(dz.reshape(-1, E).T, x.reshape(-1, x.shape[-1]), w.dtype, out)

    return Result(y, (lambda dz, out: matmul(dz, w).reshape(shape), vjp_w), prepare)


@widened
def experts(
    x: Array,
    gates: Array,
    w1: Array,
    b1: Array,
    w2: Array,
    b2: Array,
    *,
    slots: int,
    activation: str = "gelu",
    start: int = 0,
) -> Result:
    """Computes the sum over experts e of gates_e (w2_e act(w1_e x + b1_e) + b2_e), for each token
    of x (N, ..., C).

    act is `activation`. w1 (E, H, C), b1 (E, H), w2 (E, C, H), b2 (E, C) belong to experts `start`
    to start + E - 1 of the gates (N, ..., all experts). An expert computes on exactly `slots` rows
    for each sample, its capacity; rows without a token are zeros. So one matrix product with N
    slots rows serves all experts, and the memory that is kept for the backward pass does not depend
    on the samples.
    """
    xp, E, shape, of_gates, dtype = xp_of(x), len(w1), x.shape, gates.shape, gates.dtype
    flat = x.reshape(-1, shape[-1])
    tokens, width = flat.shape
    index, weight = _dispatch(gates.reshape(len(x), tokens_of(x), of_gates[-1]), start, E, slots)
    inside = _in_slots(flat, index)
    act = ACTIVATIONS[activation](matmul(inside, w1.transpose(0, 2, 1)) + b1[:, None])
    hidden, (vjp_act,), *_ = act
    outside = matmul(hidden, w2.transpose(0, 2, 1)) + b2[:, None]

    def prepare(g: Array, needs: Sequence[bool]) -> tuple[Array, Array, Array]:
        """Returns gradients of the weighted outputs, of the outputs before, and of the activations'
        inputs, with one row for each token that an expert computes."""
        in_slots = _in_slots(g.reshape(-1, width), index)
        d = in_slots * weight[..., None]
        return in_slots, d, vjp_act(matmul(d, w2), None)

    def vjp_x(intermediates: tuple[Array, Array, Array], out: Array | None) -> Array:
        return _added(matmul(intermediates[2], w1), index, tokens).reshape(shape)

    def vjp_gates(intermediates: tuple[Array, Array, Array], out: Array | None) -> Array:
        dot = (intermediates[0] * outside).sum(axis=-1)
        total = xp.zeros((tokens + index.shape[1], of_gates[-1]), dtype)
        for e in range(E):  # empty slots write to the rows after the last token, which are cut off
            total[index[e], start + e] = dot[e]
        return total[:tokens].reshape(of_gates)

    vjps = (
        vjp_x,
        vjp_gates,
        lambda intermediates, out: product(intermediates[2].transpose(0, 2, 1), inside, dtype, out),
        lambda intermediates, out: intermediates[2].sum(axis=1, out=out),
        lambda intermediates, out: product(intermediates[1].transpose(0, 2, 1), hidden, dtype, out),
        lambda intermediates, out: intermediates[1].sum(axis=1, out=out),
    )
    y = _added(outside * weight[..., None], index, tokens).reshape(shape)
    return Result(y, vjps, prepare)


def _dispatch(gates: Array, start: int, E: int, slots: int) -> tuple[Array, Array]:
    """Returns (index, gates), both (E, N slots): for each row of experts `start` to start + E - 1,
    the token computed there, and its gate. A row without a token has gate 0 and a distinct index
    after the last token, so indices never repeat."""
    xp, (N, T, _) = xp_of(gates), gates.shape
    gates_here = gates[..., start : start + E].transpose(2, 0, 1)
    # a stable sort by "has no gate" puts the tokens with a gate first, in their order
    first = xp.argsort(gates_here == 0, axis=-1, kind="stable")[..., :slots]
    weight = xp.take_along_axis(gates_here, first, axis=-1)
    behind = N * T + xp.arange(N * slots).reshape(N, slots)
    index = xp.where(weight != 0, first + xp.arange(N)[:, None] * T, behind)
    return index.reshape(E, N * slots), weight.reshape(E, N * slots)


def _in_slots(rows: Array, index: Array) -> Array:
    """Gathers experts' tokens (E, N slots, C): rows[index[e, i]], or zeros."""
    xp = xp_of(rows)
    none = xp.zeros((index.shape[1], rows.shape[1]), rows.dtype)
    return xp.concatenate((rows, none))[index]


def _added(rows: Array, index: Array, tokens: int) -> Any:
    """Returns for each token the sum of its rows (E, N slots, C) over all experts; index[e, i] is
    the token of row i of expert e."""
    xp = xp_of(rows)
    total = xp.zeros((tokens + index.shape[1], rows.shape[-1]), rows.dtype)
    for e in range(len(rows)):  # one expert has a token at most once: `+=` by index adds it up
        total[index[e]] += rows[e]
    return total[:tokens].copy()  # a view would keep the rows of empty slots alive
