"""Compiled kernels get arguments of all kinds: they compute what NumPy does, or leave all alone."""

from collections.abc import Callable
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers.kernels.numbers import Rng, one_of
from test_table import CASES, COMPILED, Draw, Seeds, arrays_of, bits

from nnmpi.arrays.native.table import KERNELS

Array = np.ndarray


CONTRADICTED = {
    *("bias_relu_loop", "direct_outputs", "winograd_outputs"),  # numbers of what should be zeros
    "attention_gradient_loop",  # an lse that is not that of the scores
    "group_norm_gradient_loop",  # another number of groups than that of its sums
    "winograd_tiles",  # tiles in Fortran order, of which NumPy's form fills a copy
}
"""They are not compared with NumPy."""
FAR = 1e-2  # relative to the largest number: wrong numbers, and not other orders of sums


class Subclass(np.ndarray):
    """An array of another class."""


def read_only(a: Array) -> Array:
    a.flags.writeable = False
    return a


def unaligned(a: Array) -> Array:
    found = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    found[...] = a
    return found


def apart(a: Array) -> Array:
    """With another number behind each."""
    found = np.zeros((*a.shape, 2), a.dtype)[..., 0]
    found[...] = a
    return found


CHANGES: tuple[Callable[[Array], Any], ...] = (
    read_only,
    unaligned,
    apart,
    lambda a: None,
    lambda a: 1.5,
    lambda a: a.tolist(),
    lambda a: a.view(Subclass),
    lambda a: a.astype(object),
    lambda a: a.astype("float16"),
    lambda a: a.astype("complex64" if a.dtype.kind == "f" else "int8"),
    lambda a: a.astype("float64" if a.dtype == "float32" else "float32"),
    lambda a: a.astype("int64" if a.dtype != "int64" else "uint32"),
    lambda a: a.astype(a.dtype.newbyteorder()),
    lambda a: a[:0],
    lambda a: np.empty((0, 2**58), a.dtype),
    lambda a: a[..., ::-1],
    lambda a: a[::-1],
    lambda a: a[..., :1],
    lambda a: a[None],
    lambda a: a.reshape(-1),
    lambda a: a.reshape(a.shape[::-1]),
    lambda a: a.T,
    lambda a: a.T.copy().T,
    lambda a: np.broadcast_to(a.reshape(-1)[:1].reshape([1] * a.ndim), a.shape),
    lambda a: np.lib.stride_tricks.as_strided(a, a.shape, [0] * a.ndim),
    lambda a: np.lib.stride_tricks.as_strided(a, (2**33, *a.shape[1:]), [0] * a.ndim),
    lambda a: np.concatenate([a, a]),
    lambda a: np.concatenate([a, a], -1),
)
"""What may become of an array; some change nothing that counts."""

OTHERS: tuple[Any, ...] = (0, 1, -1, 2, 4, 2.5, 2**31, 2**32, 2**61, 2**2000, -(2**63))
OTHERS += (None, True, "one", (), np.float32(1), np.array(2), [1])


def changed(args: list[Any], rng: Rng) -> list[Any]:
    """The arguments with one that is another, or lies in another, or one too many or too few."""
    how, i = rng.random(), int(rng.integers(len(args)))
    if how < 0.05:
        return args[:i] + args[i + 1 :]
    if how < 0.1:
        return [*args[:i], args[i], *args[i:]]
    args[i] = other(args[i], arrays_of(args), rng)
    return args


def other(value: Any, arrays: list[Array], rng: Rng) -> Any:
    if isinstance(value, tuple) and value and rng.random() < 0.8:
        return tuple(changed(list(value), rng))
    if not isinstance(value, Array):
        return value if callable(value) else one_of(rng, *OTHERS, *arrays)
    if rng.random() < 0.3:
        near = one_of(rng, *arrays)
        return near if rng.random() < 0.5 or near.shape != value.shape else shifted(near, rng)
    return one_of(rng, *CHANGES)(value if value.ndim else value[None])


def shifted(a: Array, rng: Rng) -> Array:
    """An array of its shape and memory, some bytes from it, if there is room."""
    base = a
    while isinstance(base.base, Array):
        base = base.base
    start = a.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    start += int(rng.integers(-2, 3)) * a.itemsize
    try:
        return np.ndarray(a.shape, a.dtype, base, start, a.strides)
    except (ValueError, TypeError):
        return a


def drawn(draw: Draw, seed: int) -> list[Any]:
    return changed(draw(np.random.default_rng(seed), "float32"), np.random.default_rng([seed, 1]))


def state(args: list[Any]) -> list[bytes]:
    return bits([a for a in arrays_of(args) if a.dtype != object and prod(a.shape) < 2**30])


@pytest.mark.one_in(2)
@np.errstate(all="ignore")
@pytest.mark.parametrize(("name", "module"), COMPILED)
def test_it_computes_what_numpy_does_or_leaves_all_alone(
    name: str, module: ModuleType, is_sample: bool, seeds: Seeds
) -> None:
    draw, close, _ = CASES[name]
    for seed in seeds(40) if is_sample else range(1000):
        mine = drawn(draw, seed)
        found = getattr(module, name)(*mine)
        if found is NotImplemented:
            assert state(mine) == state(drawn(draw, seed)), seed
            continue
        assert found is None, seed
        if name in CONTRADICTED:
            continue
        numpys = drawn(draw, seed)
        KERNELS[name].reference(*numpys)
        # NumPy rounds to float16 after each operation, and a kernel once, at the end: where NumPy
        # has overflown, the kernel may have a number.
        half = any(a.dtype == np.float16 for a in arrays_of(mine))
        for a, b in zip(arrays_of(mine), arrays_of(numpys), strict=True):
            largest = np.max(abs(b), where=np.isfinite(b), initial=0) if close or half else 0
            a = np.where(np.isfinite(b), a, b) if half else a
            np.testing.assert_allclose(a, b, rtol=0, atol=FAR * largest, err_msg=str(seed))
