"""Inputs: what a model is given of samples: one array, or several by position or by name.

    x                  the model is called as
    an array           model(x)
    a tuple of arrays  model(*x)
    a dict of arrays   model(**x)

Each has one row a sample. Integers are indices, for an `nn.Embedding` say, and reach the model as
they are. Other numbers are standardised: floats, booleans, and uint8, which are the pixels of
images.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from nnmpi.options.quoting import shown

T = TypeVar("T")
U = TypeVar("U")

Structure: TypeAlias = T | tuple[T, ...] | dict[str, T]
"""One thing, or one for each of several inputs."""

Inputs: TypeAlias = Structure[np.ndarray]


def parts(x: Structure[T]) -> list[tuple[str, T]]:
    """(name, part) of each input: "" for one alone, ".0", ".1" in a tuple, ".NAME" in a dict."""
    if isinstance(x, dict):
        return [(f".{name}", part) for name, part in x.items()]
    if isinstance(x, tuple):
        return [(f".{i}", part) for i, part in enumerate(x)]
    return [("", x)]


def like(x: Structure[Any], values: Sequence[T]) -> Structure[T]:
    """The structure of x with these values, one for each input."""
    if isinstance(x, dict):
        return dict(zip(x, values, strict=True))
    return tuple(values) if isinstance(x, tuple) else values[0]


def aligned(x: Structure[Any], *others: Structure[Any]) -> list[tuple[Any, ...]]:
    """Each input, and what `others` have under its name; ValueError unless they have the same."""
    named = [dict(parts(other)) for other in others]
    for known, other in zip(named, others, strict=True):
        if known.keys() != dict(parts(x)).keys():
            raise ValueError(
                f"the samples are {described(x)}, and {described(other)} is expected: give as "
                "many arrays under the same names"
            )
    return [(a, *(known[name] for known in named)) for name, a in parts(x)]


def each(function: Callable[..., U], x: Structure[Any], *others: Structure[Any]) -> Structure[U]:
    """The function of each input, and of what `others` have under its name."""
    return like(x, [function(*row) for row in aligned(x, *others)])


def described(x: Structure[Any]) -> str:
    """How many inputs there are, in words."""
    if isinstance(x, dict):
        return f"a dict of {', '.join(map(shown, x))}"
    return f"a tuple of {len(x)}" if isinstance(x, tuple) else "one array"


def arrays(x: Inputs) -> list[np.ndarray]:
    """The array of each input."""
    return [array for _, array in parts(x)]


def is_index(array: np.ndarray) -> bool:
    """Whether an array holds indices: integers other than uint8."""
    return array.dtype.kind in "iu" and array.dtype != np.uint8


def is_one_row(array: np.ndarray) -> bool:
    """Whether all rows are the same memory, of a data set without its samples."""
    return array.strides[:1] == (0,)


def take(x: Inputs, rows: np.ndarray) -> Inputs:
    """The inputs of these rows, in new arrays."""
    if isinstance(x, np.ndarray):
        return x.take(rows, axis=0)
    return each(lambda array: array.take(rows, axis=0), x)


def zeros(x: Inputs, samples: int, dtype: Any) -> Inputs:
    """A batch of zeros as a model gets them: indices, and numbers of this type."""

    def of(array: np.ndarray) -> np.ndarray:
        kind = array.dtype if is_index(array) else dtype
        return np.zeros((samples, *array.shape[1:]), kind)

    return each(of, x)
