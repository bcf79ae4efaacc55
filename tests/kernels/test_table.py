"""Each compiled kernel against NumPy, on every set of instructions that this processor has."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers.kernels import cases
from helpers.kernels.numbers import Rng, numbers, one_of, windows

from nnmpi import native
from nnmpi.comm.transport import gate  # noqa: F401 - fills the table
from nnmpi.kernels import conv, steps, winograd  # noqa: F401 - they fill the table
from nnmpi.native.table import KERNELS

MODULES = dict(native.modules())
CLOSE = 1e-6  # relative to the largest number, of transforms that NumPy computes by products
DRAWS = 30
FUSED = {
    *("products_loop", "direct_outputs", "direct_gradients"),
    *("linear_outputs", "linear_gradients", "mlp_outputs", "mlp_gradients"),
}
"""They add products that are not rounded, for which the baseline has no instruction."""

Draw = Callable[[Rng, Any], list[Any]]


def length(rng: Rng) -> int:
    return int(rng.choice([1, 3, 8, 16, 17, 64, 100, 1000, 20_011]))


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


def whole(rng: Rng, shape: Any, dtype: Any) -> np.ndarray:
    """Whole numbers, whose sums are exact: then pooling finds ties, and the same largest ones."""
    return rng.integers(-4, 5, shape).astype(dtype)


def outputs_of(rng: Rng, S: tuple[int, ...], pool: bool, dtype: Any) -> list[Any]:
    """y, left and upper, bias and zero: what a convolution writes, and what it adds."""
    masks = [np.zeros((2, *S), bool), np.zeros(S, bool)] if pool else [None, None]
    row = S[2] * S[3]
    bias = one_of(rng, None, np.tile(whole(rng, S[3], dtype), S[2]))
    return [np.zeros(S, dtype), *masks, bias, one_of(rng, None, np.zeros(row, dtype))]


def gradient_of(rng: Rng, S: tuple[int, ...], pool: bool, dtype: Any) -> list[Any]:
    """g, y, left and upper, and db: what comes back."""
    n, h, w, O = S
    g, y = whole(rng, S, dtype), one_of(rng, None, whole(rng, S, dtype))
    if rng.random() < 0.3:
        g = whole(rng, (n, O, h, w), dtype).transpose(0, 2, 3, 1)
    masks = [rng.random((2, *S)) < 0.5, rng.random(S) < 0.5] if pool else [None, None]
    return [g, y, *masks, one_of(rng, None, whole(rng, O, dtype))]


def tiled(rng: Rng) -> tuple[tuple[int, int], tuple[int, ...], bool, tuple[int, int, int]]:
    """Shapes of M and of the outputs, whether they are pooled, and side, tiles down and across."""
    side, pool, O = one_of(rng, 2, 4), one_of(rng, False, True), one_of(rng, 1, 16, 33)
    n, h, w = (int(x) for x in rng.integers(1, 6, 3))
    many = side // 2 if pool else side
    th, tw = -(-h // many), -(-w // many)
    return ((side + 2) ** 2, n * th * tw * O), (n, h, w, O), pool, (side, th, tw)


def winograd_outputs(rng: Rng, dtype: Any) -> list[Any]:
    shape, S, pool, numbers_of = tiled(rng)
    M = rows(rng, shape, dtype, True)
    M[...] = whole(rng, shape, dtype)
    return [M, *outputs_of(rng, S, pool, dtype), *numbers_of]


def winograd_gradients(rng: Rng, dtype: Any) -> list[Any]:
    shape, S, pool, numbers_of = tiled(rng)
    return [*gradient_of(rng, S, pool, dtype), rows(rng, shape, dtype, True), *numbers_of]


def images(rng: Rng, dtype: Any) -> tuple[np.ndarray, np.ndarray, tuple[int, ...], bool, int]:
    """Images with few channels, weights, the shape of the outputs, pooled or not, the stride."""
    pool, stride = one_of(rng, False, True), one_of(rng, 1, 2)
    n, h, w, C, kh, kw = (int(x) for x in rng.integers(1, 5, 6))
    O, many, rest = 16 * int(rng.integers(1, 5)), 2 if pool else 1, int(rng.integers(2))
    H, W = ((many * k - 1) * stride + kernel + rest for k, kernel in ((h, kh), (w, kw)))
    x, weights = whole(rng, (n, H, W, C), dtype), whole(rng, (kh, kw, C, O), dtype)
    return x, weights, (n, h, w, O), pool, stride


def direct_outputs(rng: Rng, dtype: Any) -> list[Any]:
    x, weights, S, pool, stride = images(rng, dtype)
    return [x, weights, *outputs_of(rng, S, pool, dtype), stride]


def direct_gradients(rng: Rng, dtype: Any) -> list[Any]:
    x, weights, S, pool, stride = images(rng, dtype)
    return [x, *gradient_of(rng, S, pool, dtype), weights, stride]


def places(rng: Rng, dtype: Any) -> list[Any]:
    """Windows of images that overlap, as a view (n, h, w, kh, kw, C), and columns."""
    n, h, w, kh, kw = (int(x) for x in rng.integers(1, 5, 5))
    C, dilation = one_of(rng, 1, 5, 32), one_of(rng, 1, 2)
    images = numbers(rng, (n, h + dilation * (kh - 1), w + dilation * (kw - 1), C), dtype)
    sn, sh, sw, sc = images.strides
    view = np.lib.stride_tricks.as_strided(
        images, (n, h, w, kh, kw, C), (sn, sh, sw, dilation * sh, dilation * sw, sc)
    )
    return [view, numbers(rng, view.shape, dtype)]


def depthwise(rng: Rng, dtype: Any) -> list[Any]:
    """x, w and z, and the steps down and right of pixels and of weights."""
    n, h, w, kh, kw = (int(x) for x in rng.integers(1, 5, 5))
    apart, C = [int(x) for x in rng.integers(1, 3, 4)], one_of(rng, 1, 16, 33, 64, 70)
    H, W = (
        (k - 1) * step + (kernel - 1) * dilation + 1 + int(rng.integers(2))
        for k, step, kernel, dilation in ((h, apart[0], kh, apart[2]), (w, apart[1], kw, apart[3]))
    )
    shapes = (n, H, W, C), (kh, kw, C), (n, h, w, C)
    return [*(numbers(rng, shape, dtype) for shape in shapes), *apart]


def depthwise_images(rng: Rng, dtype: Any) -> list[Any]:
    x, w, z, *apart = depthwise(rng, dtype)
    return [z, w, x, *apart]


def depthwise_weights(rng: Rng, dtype: Any) -> list[Any]:
    x, w, z, *apart = depthwise(rng, dtype)
    return [*(rng.standard_normal(a.shape).astype(dtype) for a in (x, z, w)), *apart]


def products(rng: Rng, dtype: Any) -> list[Any]:
    g, m, n = (int(x) for x in rng.integers(1, [4, 20, 80]))
    k = one_of(rng, 1, 7, 64, 300)
    A = rng.standard_normal((g, m, k)).astype(dtype)
    if rng.random() < 0.5:
        A = np.ascontiguousarray(A.transpose(0, 2, 1)).transpose(0, 2, 1)
    B, C = (rng.standard_normal((g, *s)).astype(dtype) for s in ((k, n), (m, n)))
    return [A, B, C, one_of(rng, False, True)]


def some(rng: Rng, *arrays: np.ndarray) -> list[Any]:
    """Some of them, in the place of others None."""
    return [one_of(rng, a, None) for a in arrays]


def linear_outputs(rng: Rng, dtype: Any) -> list[Any]:
    n, K, O = (int(x) for x in rng.integers(1, 70, 3))
    x, w = (rng.standard_normal(shape).astype(dtype) for shape in ((n, K), (O, K)))
    bias = rng.standard_normal(O).astype(dtype)
    return [x, w, *some(rng, bias), np.zeros((n, O), dtype), one_of(rng, False, True)]


def linear_gradients(rng: Rng, dtype: Any) -> list[Any]:
    x, w, _, g, _ = linear_outputs(rng, dtype)
    g[...] = rng.standard_normal(g.shape)
    return [g, x, w, *some(rng, np.zeros_like(x), np.zeros_like(w), np.zeros(len(w), dtype))]


def mlp_outputs(rng: Rng, dtype: Any) -> list[Any]:
    n, *sizes = (int(x) for x in rng.integers(1, 50, rng.integers(3, 6)))
    ws, bs, ys = (
        tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)
        for shapes in (
            [*zip(sizes[1:], sizes[:-1], strict=True)],
            sizes[1:],
            [(n, O) for O in sizes[1:]],
        )
    )
    relus = tuple(one_of(rng, False, True) for _ in ws)
    x = rng.standard_normal((n, sizes[0])).astype(dtype)
    return [x, ws, tuple(some(rng, *bs)), ys, relus]


def mlp_gradients(rng: Rng, dtype: Any) -> list[Any]:
    x, ws, _, ys, relus = mlp_outputs(rng, dtype)
    g = rng.standard_normal(ys[-1].shape).astype(dtype)
    dws = tuple(some(rng, *(np.zeros_like(w) for w in ws)))
    dbs = tuple(some(rng, *(np.zeros(len(w), dtype) for w in ws)))
    return [g, x, ws, ys, relus, *some(rng, np.zeros_like(x)), dws, dbs]


def sum_parts(rng: Rng, dtype: Any) -> list[Any]:
    n = length(rng)
    parts = [numbers(rng, n, dtype) for _ in range(rng.integers(2, 9))]
    return [np.zeros(n, dtype), *parts]


def meet(rng: Rng, dtype: Any) -> list[Any]:
    """All others have come, or one of them comes for the first time only."""
    count, (array, *parts) = int(rng.integers(2, 100)), sum_parts(rng, dtype)
    others = [np.array([count + rng.integers(2)]) for _ in parts[1:]]
    if rng.random() < 0.3:
        others[-1][0] = 1
    array[...] = parts[0]
    sums = [array, *parts] if rng.random() < 0.5 else []
    rank = int(rng.integers(len(parts)))
    own, here = np.array([count - 1]), np.array([7])
    return [own, here, count, 300, rank, int, tuple(others), *sums]


CASES: dict[str, tuple[Draw, float, bool]] = {
    "adam_loop": (adam, 0, True),
    "sgd_loop": (sgd, 0, True),
    "rmsprop_loop": (rmsprop, 0, True),
    "sum_loop": (sum_parts, 0, True),
    "meet_loop": (meet, 0, True),
    "pool_loop": (pool, 0, False),
    "unpool_loop": (unpool, 0, False),
    "bias_relu_loop": (bias_relu, 0, False),
    "relu_gradient_loop": (relu_gradient, 0, False),
    "winograd_tiles": (winograd_tiles, CLOSE, False),
    "winograd_images": (winograd_images, CLOSE, False),
    "winograd_outputs": (winograd_outputs, CLOSE, False),
    "winograd_gradients": (winograd_gradients, CLOSE, False),
    "products_loop": (products, CLOSE, False),
    "direct_outputs": (direct_outputs, CLOSE, False),
    "direct_gradients": (direct_gradients, CLOSE, False),
    "gather_loop": (places, 0, False),
    "overlap_loop": (places, CLOSE, False),
    "depthwise_outputs": (depthwise, 0, False),
    "depthwise_images": (depthwise_images, 0, False),
    "depthwise_weights": (depthwise_weights, CLOSE, False),
    "linear_outputs": (linear_outputs, CLOSE, False),
    "linear_gradients": (linear_gradients, CLOSE, False),
    "mlp_outputs": (mlp_outputs, CLOSE, False),
    "mlp_gradients": (mlp_gradients, CLOSE, False),
    **cases.CASES,
}
"""Arguments of a kernel, how far it may be from NumPy, and whether it takes float64."""


def copies(args: list[Any]) -> list[Any]:
    """Copies in the same memory layout."""

    def copy(a: Any) -> Any:
        if isinstance(a, tuple):
            return tuple(copies([*a]))
        if not isinstance(a, np.ndarray):
            return a
        found = np.empty_like(a)
        if not isinstance(a.base, np.ndarray | None):  # windows that overlap, by as_strided
            return np.lib.stride_tricks.as_strided(a.base.base.copy(), a.shape, a.strides)
        if a.ndim == 6 and not a.flags.c_contiguous:  # windows
            n, h, w, C = a.shape[2:]
            found = by_window(np.empty((n, 2 * h, 2 * w, C), a.dtype))
        elif a.ndim == 2 and not a.flags.forc:
            found = winograd.padded(*a.shape, a.dtype)
        elif not a.flags.c_contiguous:
            return a.copy("K")
        found[...] = a
        return found

    return list(map(copy, args))


def arrays_of(args: Any) -> list[np.ndarray]:
    """The arrays among arguments, and in tuples of them."""
    found = []
    for a in args:
        found += [a] if isinstance(a, np.ndarray) else arrays_of(a) if isinstance(a, tuple) else []
    return found


def bits(args: list[Any]) -> list[bytes]:
    """All but the sign of NaN, which depends on the order of operands."""
    return [np.where(a == a, a, np.nan).astype(a.dtype).tobytes() for a in arrays_of(args)]


def test_every_kernel_has_a_case() -> None:
    assert CASES.keys() == KERNELS.keys()


@pytest.mark.skipif(not MODULES, reason="the kernels were not compiled")
def test_every_kernel_is_compiled() -> None:
    for kind, module in MODULES.items():
        missing = FUSED if kind == "baseline" else set()
        found = {name for name in vars(module) if not name.startswith("_")}
        assert found == KERNELS.keys() - missing


COMPILED = [
    pytest.param(name, module, id=f"{kind}-{name}")
    for kind, module in MODULES.items()
    for name in CASES
    if hasattr(module, name)
]


@pytest.mark.parametrize(("name", "module"), COMPILED)
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
        for a, b in zip(arrays_of(mine), arrays_of(numpys), strict=True):
            if close:
                largest = np.max(abs(b), where=np.isfinite(b), initial=0)
                np.testing.assert_allclose(a, b, rtol=0, atol=close * largest)


@pytest.mark.parametrize(("name", "module"), COMPILED)
def test_sets_of_instructions_agree_to_the_bit(name: str, module: ModuleType) -> None:
    for seed in range(DRAWS // 3):
        one = CASES[name][0](np.random.default_rng(seed), "float32")
        other = copies(one)
        getattr(module, name)(*one)
        least = next(m for m in reversed(MODULES.values()) if hasattr(m, name))
        getattr(least, name)(*other)
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
        args[i] = np.concatenate([a, a], -1) if a.ndim else np.stack([a, a])
    elif how == 3:
        args[i] = a.tolist()
    elif how == 4:
        moved = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype) if a.itemsize > 1 else None
        args[i] = a.tolist() if moved is None else moved.reshape(a.shape)
    else:
        args.append(1.0)
    return args


@pytest.mark.parametrize(("name", "module"), COMPILED)
def test_arguments_that_it_is_not_made_for_are_left_alone(name: str, module: ModuleType) -> None:
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        args = spoilt(CASES[name][0](rng, "float32"), rng)
        before = bits(args)
        assert getattr(module, name)(*args) is NotImplemented, (seed, args)
        assert bits(args) == before, seed
