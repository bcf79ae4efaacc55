"""Your tape: a class, ten functions of tensors and `backward`. README.md says what they do.

Arrays are float64. In the docstrings `g` is the gradient of the result: it has the shape of the
result. The gradient of an argument has the shape of that argument.
"""

import numpy as np


class Tensor:
    """An array `data`, its gradient `grad`, and whatever `backward` needs to know.

    data: float64 array
    grad: None until `backward` reaches this tensor; then an array with the shape of `data`
    """

    def __init__(self, data: np.ndarray) -> None:
        raise NotImplementedError("Tensor")


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a (m, k) times b (k, n): (m, n)."""
    raise NotImplementedError("matmul")


def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b, with the broadcasting of NumPy."""
    raise NotImplementedError("add")


def mul(a: Tensor, b: Tensor) -> Tensor:
    """a * b, element by element, with the broadcasting of NumPy."""
    raise NotImplementedError("mul")


def exp(a: Tensor) -> Tensor:
    """The exponential of each element."""
    raise NotImplementedError("exp")


def log(a: Tensor) -> Tensor:
    """The natural logarithm of each element."""
    raise NotImplementedError("log")


def relu(a: Tensor) -> Tensor:
    """max(a, 0) of each element."""
    raise NotImplementedError("relu")


def sum(a: Tensor, axis: int) -> Tensor:
    """The sum over one axis, which the result no longer has: (m, k, n), axis 1: (m, n)."""
    raise NotImplementedError("sum")


def transpose(a: Tensor, axes: tuple[int, ...]) -> Tensor:
    """a with its axes in another order, as a.data.transpose(axes)."""
    raise NotImplementedError("transpose")


def take(a: Tensor, index: np.ndarray) -> Tensor:
    """Row index[i, j, ...] of a (n, d), for integers of any shape: (*index.shape, d).

    With a table of vectors as `a` it is an embedding. A row may occur several times.
    """
    raise NotImplementedError("take")


def cross_entropy(scores: Tensor, labels: np.ndarray) -> Tensor:
    """The mean over rows i of -log(softmax(scores[i])[labels[i]]): shape ().

    scores: (n, classes), of any size, such as 1000
    labels: (n,) integers
    """
    raise NotImplementedError("cross_entropy")


def backward(root: Tensor, g: np.ndarray) -> None:
    """Adds to `grad` of each leaf the gradient of sum(g * root).

    g: the shape of root.data
    A leaf is a tensor made by Tensor(data). Its `grad` of None counts as zeros.
    """
    raise NotImplementedError("backward")
