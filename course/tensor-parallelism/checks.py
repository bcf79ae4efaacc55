"""Checks of the assignment tensor-parallelism: values and gradients of one rank, and bytes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from numpy.random import Generator

import nnmpi
from classroom import Check, Collectives, Finding, counted, differs, explained, first
from classroom.sharded import (
    NONE,
    Argument,
    Axis,
    Sharded,
    compared,
    counted_sums,
    differs_from_one_rank,
    mine,
    on_one_rank,
    pair,
    span,
    used,
)
from classroom.traffic import sent
from nnmpi.comm import Comm
from nnmpi.nn import functional

ALLOWED: dict[str, tuple[str, ...]] = {}
RANKS = (1, 2, 3, 4, 8)
SENT = (2, 3, 8)
"""Numbers of ranks on which bytes are counted."""
ROWS, INPUTS, HIDDEN, CLASSES = 9, 10, 13, 11
"""No number of ranks divides 13 or 11, so parts are uneven."""
HEADS, WIDTH = 6, 3
"""Heads and their width: 8 ranks have 0 or 1 heads, 4 ranks 1 or 2."""


# ---- copy, reduce, and linear layers


def copies(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    x, g = rng.standard_normal((3, 4)), rng.standard_normal((comm.size, 3, 4))
    given = g[comm.rank].copy()
    y, vjp = pair(adapters.copy(Collectives(comm), x.copy()))
    dx, expected = vjp(given), g.sum(axis=0)
    return first(
        differs(comm.rank, y, x, "the result"),
        compared(comm, dx, expected, "the gradient of x", NONE, True),
        differs(comm.rank, given, g[comm.rank], "after the vjp, its argument g"),
    )


def reduces(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    x, g = rng.standard_normal((comm.size, 3, 4)), rng.standard_normal((3, 4))
    given, of_vjp = x[comm.rank].copy(), g.copy()
    hints = {"it is this rank's x: no all-reduce": x[comm.rank]}
    y, vjp = pair(adapters.reduce(Collectives(comm), given))
    y = np.array(y) if isinstance(y, ndarray) else y
    return first(
        explained(differs(comm.rank, y, x.sum(axis=0), "the result"), y, hints),
        differs(comm.rank, vjp(of_vjp), g, "the gradient of x"),
        differs(comm.rank, given, x[comm.rank], "after the call, its argument x"),
        differs(comm.rank, of_vjp, g, "after the vjp, its argument g"),
    )


def linear(x: Any, W: Any, b: Any) -> Any:
    return x @ W + b


def two_layers(x: Any, W1: Any, b1: Any, W2: Any, b2: Any) -> Any:
    return linear(functional.relu(linear(x, W1, b1)), W2, b2)


def column_linear(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    x, W, b = (rng.standard_normal(s) for s in ((ROWS, INPUTS), (INPUTS, HIDDEN), (HIDDEN,)))
    cut = Argument("x", x), Argument("W", W, Axis(1)), Argument("b", b, Axis(0))
    case = Sharded(cut, adapters.column_linear, linear, Axis(1))
    return differs_from_one_rank(comm, case, rng.standard_normal((ROWS, HIDDEN)))


def row_linear(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    x, W, b = (rng.standard_normal(s) for s in ((ROWS, HIDDEN), (HIDDEN, INPUTS), (INPUTS,)))
    cut = Argument("x", x, Axis(1)), Argument("W", W, Axis(0)), Argument("b", b)
    product = mine(comm, x, Axis(1)) @ mine(comm, W, Axis(0))
    hints = {
        "b is added on every rank, and so counts several times": x @ W + comm.size * b,
        "this is the product of this rank's parts alone: an all-reduce is missing": product + b,
    }
    case = Sharded(cut, adapters.row_linear, linear, hints=hints)
    return differs_from_one_rank(comm, case, rng.standard_normal((ROWS, INPUTS)))


def mlp_case(adapters: Any, rng: Generator) -> Sharded:
    shapes = (ROWS, INPUTS), (INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, INPUTS), (INPUTS,)
    axes = None, Axis(1), Axis(0), Axis(0), None
    cut = zip(("x", "W1", "b1", "W2", "b2"), map(rng.standard_normal, shapes), axes, strict=True)
    return Sharded(tuple(Argument(*row) for row in cut), adapters.mlp, two_layers)


def mlp(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    return differs_from_one_rank(comm, mlp_case(adapters, rng), rng.standard_normal((ROWS, INPUTS)))


# ---- cross-entropy


def cross_entropy(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    labels, start = rng.permutation(CLASSES)[:ROWS], span(CLASSES, comm.rank, comm.size).start

    def call(facade: Collectives, scores: ndarray) -> Any:
        return adapters.cross_entropy(facade, scores, labels.copy(), start)

    each = []
    for size, label in ((0, ""), (1000, "with scores near 1000: ")):
        scores = rng.standard_normal((ROWS, CLASSES)) + size
        hints = wrong_losses(comm, scores, labels)
        cut = Argument("scores", scores, Axis(1))
        truth = partial(functional.cross_entropy, target=labels)
        with np.errstate(all="ignore"):  # an overflow shows as a wrong number
            slips = wrong_gradients(comm, scores, labels)
            case = Sharded((cut,), call, truth, hints=hints, slips=slips)
            each.append(differs_from_one_rank(comm, case, np.array(rng.standard_normal()), label))
    return first(*each)


def wrong_losses(comm: Comm, scores: ndarray, labels: ndarray) -> dict[str, Any]:
    """The losses that well-known mistakes give, by what they are."""

    def log_sum(z: ndarray) -> ndarray:
        return np.asarray(np.log(np.exp(z).sum(axis=1)))

    rows, z = np.arange(len(labels)), scores - scores.max(axis=1, keepdims=True)
    cuts = [span(CLASSES, rank, comm.size) for rank in range(comm.size)]
    shifted = np.hstack([scores[:, c] - scores[:, c].max(axis=1, keepdims=True) for c in cuts])
    of_label, of_shifted = z[rows, labels], shifted[rows, labels]
    added = "the score of a label is added on ranks that do not have it"
    of_all = {
        f"{added}{how}": sum(z[:, c][rows, columns] for c, columns in zip(cuts, every, strict=True))
        for how, every in columns_of(labels, cuts).items()
    }
    alone = log_sum(z[:, cuts[comm.rank]])
    return {
        "the sum over the rows, not the mean": (log_sum(z) - of_label).sum(),
        "each rank subtracts the maximum of its own scores": (log_sum(shifted) - of_shifted).mean(),
        "only this rank's exponentials are in the sum": (alone - of_label).mean(),
        **{name: (log_sum(z) - score).mean() for name, score in of_all.items()},
    }


def columns_of(labels: ndarray, cuts: Sequence[slice]) -> dict[str, list[ndarray]]:
    """The columns in which ranks look up labels without a mask, by how they come to be valid."""
    shifted = [(labels - c.start, c.stop - c.start) for c in cuts]
    return {
        "": [at % n for at, n in shifted],
        ": its place is clipped": [np.clip(at, 0, n - 1) for at, n in shifted],
        ": its place is 0 there": [np.where((at >= 0) & (at < n), at, 0) for at, n in shifted],
    }


def wrong_gradients(
    comm: Comm, scores: ndarray, labels: ndarray
) -> dict[str, Callable[[ndarray], list[ndarray]]]:
    """The gradients of the scores if the vjp has a label on ranks that do not have it."""
    cuts = [span(CLASSES, rank, comm.size) for rank in range(comm.size)]
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    rows, p = np.arange(len(labels)), e / e.sum(axis=1, keepdims=True)

    def gradient(every: list[ndarray], g: ndarray) -> list[ndarray]:
        d = p.copy()
        for c, columns in zip(cuts, every, strict=True):
            d[rows, c.start + columns] -= 1
        return [g * d / len(labels)]

    taken = "the vjp subtracts 1 for a label on ranks that do not have it"
    ways = columns_of(labels, cuts).items()
    return {f"{taken}{how}": partial(gradient, every) for how, every in ways}


# ---- attention


def by_columns(y: Any) -> Any:
    """The heads (HEADS, ROWS, WIDTH) of an array (ROWS, HEADS * WIDTH)."""
    return y.reshape(ROWS, HEADS, WIDTH).transpose(1, 0, 2)


def by_rows(y: Any) -> Any:
    """Heads as they should not be cut, each from its own positions."""
    return y.reshape(HEADS, ROWS, WIDTH)


class Attention(NamedTuple):
    """Self-attention on one rank, or with a mistake.

    mask     the positions that each position sees
    factor   of the gradients of the products of x with Wq and Wk
    """

    mask: Any = np.tri(ROWS, dtype=bool)
    scale: float = WIDTH**-0.5
    heads: Callable[[Any], Any] = by_columns
    factor: float = 1.0

    def __call__(self, x: Any, Wq: Any, Wk: Any, Wv: Any, Wo: Any) -> Any:
        q, k, v = (self.heads(x @ W) for W in (Wq, Wk, Wv))
        q, k = (self.factor * y + (1 - self.factor) * y.detach() for y in (q, k))
        y = functional.scaled_dot_product_attention(q, k, v, self.mask, scale=self.scale)
        return y.transpose(1, 0, 2).reshape(ROWS, HEADS * WIDTH) @ Wo


def attention_case(adapters: Any, comm: Comm, rng: Generator) -> Sharded:
    width = HEADS * WIDTH
    shapes = (ROWS, INPUTS), *[(INPUTS, width)] * 3, (width, INPUTS)
    axes = None, *[Axis(1, WIDTH)] * 3, Axis(0, WIDTH)
    values = [rng.standard_normal(shape) for shape in shapes]
    cut = zip(("x", "Wq", "Wk", "Wv", "Wo"), values, axes, strict=True)
    heads = span(HEADS, comm.rank, comm.size)
    mistakes = {
        "scores are not divided by sqrt(d)": Attention(scale=1.0),
        "positions see later ones": Attention(np.full((ROWS, ROWS), True)),
        "positions see later ones, and not earlier ones": Attention(np.tri(ROWS, dtype=bool).T),
        "a head has columns of every position, not rows": Attention(heads=by_rows),
    }
    hints = {hint: wrong(*map(nnmpi.tensor, values)).data for hint, wrong in mistakes.items()}

    def attend(facade: Collectives, *parts: ndarray) -> Any:
        return adapters.attention(facade, *parts, heads.stop - heads.start)

    whole = Sharded(tuple(Argument(*row) for row in cut), attend, Attention(), hints=hints)
    slip = whole._replace(truth=Attention(factor=WIDTH**0.5))
    slips = {"the vjp does not divide by sqrt(d)": lambda g: on_one_rank(slip, g)[1]}
    return whole._replace(slips=slips)


def attention(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    g = rng.standard_normal((ROWS, INPUTS))
    return differs_from_one_rank(comm, attention_case(adapters, comm, rng), g)


# ---- bytes


def bytes_of_layers(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    m, k, n = 3, 7, 24
    x, h, W, V = (rng.standard_normal(s) for s in ((m, k), (m, n), (k, n), (n, k)))
    column = Argument("x", x), Argument("W", W, Axis(1)), Argument("b", np.ones(n), Axis(0))
    row = Argument("x", h, Axis(1)), Argument("W", V, Axis(0)), Argument("b", np.ones(k))
    both = *column, Argument("W2", V, Axis(0)), Argument("b2", np.ones(k))
    cases = (
        ("column_linear", Sharded(column, adapters.column_linear, linear, Axis(1)), 0, m * k, h),
        ("row_linear", Sharded(row, adapters.row_linear, linear), m * k, 0, x),
        ("mlp", Sharded(both, adapters.mlp, two_layers), m * k, m * k, x),
    )
    each = []
    for label, case, forward, backward, g in cases:
        each.append(counted_sums(comm, case, label, forward, backward, g))
    return first(*each)


def bytes_of_attention(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    numbers, g = ROWS * INPUTS, np.ones((ROWS, INPUTS))
    case = attention_case(adapters, comm, rng)
    return counted_sums(comm, case, "attention", numbers, numbers, g)


def bytes_of_cross_entropy(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    """At most three numbers of each row go from each rank to each other; 8 are its scores."""
    m, classes, facade = 3, 8 * comm.size, Collectives(comm)
    scores, labels = rng.standard_normal((m, classes)), rng.integers(0, classes, m)
    part = mine(comm, scores, Axis(1))
    loss = partial(adapters.cross_entropy, facade, part, labels, 8 * comm.rank)
    value, forward = sent(comm, loss)
    _, vjp = pair(value)
    _, backward = sent(comm, lambda: vjp(1.0))
    most = 3 * m * comm.size * (comm.size - 1) * 8
    if forward > most:
        text = f"the loss: {forward:,} bytes sent by all ranks, expected at most {most:,}"
        return Finding(comm.rank, f"{text}: are scores gathered?")
    expected = functional.cross_entropy(nnmpi.tensor(scores), labels).data
    return first(  # a loss that sends too little is wrong
        differs(comm.rank, pair(value)[0], expected, "the loss"),
        counted(comm.rank, backward, 0, "the vjp of cross_entropy: bytes sent by all ranks"),
    )


# ---- training


def trained(step: Callable[..., Any], values: Sequence[ndarray]) -> tuple[list[Any], list[ndarray]]:
    """Five losses and then the parameters; a step returns a loss and the gradients."""
    values, losses = [v.copy() for v in values], []
    for _ in range(5):
        loss, gradients = step(*values)
        losses.append(loss)
        values = [v - 0.05 * g for v, g in zip(values, gradients, strict=True)]
    return losses, values


def training(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    """A block of a transformer with residuals, and its loss, beside one rank."""
    block, layers = attention_case(adapters, comm, rng), mlp_case(adapters, rng)
    W, b = rng.standard_normal((INPUTS, CLASSES)), rng.standard_normal(CLASSES)
    head = Argument("W of the scores", W, Axis(1)), Argument("b of the scores", b, Axis(0))
    x, labels = block.arguments[0].values, rng.integers(0, CLASSES, ROWS)
    arguments = *block.arguments[1:], *layers.arguments[1:], *head
    facade, start = Collectives(comm), span(CLASSES, comm.rank, comm.size).start

    def cross_entropy(scores: ndarray) -> Any:
        return adapters.cross_entropy(facade, scores, labels, start)

    def sharded(*v: ndarray) -> tuple[Any, list[ndarray]]:
        y, of_block = used(partial(block.call, facade), (x, *v[:4]), x.shape, "attention")
        h, of_layers = used(partial(layers.call, facade), (x + y, *v[4:8]), x.shape, "mlp")
        column_linear = partial(adapters.column_linear, facade)
        of_scores = (x + y + h, *v[8:]), (ROWS, len(v[9]))
        scores, of_head = used(column_linear, *of_scores, "column_linear")
        loss, of_loss = used(cross_entropy, (scores,), (), "cross_entropy")
        d, *of_linear = of_head(*of_loss(1.0))
        dh, *of_mlp = of_layers(d)
        _, *of_attention = of_block(d + dh)
        return loss, [*of_attention, *of_mlp, *of_linear]

    def alone(*v: ndarray) -> tuple[Any, list[ndarray]]:
        tensors = [nnmpi.tensor(value, requires_grad=True) for value in v]
        y = nnmpi.tensor(x) + block.truth(nnmpi.tensor(x), *tensors[:4])
        scores = (y + layers.truth(y, *tensors[4:8])) @ tensors[8] + tensors[9]
        loss = functional.cross_entropy(scores, labels)
        loss.backward()
        return loss.data, [np.asarray(t.grad) for t in tensors]

    got, parts = trained(sharded, [mine(comm, a.values / 3, a.axis) for a in arguments])
    expected, values = trained(alone, [a.values / 3 for a in arguments])
    losses = enumerate(zip(got, expected, strict=True))
    each = zip(arguments, parts, values, strict=True)
    return first(
        *(differs(comm.rank, loss, e, "the loss", step) for step, (loss, e) in losses),
        *(differs(comm.rank, v, mine(comm, e, a.axis), a.name, 5) for a, v, e in each),
    )


CHECKS = (
    Check("copy", 8, "law", RANKS, copies),
    Check("reduce", 8, "law", RANKS, reduces),
    Check("column linear", 12, "law", RANKS, column_linear),
    Check("row linear", 12, "law", RANKS, row_linear),
    Check("mlp", 5, "law", RANKS, mlp),
    Check("bytes of layers", 10, "ledger", SENT, bytes_of_layers),
    Check("cross-entropy", 15, "law", RANKS, cross_entropy),
    Check("bytes of cross-entropy", 5, "ledger", SENT, bytes_of_cross_entropy),
    Check("attention", 15, "law", RANKS, attention),
    Check("bytes of attention", 5, "ledger", SENT, bytes_of_attention),
    Check("training", 5, "law", RANKS, training),
)
