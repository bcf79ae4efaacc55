"""In-place methods that fill their tensor with random numbers and return it, under PyTorch's names.

`normal_` and `uniform_` of a parameter, or of its `data`, draw what `nn.init` draws: values that
depend on the seed and the path of the parameter. Those of other tensors depend on the seed and the
number of tensors drawn before, or on a generator.
"""

from typing import Any, TypeVar

import numpy as np

from nnmpi.addons.torchlike import init
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.autograd import Tensor, apply, no_grad, on_host
from nnmpi.nn.random_numbers import multinomial as multinomial  # a method too
from nnmpi.nn.random_numbers import rand
from nnmpi.nn.seeding import Generator, drawing_from

T = TypeVar("T", bound=Tensor)


def normal_(t: T, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> T:
    """Replaces the elements by normal values, drawn from `generator` if given."""
    t.to_write(0)
    with drawing_from(generator):
        return init.normal_(t, mean, std)


def uniform_(t: T, a: float = 0.0, b: float = 1.0, *, generator: Generator | None = None) -> T:
    """Replaces the elements by uniform values, drawn from `generator` if given."""
    t.to_write(0)
    with drawing_from(generator):
        return init.uniform_(t, a, b)


def bernoulli_(t: T, p: Any = 0.5, *, generator: Generator | None = None) -> T:
    """Replaces each element by 1 with probability p (number or tensor), else 0."""
    t.to_write(0)
    t[...] = _ones_and_zeros(np.broadcast_to(on_host(p), t.shape), t, generator)
    return t


def bernoulli(t: Any, *, generator: Generator | None = None) -> Tensor:
    """Returns 1 with each element of t as probability, else 0; waits for the device."""
    probabilities = on_host(t)
    if ((probabilities < 0) | (probabilities > 1)).any():
        raise ValueError("bernoulli: probabilities must be from 0 to 1")
    like = t if isinstance(t, Tensor) else Tensor(probabilities)
    return apply(_drawn, like, values=_ones_and_zeros(probabilities, like, generator))


def _drawn(a: Array, *, values: Array) -> Result:
    return Result(values, (lambda g, out: xp_of(g).zeros_like(g),))  # as in PyTorch


def exponential_(t: T, lambd: float = 1.0, *, generator: Generator | None = None) -> T:
    """Replaces the elements by values of the exponential distribution with rate `lambd`."""
    t.to_write(0)
    with no_grad():
        u = rand(t.shape, dtype="float64", generator=generator).numpy()
        t[...] = backend.of(t._array).asarray(-np.log1p(-u) / lambd, t.dtype)
    return t


def _ones_and_zeros(p: np.ndarray, like: Tensor, generator: Generator | None) -> Any:
    drawn = rand(p.shape, dtype="float64", generator=generator).numpy() < p
    return backend.of(like._array).asarray(drawn, like.dtype)
