"""Test cases of ops of PyTorch's layers besides core's: losses of elements, hardtanh."""

from itertools import product
from typing import Any

import numpy as np
from helpers.ops.opcases import Case, Draw, Op, of_torch

from nnmpi.addons.torchlike.ops import element_losses as losses
from nnmpi.addons.torchlike.ops import more_activations
from nnmpi.arrays import backend
from nnmpi.autograd import apply

WEIGHT = np.array([0.5, 2.0, 0.0, 1.5])


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

    def bce_of_known(t: Any, p: Any) -> Any:
        return bce(t, p, t.as_tensor(known).double())

    huge = np.array([1e4, -1e4, 800.0, 0.0]), np.array([1.0, 1.0, 0.0, 0.5])
    op = losses.bce_with_logits
    cases = {
        "bce": Case(losses.bce, (_between(0.01, 0.99, *sizes), targets), bce),
        "bce of certain predictions": Case(
            losses.bce, (certain,), bce_of_known, run=of_known, smooth=False
        ),
        "bce_with_logits": Case(op, (sizes, targets), logits),
        "bce_with_logits of huge numbers": Case(op, huge, logits, smooth=False),
        "bce_with_logits, weighted": Case(op, (sizes, targets), logits, {"pos_weight": WEIGHT}),
    }
    for beta, d in product((1.0, 0.3), ((5, 6), np.array([-0.3, 0.3, 1.0, -1.0, 0.0]))):
        kind = "" if isinstance(d, tuple) else " at its kinks"
        cases[f"smooth_l1 {beta}{kind}"] = Case(
            losses.smooth_l1, (d,), smooth, {"beta": beta}, smooth=not kind
        )
    return cases


def _hardtanh() -> dict[str, Case]:
    op, oracle, cases = more_activations.hardtanh, of_torch("nn.functional.hardtanh"), {}
    for low, high in ((0.0, 6.0), (-1.0, 1.5)):
        a, options = np.array([[-3.0, low, 0.1], [1.25, high, 8.0]]), {"low": low, "high": high}
        cases[f"hardtanh {low} {high}"] = Case(op, (a,), oracle, options, smooth=False)
    return cases


MORE_LAYERS = _of_elements() | _hardtanh()
