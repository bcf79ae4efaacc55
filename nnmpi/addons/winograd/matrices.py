"""The matrices of Winograd's convolutions F(2x2, 3x3) and F(4x4, 3x3).

Along one axis, a tile of m + 2 numbers d gives the m outputs y of a filter w of 3 numbers:

    y = A @ ((G @ w) * (B @ d))     with m + 2 products instead of 3 * m

Literature writes A and B transposed. Along two axes, each matrix is the Kronecker product with
itself. The matrices of F(2x2) are those of Lavin and Gray (2015), for F(4x4) see POINTS.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np


class Transform(NamedTuple):
    """The three Kronecker matrices of F(m x m, 3x3): B (t*t, t*t), G (t*t, 9), A (m*m, t*t)."""

    B: np.ndarray
    G: np.ndarray
    A: np.ndarray


POINTS = (5 / 8, 3 / 2)
"""F(4x4) evaluates polynomials at 0, at these points, at their negatives, and at infinity. Its
error is a third of that with the points 1 and 2. All products of these points below are exact in
float32."""


def _toom_cook(a: float, b: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes B (6, 6), G (6, 3) and A (4, 6) of F(4, 3) for the points 0, a, -a, b, -b and
    infinity.

    The row of B of a point p is the product of (x - q) over the other points q, lowest power first;
    the row of G is (1, p, p^2) over this product at p, and the column of A is (1, p, p^2, p^3).
    """
    points = [0.0, a, -a, b, -b]
    others = [[q for q in points if q != p] for p in points]
    B = np.array([[*np.poly(rest)[::-1], 0] for rest in others] + [np.poly(points)[::-1]])
    at = [np.prod([p - q for q in rest]) for p, rest in zip(points, others, strict=True)]
    powers = np.vander(points, 4, increasing=True)
    G = np.vstack([powers[:, :3] / np.array(at)[:, None], [0, 0, 1]])
    return B, G, np.column_stack([powers.T, [0, 0, 0, 1]])


@lru_cache(maxsize=8)
def transform(m: int, dtype: str) -> Transform:
    """Returns the matrices of F(m x m, 3x3) for m = 2 or 4: F(2x2) is as exact as a direct sum;
    F(4x4) does less work and loses half a digit."""
    if m == 2:
        B = [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]
        G = [[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]]
        A = [[1, 1, 1, 0], [0, 1, -1, -1]]
        scale = 2
    else:
        B, G, A = (X.tolist() for X in _toom_cook(*POINTS))
        scale = 1
    square = [np.array(X, np.float64) for X in (B, G, A)]
    B2, G2, A2 = (np.kron(X, X).astype(dtype) for X in square)
    return Transform(B2, (G2 / scale**2).astype(dtype), A2)
