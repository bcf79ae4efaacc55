"""Compares gradients with finite differences: along a random direction, by two evaluations of f, or
for each element."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnmpi.autograd.differentiation import grad
from nnmpi.autograd.tensor import Tensor


def directional_error(
    f: Callable[..., Tensor], *arrays: np.ndarray, seed: int = 0, step: float = 1e-6
) -> float:
    """The relative difference between the derivative of f along a random direction, by finite
    differences, and gradient . direction; `arrays` are float64.

    The value of f is weighted by a fixed random array, so that every element counts.
    """
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


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """True if the derivative of each element of each result for each element of each input that
    requires a gradient is that of finite differences; inputs should be float64.

    Otherwise it raises RuntimeError with both derivatives, or returns False.
    """
    given = [inputs] if isinstance(inputs, Tensor) else [*inputs]
    for i, t in enumerate(given):
        if not isinstance(t, Tensor) or not t.requires_grad:
            continue
        for o, (ours, measured) in enumerate(_derivatives(func, given, t, eps)):
            if np.allclose(ours, measured, rtol, atol):
                continue
            if not raise_exception:
                return False
            raise RuntimeError(
                f"gradcheck: the derivatives of result {o} for input {i} differ by up to "
                f"{abs(ours - measured).max():.3g}: backward gives\n{ours}\nand finite differences "
                f"give\n{measured}"
            )
    return True


def _derivatives(
    func: Callable[..., Any], given: Sequence[Any], t: Tensor, eps: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each result the matrices of the derivatives of its elements (rows) for those of t: by
    backward passes, and by finite differences."""
    results = _results(func(*given))
    flat = t.array.reshape(-1)
    measured = [np.zeros((y.numel(), flat.size)) for y in results]
    for k in range(flat.size):
        value, moved = flat[k].item(), []
        for step in (eps, -eps):
            flat[k] = value + step
            moved.append([y.numpy().reshape(-1).copy() for y in _results(func(*given))])
        flat[k] = value
        for matrix, up, down in zip(measured, *moved, strict=True):
            matrix[:, k] = (up - down) / (2 * eps)
    ours = [np.zeros_like(matrix) for matrix in measured]
    for matrix, y in zip(ours, results, strict=True):
        for row, chosen in zip(matrix, np.eye(y.numel(), dtype=y.dtype), strict=True):
            weights = Tensor(chosen.reshape(y.shape))
            (g,) = grad(y, t, weights, retain_graph=True, allow_unused=True)
            row[:] = 0 if g is None else g.numpy().reshape(-1)
    return [*zip(ours, measured, strict=True)]


def _results(value: Any) -> list[Tensor]:
    """The results of a function that have gradients."""
    several = value if isinstance(value, tuple | list) else [value]
    return [y for y in several if isinstance(y, Tensor) and y.requires_grad]
