"""Compares gradients with finite differences along a random direction, by two evaluations of f."""

from collections.abc import Callable

import numpy as np

from nnmpi.autograd.tensor import Tensor


def directional_error(
    f: Callable[..., Tensor], *arrays: np.ndarray, seed: int = 0, step: float = 1e-6
) -> float:
    """Returns the relative difference between two derivatives of f along a random direction: by
    finite differences of length `step`, and by `backward`, for float64 `arrays`. The value is
    weighted by a random array, so that each of its elements counts."""
    rng = np.random.default_rng(seed)
    directions = [rng.standard_normal(a.shape) for a in arrays]
    leaves = [Tensor(a.copy(), requires_grad=True) for a in arrays]
    y = f(*leaves)
    weights = rng.standard_normal(y.shape)
    y.backward(weights)

    def weighted(t: float) -> float:
        moved = (Tensor(a + t * d) for a, d in zip(arrays, directions, strict=True))
        return float((f(*moved).numpy() * weights).sum())

    measured = (weighted(step) - weighted(-step)) / (2 * step)
    grads = (np.zeros_like(a.array) if a.grad_array is None else a.grad_array for a in leaves)
    predicted = sum(float((g * d).sum()) for g, d in zip(grads, directions, strict=True))
    return abs(measured - predicted) / max(abs(measured), abs(predicted), 1e-3)
