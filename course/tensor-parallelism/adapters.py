"""Your tensor parallelism: layers of which each rank has a part. README.md says what to do.

Each function returns its result and a vjp. A vjp takes the gradient of the result and returns the
gradients of the arguments. Arrays are float64, and no argument is changed. A *part* is this rank's
columns, rows, classes or heads; parts of ranks may differ in length. What is not called a part has
the same values on all ranks. `comm` has the rank, the size, and sums of arrays: see README.md.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from nnmpi.comm import Comm

Vjp = Callable[[Any], Any]


def copy(comm: Comm, x: np.ndarray) -> tuple[np.ndarray, Vjp]:
    """x goes into a layer of which each rank has a part: x itself.

    vjp(g): g is the gradient that this rank's part gives; the gradient of x is the sum over ranks.
    """
    raise NotImplementedError("copy")


def reduce(comm: Comm, x: np.ndarray) -> tuple[np.ndarray, Vjp]:
    """The sum over the ranks of their x, which differ.

    vjp(g): the gradient of this rank's x.
    """
    raise NotImplementedError("reduce")


def column_linear(
    comm: Comm, x: np.ndarray, W: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, Vjp]:
    """This rank's columns of x W + b: (m, k), part (k, n), part (n,) -> part (m, n).

    vjp(g): (gradient of x, of W, of b) for g (m, n)
    """
    raise NotImplementedError("column_linear")


def row_linear(comm: Comm, x: np.ndarray, W: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, Vjp]:
    """The whole x W + b: part (m, k) of columns, part (k, n) of rows, (n,) -> (m, n).

    vjp(g): (gradient of x, of W, of b) for g (m, n)
    """
    raise NotImplementedError("row_linear")


def mlp(
    comm: Comm,
    x: np.ndarray,
    W1: np.ndarray,
    b1: np.ndarray,
    W2: np.ndarray,
    b2: np.ndarray,
) -> tuple[np.ndarray, Vjp]:
    """relu(x W1 + b1) W2 + b2: (m, k), parts (k, h), (h,), (h, n), and (n,) -> (m, n).

    vjp(g): (gradient of x, of W1, of b1, of W2, of b2) for g (m, n)
    """
    raise NotImplementedError("mlp")


def cross_entropy(
    comm: Comm, scores: np.ndarray, labels: np.ndarray, first: int
) -> tuple[float, Vjp]:
    """The mean over rows i of -log(softmax(scores[i])[labels[i]]): part (m, c), (m,) -> number.

    scores: this rank's classes, which are first to first + c - 1; c is at least 1
    labels: integers, classes of any rank
    vjp(g): the gradient of this rank's scores (m, c) for a number g
    """
    raise NotImplementedError("cross_entropy")


def attention(
    comm: Comm,
    x: np.ndarray,
    Wq: np.ndarray,
    Wk: np.ndarray,
    Wv: np.ndarray,
    Wo: np.ndarray,
    heads: int,
) -> tuple[np.ndarray, Vjp]:
    """Causal self-attention by heads: (t, k), parts (k, heads * d) three times, (heads * d, k).

    heads: the number of this rank's heads, which may be 0; head j has columns j * d to (j + 1) * d
    -> (t, k): the sum over all heads of all ranks of softmax(q kᵀ / sqrt(d)) v Wo[rows of the head]
    vjp(g): (gradient of x, of Wq, of Wk, of Wv, of Wo) for g (t, k)
    """
    raise NotImplementedError("attention")
