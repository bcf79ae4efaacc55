"""Each compiled kernel against NumPy, on every set of instructions that this processor has."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from nnmpi import native
from nnmpi.kernels import conv, steps, winograd  # noqa: F401 - they fill the table
from nnmpi.kernels.table import KERNELS

MODULES = dict(native.modules())
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-40, 1.0, -3.0]
CLOSE = 1e-6  # relative to the largest number, of transforms that NumPy computes by products
DRAWS = 30

Rng = np.random.Generator
Draw = Callable[[Rng, Any], list[Any]]


def numbers(rng: Rng, shape: Any, dtype: Any) -> np.ndarray:
    """Normal numbers, and in every fourth array special ones among them."""
    found = rng.standard_normal(shape).astype(dtype)
    if rng.random() < 0.25:
        found = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), found).astype(dtype)
    return found


def length(rng: Rng) -> int:
    return int(rng.choice([1, 3, 8, 16, 17, 64, 100, 1000, 20_011]))


def one_of(rng: Rng, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def adam(rng: Rng, dtype: Any) -> list[Any]:
    p, g, m, v, top = (numbers(rng, (n := length(rng)) if i == 0 else n, dtype) for i in range(5))
    decay, shrink = one_of(rng, (0.0, 1.0), (0.1, 1.0), (0.0, 0.99), (0.1, 0.99))
    largest = one_of(rng, None, abs(top))
    return [p, g, m, abs(v), largest, 0.9, 0.999, 1e-3, 1e-8, decay, shrink]


def sgd(rng: Rng, dtype: Any) -> list[Any]:
    n = length(rng)
    p, g, v = (numbers(rng, n, dtype) for _ in range(3))
    velocity, momentum, direct = one_of(rng, (None, 0.0, True), (v, 0.9, False), (v, 0.9, True))
    return [p, g, velocity, momentum, one_of(rng, 0.0, 0.1), 0.01, 0.009, direct]


def rmsprop(rng: Rng, dtype: Any) -> list[Any]:
    n = length(rng)
    p, g, s, v, mean = (numbers(rng, n, dtype) for _ in range(5))
    velocity, center = one_of(rng, None, v), one_of(rng, None, mean)
    numbers_of = (0.01, 0.9, 0.1, 1e-8, one_of(rng, 0.0, 0.1), 0.9)
    return [p, g, abs(s), velocity, center, *numbers_of]


def windows(rng: Rng) -> tuple[int, int, int, int]:
    """Images, rows, columns and channels."""
    n, h, w = (int(x) for x in rng.integers(1, 6, 3))
    return n, h, w, int(rng.choice([1, 3, 16, 33]))


def by_window(image: np.ndarray) -> np.ndarray:
    n, H, W, C = image.shape
    return image.reshape(n, H // 2, 2, W // 2, 2, C).transpose(2, 4, 0, 1, 3, 5)


def pool(rng: Rng, dtype: Any) -> list[Any]:
    n, h, w, C = S = windows(rng)
    z = by_window(numbers(rng, (n, 2 * h, 2 * w, C), dtype))
    return [z, np.zeros(S, dtype), np.zeros((2, *S), bool), np.zeros(S, bool)]


def unpool(rng: Rng, dtype: Any) -> list[Any]:
    n, h, w, C = S = windows(rng)
    left, upper = rng.random((2, *S)) < 0.5, rng.random(S) < 0.5
    return [numbers(rng, S, dtype), left, upper, by_window(np.zeros((n, 2 * h, 2 * w, C), dtype))]


def bias_relu(rng: Rng, dtype: Any) -> list[Any]:
    n, h, w, C = windows(rng)
    bias, zero = numbers(rng, w * C, dtype), np.zeros(w * C, dtype)
    lines = numbers(rng, (n * h, w * C), dtype)
    return [lines, *one_of(rng, (bias, zero), (bias, None), (None, zero))]


def relu_gradient(rng: Rng, dtype: Any) -> list[Any]:
    S = windows(rng)
    return [numbers(rng, S, dtype), numbers(rng, S, dtype), np.zeros(S, dtype)]


def tiles(rng: Rng) -> tuple[tuple[int, ...], tuple[int, int], tuple[int, int, int, int]]:
    """Shapes of images (n, H, W, C) and of their tiles, and side, padding, tiles down, across."""
    side, pad = one_of(rng, 2, 4), int(rng.integers(3))
    n, H, W, C = (int(rng.integers(1, 4)), *map(int, rng.integers(3, 12, 2)), one_of(rng, 1, 8, 33))
    q = winograd.grid(side, H, W, pad, False)
    return (n, H, W, C), ((side + 2) ** 2, n * q.th * q.tw * C), (side, pad, q.th, q.tw)


def rows(rng: Rng, shape: tuple[int, int], dtype: Any, empty: bool) -> np.ndarray:
    """A matrix with padding between its rows."""
    found = winograd.padded(*shape, np.dtype(dtype))
    found[...] = 0 if empty else rng.standard_normal(shape)
    return found


def winograd_tiles(rng: Rng, dtype: Any) -> list[Any]:
    images, V, numbers_of = tiles(rng)
    return [rng.standard_normal(images).astype(dtype), rows(rng, V, dtype, True), *numbers_of]


def winograd_images(rng: Rng, dtype: Any) -> list[Any]:
    images, V, numbers_of = tiles(rng)
    return [rows(rng, V, dtype, False), np.zeros(images, dtype), *numbers_of]


def winograd_inverse(rng: Rng, dtype: Any) -> list[Any]:
    side, S = one_of(rng, 2, 4), length(rng)
    M = rows(rng, ((side + 2) ** 2, S), dtype, False)
    return [M, rows(rng, (side**2, S), dtype, True), side]


def winograd_spread(rng: Rng, dtype: Any) -> list[Any]:
    M, Y, side = winograd_inverse(rng, dtype)
    Y[...] = rng.standard_normal(Y.shape)
    return [Y, M, side]


CASES: dict[str, tuple[Draw, float, bool]] = {
    "adam_loop": (adam, 0, True),
    "sgd_loop": (sgd, 0, True),
    "rmsprop_loop": (rmsprop, 0, True),
    "pool_loop": (pool, 0, False),
    "unpool_loop": (unpool, 0, False),
    "bias_relu_loop": (bias_relu, 0, False),
    "relu_gradient_loop": (relu_gradient, 0, False),
    "winograd_tiles": (winograd_tiles, CLOSE, False),
    "winograd_images": (winograd_images, CLOSE, False),
    "winograd_inverse": (winograd_inverse, CLOSE, False),
    "winograd_spread": (winograd_spread, CLOSE, False),
}
"""Arguments of a kernel, how far it may be from NumPy, and whether it takes float64."""


def copies(args: list[Any]) -> list[Any]:
    """Copies in the same memory layout."""

    def copy(a: Any) -> Any:
        if not isinstance(a, np.ndarray):
            return a
        found = np.empty(a.shape, a.dtype)
        if a.ndim == 6:  # windows
            n, h, w, C = a.shape[2:]
            found = by_window(np.empty((n, 2 * h, 2 * w, C), a.dtype))
        elif a.ndim == 2 and not a.flags.c_contiguous:
            found = winograd.padded(*a.shape, a.dtype)
        found[...] = a
        return found

    return list(map(copy, args))


def bits(args: list[Any]) -> list[bytes]:
    return [a.tobytes() for a in args if isinstance(a, np.ndarray)]


def test_every_kernel_has_a_case() -> None:
    assert CASES.keys() == KERNELS.keys()


@pytest.mark.skipif(not MODULES, reason="the kernels were not compiled")
def test_every_kernel_is_compiled() -> None:
    for module in MODULES.values():
        assert {name for name in vars(module) if not name.startswith("_")} == KERNELS.keys()


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_numpy_does(name: str, module: ModuleType) -> None:
    draw, close, takes_float64 = CASES[name]
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        mine = draw(rng, one_of(rng, "float32", "float64") if takes_float64 else "float32")
        numpys = copies(mine)
        with np.errstate(all="ignore"):
            KERNELS[name].reference(*numpys)
        assert getattr(module, name)(*mine) is None, seed
        if not close:
            assert bits(mine) == bits(numpys), seed
        for a, b in zip(mine, numpys, strict=True):
            if close and isinstance(a, np.ndarray):
                np.testing.assert_allclose(a, b, rtol=0, atol=close * abs(b).max())


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("name", CASES)
def test_sets_of_instructions_agree_to_the_bit(name: str, module: ModuleType) -> None:
    for seed in range(DRAWS // 3):
        one = CASES[name][0](np.random.default_rng(seed), "float32")
        other = copies(one)
        getattr(module, name)(*one)
        getattr(MODULES["baseline"], name)(*other)
        assert bits(one) == bits(other), seed


def spoilt(args: list[Any], rng: Rng) -> list[Any]:
    """Arguments of which one array is of another kind: the twin has to take them."""
    arrays = [i for i, a in enumerate(args) if isinstance(a, np.ndarray)]
    i, how = one_of(rng, *arrays), rng.integers(6)
    a = args[i]
    if how == 0:
        args[i] = a.astype("float16" if a.dtype.kind == "f" else "int8")
    elif how == 1:
        args[i] = a.astype(a.dtype.newbyteorder()) if a.itemsize > 1 else a[..., None][..., [0, 0]]
    elif how == 2:
        args[i] = np.concatenate([a, a], -1)
    elif how == 3:
        args[i] = a.tolist()
    elif how == 4:
        moved = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype) if a.itemsize > 1 else None
        args[i] = a.tolist() if moved is None else moved.reshape(a.shape)
    else:
        args.append(1.0)
    return args


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("name", CASES)
def test_arguments_that_it_is_not_made_for_are_left_alone(name: str, module: ModuleType) -> None:
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        args = spoilt(CASES[name][0](rng, "float32"), rng)
        before = bits(args)
        assert getattr(module, name)(*args) is NotImplemented, (seed, args)
        assert bits(args) == before, seed
