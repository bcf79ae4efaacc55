"""Test cases of ops: losses of classes."""

from itertools import product
from typing import Any

import numpy as np
from helpers.ops.opcases import Case
from helpers.ops.opcases_layers import channels_last

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
    cases, oracle = {}, _oracle("cross_entropy")
    places = np.resize(LABELS, (2, 3, 5))
    for reduction, labels in product(softmax.REDUCTIONS, (LABELS, LABELS[:1], LABELS[:0])):
        options: dict[str, Any] = {"reduction": reduction}
        if len(labels) or reduction != "mean":
            name, args = f"{reduction} {len(labels)}", ((len(labels), 4), labels)
            cases[f"cross_entropy {name}"] = Case(softmax.cross_entropy, args, oracle, options)
        images: Any = (2, 4, 3, 5) if len(labels) == 1 else channels_last(2, 4, 3, 5)
        name, args = f"{reduction} of positions {len(labels)}", (images, places)
        cases[f"cross_entropy {name}"] = Case(softmax.cross_entropy, args, oracle, options)
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
            smoothed = options | {"smoothing": smoothing}
            cases[f"weighted_cross_entropy {name}, smoothing {smoothing}"] = Case(
                losses.weighted_cross_entropy, args, oracle, smoothed
            )
    return cases


LOSSES = _of_classes()
