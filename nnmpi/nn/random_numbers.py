"""Random numbers that a user's module draws in `forward`, and random tensors of a program.

`random` gives the same values however work is divided among ranks. The random tensors, under
PyTorch's names, depend on the seed of `nnmpi.manual_seed` or `nnmpi.seeded` (0 by default) and on
the number of random tensors drawn before: they are equal on all ranks if all ranks draw the same
ones. Weights do not depend on them.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from nnmpi.arrays import backend, keyed
from nnmpi.arrays.backend import CPU, Array, of
from nnmpi.autograd import Tensor, array_of, on_host
from nnmpi.autograd.arguments import flat, sizes_of
from nnmpi.autograd.creation import creator, like
from nnmpi.autograd.functional import tensor
from nnmpi.nn.module import Module
from nnmpi.nn.passes import Pass, current_pass
from nnmpi.nn.place import Place, StateArray
from nnmpi.nn.seeding import Generator, drawing_from, next_draw

__all__ = [
    "generator_state", "multinomial", "rand", "rand_like", "randint", "randn", "randn_like",
    "random", "randperm",
]  # fmt: skip


def generator_state(name: str, generator: np.random.Generator) -> StateArray:
    """Returns the state of a NumPy generator as 64-bit words, for `state_arrays` of a module that
    draws from it. After a restore all ranks continue from the state of the first rank."""

    def read(lo: int, hi: int) -> np.ndarray:
        return np.array([*_words(generator.bit_generator.state)], np.uint64)[lo:hi]

    def write(words: np.ndarray) -> None:
        state = generator.bit_generator.state
        generator.bit_generator.state = _of_words(state, iter(words.tolist()))

    n = len([*_words(generator.bit_generator.state)])
    return StateArray(Place.of_whole(name, (n,)), (0,), 0, n, "uint64", True, read, write)


def _words(state: Any) -> Iterator[int]:
    """Yields a generator's state as 64-bit words, two for 128 bits."""
    if isinstance(state, dict):
        for value in state.values():
            yield from _words(value)
    elif isinstance(state, np.ndarray):
        yield from state.tolist()
    elif not isinstance(state, str):
        yield from (state % (1 << 64), state >> 64)


def _of_words(state: Any, words: Iterator[int]) -> Any:
    """Returns a generator's state with its numbers taken from `words`."""
    if isinstance(state, dict):
        return {name: _of_words(value, words) for name, value in state.items()}
    if isinstance(state, np.ndarray):
        return np.array([next(words) for _ in state], state.dtype)
    return state if isinstance(state, str) else next(words) + (next(words) << 64)


def random(
    module: Module,
    shape: tuple[int, ...],
    *,
    normal: bool = False,
    name: str = "",
    like: Tensor | None = None,
) -> Array:
    """Returns random values of a shape whose first axis counts samples: uniform in (0, 1), or with
    `normal` standard normal.

    They depend on the seed of the model, the step, the path of `module`, the name, and the sample:
    not on ranks, micro-batches, or repeated passes. Two calls in one `forward` need two names to
    give different values. Type and device are those of `like`, or float32 on the CPU.
    """
    current = current_pass.get() or Pass(module.root.passes)
    on, dtype = (
        (CPU, np.dtype(np.float32)) if like is None else (backend.of(like.array), like.dtype)
    )
    if current.samples is not None and (not shape or len(current.samples) != shape[0]):
        raise ValueError(
            f"random numbers of shape {shape} in a batch of {len(current.samples)}: the first axis "
            "must be the samples"
        )
    rows: Any = on.xp.arange(shape[0]) if current.samples is None else on.asarray(current.samples)
    columns = on.xp.arange(int(np.prod(shape[1:])), dtype="uint32")
    key = current.key(module.root.seed, "random", module.path, name)
    draw = keyed.normal if normal else keyed.uniform
    numbers: Array = draw(key, columns[None], rows[:, None]).reshape(shape).astype(dtype)
    return numbers if normal else below_one(numbers)


def below_one(numbers: Array) -> Array:
    """Replaces each 1 among uniform values, from rounding, by the largest number below."""
    unit, zero = numbers.dtype.type(1), numbers.dtype.type(0)
    return backend.xp_of(numbers).minimum(numbers, np.nextafter(unit, zero))


def _key(name: str, generator: Generator | None) -> keyed.Key:
    """Returns the key of the next random tensor; raises ValueError in a Trainer's `forward`."""
    current = current_pass.get()
    if current is not None and current.samples is not None:
        raise ValueError(
            f"{name} in `forward` of a Trainer would depend on how ranks share the samples: write "
            "nnmpi.random(self, shape, like=x), whose rows belong to samples; normal=True is randn"
        )
    if generator is not None:
        with drawing_from(generator):
            return _key(name, None)
    return (current or _OUTSIDE).tensor_key(next_draw())


_OUTSIDE = Pass(0)
"""The pass of random tensors that are drawn outside of any model."""


@creator
def _uniform(*sizes: Any, size: Any = None, generator: Generator | None = None) -> Array:
    """Returns uniform values between 0 and 1; rounding to the type may make some of them 1."""
    shape = sizes_of(sizes, size)
    return keyed.flat_uniform(_key("rand", generator), math.prod(shape)).reshape(shape)


def rand(*sizes: Any, **options: Any) -> Tensor:
    """Returns uniform values between 0 and 1: rand(2, 3) or rand((2, 3))."""
    t = _uniform(*sizes, **options)
    t.array = below_one(t.array)
    return t


@creator
def randn(*sizes: Any, size: Any = None, generator: Generator | None = None) -> Array:
    """Returns standard normal values: randn(2, 3) or randn((2, 3))."""
    shape = sizes_of(sizes, size)
    index, row = np.arange(math.prod(shape)), np.zeros(1, np.int64)
    return keyed.normal(_key("randn", generator), index, row).reshape(shape)


rand_like = like(rand)
randn_like = like(randn)


@creator
def randint(
    low: int = 0, high: Any = None, size: Any = None, *, generator: Generator | None = None
) -> Array:
    """Returns integers from low to high - 1: randint(high, size) or randint(low, high, size)."""
    if size is None:
        high, size = None, high
    if high is None:
        low, high = 0, low
    if not 0 < high - low <= 1 << 32:
        raise ValueError(
            f"randint from {low} to below {high}: give a low below high, at most 2**32 apart"
        )
    bits = keyed.flat_bits(_key("randint", generator), math.prod(flat((size,))))
    numbers = (bits.astype(np.uint64) * int(high - low) >> 32).view(np.int64).reshape(size)
    return numbers + low if low else numbers


@creator
def randperm(n: int, *, generator: Generator | None = None) -> Array:
    """Returns the integers from 0 to n - 1 in random order."""
    return keyed.permutation(_key("randperm", generator), n)


def multinomial(
    input: Any,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Returns int64 indices (num_samples,) or (rows, num_samples), drawn for each row with
    probabilities proportional to its weights.

    Without `replacement` no index is drawn twice for one row. The call waits for the device.
    """
    weights = np.atleast_2d(on_host(input).astype("float64"))
    rows, n = weights.shape[-2:]
    if weights.ndim > 2 or not (
        weights.any(1).all() and ((weights >= 0) & (weights < np.inf)).all()
    ):
        raise ValueError(
            "multinomial: weights must be a row or a matrix of finite numbers, with none below 0 "
            "and at least one above 0 in each row"
        )
    if replacement:
        u = keyed.flat_uniform(_key("multinomial", generator), rows * num_samples)
        u = u.reshape(rows, num_samples)
        sums = weights.cumsum(1)
        drawn = [np.searchsorted(s, v * s[-1], "right") for s, v in zip(sums, u, strict=True)]
        index = np.reshape(drawn, u.shape)
    else:
        limit = (weights > 0).sum(1).min(initial=n)
        if num_samples > limit:
            raise ValueError(
                f"multinomial: {num_samples} different indices of {limit} with a weight above 0: "
                "draw fewer, or with replacement=True"
            )
        u = keyed.flat_uniform(_key("multinomial", generator), rows * n).reshape(weights.shape)
        with np.errstate(divide="ignore"):
            waits = -np.log(u) / weights  # the first arrivals are a draw without replacement
        index = np.argsort(waits, axis=1, kind="stable")[:, :num_samples]
    shape = (*np.shape(array_of(input))[:-1], num_samples)
    return tensor(index.reshape(shape).astype("int64"), on=of(array_of(input)))
