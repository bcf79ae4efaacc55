"""Inputs of a model for a batch of samples: one array, or several by position or by name.

    x                  the model is called as
    an array           model(x)
    a tuple of arrays  model(*x)
    a dict of arrays   model(**x)

Each array has one row per sample. Integers are indices, for an `nn.Embedding` say, and reach the
model unchanged. Other values are standardised: floats, booleans, and uint8, the pixels of images.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from nnmpi.options.quoting import shown

T = TypeVar("T")
U = TypeVar("U")

Structure: TypeAlias = T | tuple[T, ...] | dict[str, T]
"""One T for a single input, or a tuple or dict with one T for each of several inputs."""

Inputs: TypeAlias = Structure[np.ndarray]


def parts(x: Structure[T]) -> list[tuple[str, T]]:
    """Lists inputs as (name, array): "", or ".0", ".1" in a tuple, ".NAME" in a dict."""
    if isinstance(x, dict):
        return [(f".{name}", part) for name, part in x.items()]
    if isinstance(x, tuple):
        return [(f".{i}", part) for i, part in enumerate(x)]
    return [("", x)]


def like(x: Structure[Any], values: Sequence[T]) -> Structure[T]:
    """Returns `values`, one for each input, arranged as x is."""
    if isinstance(x, dict):
        return dict(zip(x, values, strict=True))
    return tuple(values) if isinstance(x, tuple) else values[0]


def aligned(x: Structure[Any], *others: Structure[Any]) -> list[tuple[Any, ...]]:
    """Returns a tuple for each input of a model: its value in x, then in each of `others`. Raises
    ValueError unless all have inputs of the same names."""
    named = [dict(parts(other)) for other in others]
    for by_name, other in zip(named, others, strict=True):
        if by_name.keys() != dict(parts(x)).keys():
            raise ValueError(
                f"the samples are {described(x)}, but {described(other)} is expected: give the "
                "same number of arrays, under the same names"
            )
    return [(a, *(by_name[name] for by_name in named)) for name, a in parts(x)]


def each(function: Callable[..., U], x: Structure[Any], *others: Structure[Any]) -> Structure[U]:
    """Applies a function to each input of x, with its counterparts in `others`."""
    return like(x, [function(*row) for row in aligned(x, *others)])


def described(x: Structure[Any]) -> str:
    """The structure of inputs in words: "one array", "a tuple of 2", "a dict of a, b"."""
    if isinstance(x, dict):
        return f"a dict of {', '.join(map(shown, x))}"
    return f"a tuple of {len(x)}" if isinstance(x, tuple) else "one array"


def arrays(x: Inputs) -> list[np.ndarray]:
    """Returns the arrays of a model's inputs x, a single array, a tuple or a dict, as a list."""
    return [array for _, array in parts(x)]


def is_index(array: np.ndarray) -> bool:
    """True if an array holds indices: integers other than uint8."""
    return array.dtype.kind in "iu" and array.dtype != np.uint8


def is_one_row(array: np.ndarray) -> bool:
    """True if all rows are the same memory, as in a data set made by `blank`."""
    return array.strides[:1] == (0,)


def take(x: Inputs, rows: np.ndarray) -> Inputs:
    """Returns the given rows of each of a model's inputs, in new arrays with the structure of x."""
    if isinstance(x, np.ndarray):
        return x.take(rows, axis=0)
    return each(lambda array: array.take(rows, axis=0), x)


def zeros(x: Inputs, samples: int, dtype: Any) -> Inputs:
    """A batch of `samples` zeros as a model gets it: integer indices keep their dtype."""

    def zeros_like(array: np.ndarray) -> np.ndarray:
        array_dtype = array.dtype if is_index(array) else dtype
        return np.zeros((samples, *array.shape[1:]), array_dtype)

    return each(zeros_like, x)
