"""Adam on one rank, and the comparison of values whose parts ranks have updated."""

import numpy as np
from numpy import ndarray

from classroom.check import Finding
from classroom.compare import apart, differs, explained
from nnmpi.comm import Comm

ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
"""The options of Adam in all checks."""


def parts(n: int, count: int) -> list[slice]:
    """The parts of n elements, as `Comm.chunk` cuts them, in the order of ranks."""
    return [slice(n * i // count, n * (i + 1) // count) for i in range(count)]


def adam(values: ndarray, m: ndarray, v: ndarray, g: ndarray, steps: int) -> None:
    """Updates values, m and v in place by the step of this number, from 1."""
    m += (1 - ADAM["beta1"]) * (g - m)
    v += (1 - ADAM["beta2"]) * (g * g - v)
    root = np.sqrt(v / (1 - ADAM["beta2"] ** steps)) + ADAM["eps"]
    values -= ADAM["lr"] * m / (1 - ADAM["beta1"] ** steps) / root


def alone(shares: ndarray, values: ndarray) -> ndarray:
    """The values after a first step in which each rank uses its share as the gradient."""
    cut = parts(len(values), len(shares))
    g = np.concatenate([share[part] for share, part in zip(shares, cut, strict=True)])
    result, m, v = values.copy(), np.zeros_like(g), np.zeros_like(g)
    adam(result, m, v, g, 1)
    return result


def wrong_values(
    comm: Comm,
    got: ndarray,
    expected: ndarray,
    last: ndarray,
    step: int,
    hints: dict[str, ndarray],
) -> Finding | None:
    """Compares values part by part, and says whose part is wrong."""
    for rank, part in enumerate(parts(len(expected), comm.size)):
        of_part = expected.copy()
        of_part[part] = got[part]
        wrong = differs(comm.rank, of_part, expected, f"part of rank {rank}: values", step)
        if wrong:
            factor = (got - last)[part][0] / (expected - last)[part][0]
            known = {
                "it did not change in this step": last,
                f"the step is {apart(factor, 1)[0]} times that of Adam": last
                + factor * (expected - last),
                **hints,
            }
            return explained(wrong, got[part], {hint: v[part] for hint, v in known.items()})
    return None
