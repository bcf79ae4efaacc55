"""Test cases of ops: losses."""

from itertools import product
from typing import Any

import numpy as np
from helpers.ops.opcases import Case, Draw, Op
from helpers.ops.opcases_layers import channels_last

from nnmpi.arrays import backend
from nnmpi.autograd import apply
from nnmpi.autograd.ops import losses, softmax

LABELS = np.array([2, 0, 0, 3, 1])
SOME = np.array([2, -100, 0, 3, -100])
"""Labels, of which PyTorch ignores two."""
WEIGHT = np.array([0.5, 2.0, 0.0, 1.5])


def _oracle(name: str) -> Any:
    def run(t: Any, *args: Any, weight: Any = None, smoothing: float = 0.0, **options: Any) -> Any:
        options |= {"label_smoothing": smoothing} if smoothing else {}
        weight = None if weight is None else t.as_tensor(weight)
        return getattr(t.nn.functional, name)(*args, weight=weight, **options)

    return run


def _of_classes() -> dict[str, Case]:
    """The mean of nothing is left out: PyTorch has NaN for it, we have 0."""
    cases = {}
    for reduction, labels in product(softmax.REDUCTIONS, (LABELS, LABELS[:1], LABELS[:0])):
        if len(labels) or reduction != "mean":
            name, args = f"{reduction} {len(labels)}", ((len(labels), 4), labels)
            options, oracle = {"reduction": reduction}, _oracle("cross_entropy")
            cases[f"cross_entropy {name}"] = Case(softmax.cross_entropy, args, oracle, options)
        at_positions = (2, 4, 3, 5), np.resize(LABELS, (2, 3, 5))
        cases[f"cross_entropy {reduction} of positions {len(labels)}"] = Case(
            softmax.cross_entropy,
            at_positions if len(labels) == 1 else (channels_last(2, 4, 3, 5), at_positions[1]),
            _oracle("cross_entropy"),
            {"reduction": reduction},
        )
    inputs: dict[str, Any] = {
        "rows": ((5, 4), SOME),
        "no rows": ((0, 4), SOME[:0]),
        "images": ((2, 4, 3, 5), np.resize(SOME, (2, 3, 5))),
        "one ignored": ((5, 4), LABELS),
    }
    for reduction, (of, args), weight in product(
        softmax.REDUCTIONS, inputs.items(), (None, WEIGHT)
    ):
        if of == "no rows" and reduction == "mean":
            continue
        options = {"reduction": reduction, "ignore_index": 3 if of == "one ignored" else -100}
        name = f"{reduction} of {of}{'' if weight is None else ', weighted'}"
        options |= {} if weight is None else {"weight": weight}
        cases[f"nll {name}"] = Case(losses.nll, args, _oracle("nll_loss"), options)
        for smoothing in (0.0, 0.3):
            cases[f"weighted_cross_entropy {name}, smoothing {smoothing}"] = Case(
                losses.weighted_cross_entropy,
                args,
                _oracle("cross_entropy"),
                options | {"smoothing": smoothing},
            )
    return cases


def _between(low: float, high: float, *sizes: int) -> Draw:
    return lambda rng: np.asarray(rng.uniform(low, high, sizes))


def _of_elements() -> dict[str, Case]:
    def bce(t: Any, p: Any, y: Any) -> Any:
        return t.nn.functional.binary_cross_entropy(p, y, reduction="none")

    def logits(t: Any, z: Any, y: Any, pos_weight: Any = 1.0) -> Any:
        pos_weight = t.as_tensor(pos_weight, dtype=z.dtype)
        name = "binary_cross_entropy_with_logits"
        return getattr(t.nn.functional, name)(z, y, reduction="none", pos_weight=pos_weight)

    def smooth(t: Any, d: Any, beta: float) -> Any:
        return t.nn.functional.smooth_l1_loss(d, t.zeros_like(d), reduction="none", beta=beta)

    sizes, targets = (3, 4), _between(0, 1, 3, 4)
    certain, known = np.array([0.0, 1.0, 1.0, 0.0, 1e-30]), np.array([0, 1, 0, 1, 1])

    def of_known(op: Op, p: Any) -> Any:
        return apply(op, p, backend.of(p.array).asarray(known, p.dtype))

    huge = np.array([1e4, -1e4, 800.0, 0.0])
    op = losses.bce_with_logits
    cases = {
        "bce": Case(losses.bce, (_between(0.01, 0.99, *sizes), targets), bce),
        "bce of certain predictions": Case(
            losses.bce,
            (certain,),
            lambda t, p: bce(t, p, t.as_tensor(known).double()),
            run=of_known,
            smooth=False,
        ),
        "bce_with_logits": Case(op, (sizes, targets), logits),
        "bce_with_logits of huge numbers": Case(
            op, (huge, np.array([1.0, 1.0, 0.0, 0.5])), logits, smooth=False
        ),
        "bce_with_logits, weighted": Case(op, (sizes, targets), logits, {"pos_weight": WEIGHT}),
    }
    for beta, d in product((1.0, 0.3), ((5, 6), np.array([-0.3, 0.3, 1.0, -1.0, 0.0]))):
        kind = "" if isinstance(d, tuple) else " at its kinks"
        cases[f"smooth_l1 {beta}{kind}"] = Case(
            losses.smooth_l1, (d,), smooth, {"beta": beta}, smooth=not kind
        )
    return cases


LOSSES = _of_classes() | _of_elements()
