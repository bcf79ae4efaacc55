"""`gradcheck`: compares each derivative that `backward` gives with finite differences."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.functions.differentiation import grad
from nnmpi.autograd.tensor import Tensor


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Returns True if `backward` and finite differences of length `eps` give the same Jacobian, up
    to `atol` and `rtol`, of each result of `func` with respect to each of the `inputs` that
    requires a gradient; these should be float64. Otherwise it raises RuntimeError with both
    derivatives, or returns False without `raise_exception`."""
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
    """Returns for each result of `func` its Jacobian with respect to t, one of the arguments, by
    backward passes and by finite differences; one row per element of the result."""
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
    """Returns the results of a function that are floating-point tensors with a gradient."""
    several = value if isinstance(value, tuple | list) else [value]
    return [y for y in several if isinstance(y, Tensor) and y.requires_grad]
