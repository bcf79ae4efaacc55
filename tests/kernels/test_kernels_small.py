"""The small kernels: pooling and its ties, the epilogue of a convolution, sums, optimizer steps."""

import numpy as np
import pytest

from nnmpi.arrays.kernels import column_sum, epilogue, steps
from nnmpi.arrays.kernels.pool import max_pool2d
from nnmpi.arrays.kernels.window import Window
from nnmpi.arrays.native.table import KERNELS

# ---- pooling: where the gradient goes

WINDOWS = {
    "2x2": {"kernel": 2, "stride": 2, "padding": 0},
    "2x2 that overlap": {"kernel": 2, "stride": 1, "padding": 0},
    "3x3": {"kernel": 3, "stride": 3, "padding": 0},
    "3x3 that overlap": {"kernel": 3, "stride": 2, "padding": 1},
}
CONTENTS = {
    "equal": lambda rng, shape: np.full(shape, 3.0),
    "equal and negative": lambda rng, shape: np.full(shape, -3.0),
    "zeros of both signs": lambda rng, shape: rng.choice([0.0, -0.0], shape),
    "few values": lambda rng, shape: rng.integers(-1, 2, shape).astype("float64"),
    "all different": lambda rng, shape: rng.permutation(np.arange(np.prod(shape) * 1.0)).reshape(
        shape
    ),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_a_windows_gradient_goes_to_one_of_its_largest_numbers(window, content):
    x = content(np.random.default_rng(0), (2, 3, 7, 7))
    k, s, p = window.values()
    y, (vjp,), *_ = max_pool2d(x, (Window(k, s, p, p),) * 2)
    places = list(np.ndindex(y.shape))
    for n, c, i, j in places:
        g = np.zeros(y.shape)
        g[n, c, i, j] = 2.5
        dx = vjp(g, None)
        (where,) = np.argwhere(dx)
        assert dx[tuple(where)] == 2.5
        assert x[tuple(where)] == y[n, c, i, j]
        assert tuple(where[:2]) == (n, c)
        assert all(s * a - p <= r < s * a - p + k for a, r in zip((i, j), where[2:], strict=True))
        window_of_x = x[n, c, max(s * i - p, 0) : s * i - p + k, max(s * j - p, 0) : s * j - p + k]
        assert y[n, c, i, j] == window_of_x.max()
    g = np.random.default_rng(1).integers(-9, 9, y.shape).astype("float64")
    assert vjp(g, None).sum() == g.sum()


def test_a_tie_goes_to_the_first_in_reading_order():
    z = np.zeros((2, 2, 1))
    for values, place in (
        ([[1, 1], [1, 1]], (0, 0)),
        ([[0, 1], [0, 1]], (0, 1)),
        ([[0, 0], [1, 1]], (1, 0)),
        ([[0, 1], [1, 0]], (0, 1)),
        ([[0, 0], [0, 1]], (1, 1)),
    ):
        z[..., 0] = values
        y, dz = np.empty(1), np.full((2, 2, 1), np.nan)
        largest = epilogue.empty_places(y)
        epilogue.pool_loop(z, y, largest)
        epilogue.unpool_loop(np.ones(1), largest, dz)
        assert [tuple(k) for k in np.argwhere(dz[..., 0])] == [place]
        assert (y[0], dz.sum()) == (1, 1)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -2.5])
def test_a_gradient_goes_to_the_largest_alone(value):
    """An infinite one leaves no NaN elsewhere."""
    for place in range(4):
        g, dz = np.full(40, value, "float32"), np.full((2, 2, 40), np.nan, "float32")
        epilogue.unpool_loop(g, np.full(40, place, "uint8"), dz)
        assert np.array_equal(dz[divmod(place, 2)], g, equal_nan=True)
        others = np.delete(dz.reshape(4, 40), place, 0)
        assert (others.view("u4") == 0).all()


# ---- the epilogue


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bias", [False, True])
def test_pooling_before_bias_and_relu_gives_the_same_bits(dtype, bias):
    rng = np.random.default_rng(0)
    n, h, w, O = 3, 4, 5, 6
    z = rng.integers(-3, 3, (2, 2, n, h, w, O)).astype(dtype)
    z += (rng.random(z.shape) < 0.8) * rng.standard_normal(z.shape).astype(dtype)
    b = rng.standard_normal(O).astype(dtype) if bias else None
    for relu in (False, True):
        y = np.empty((n, h, w, O), dtype)
        epilogue.pool_loop(z, y, epilogue.empty_places(y))
        epilogue.bias_relu(y, epilogue.row_constants(b, relu, w, y))
        late = z.copy()
        for plane in late.reshape(4, n, h, w, O):
            epilogue.bias_relu(plane, epilogue.row_constants(b, relu, w, plane))
        assert np.array_equal(y, late.max(axis=(0, 1)))
        plain = z if b is None else z + b
        assert np.array_equal(late, np.maximum(plain, 0) if relu else plain)


def test_relu_lets_a_gradient_through_where_the_output_is_positive():
    y = np.array([[1.0, 0.0, -0.0, 1e-300]])
    g = np.array([[5.0, 6.0, 7.0, 8.0]])
    out = epilogue.relu_gradient(g, y)
    assert out.tolist() == [[5, 0, 0, 8]]
    turned = epilogue.relu_gradient(np.asfortranarray(np.ones((2, 3))), np.ones((2, 3)))
    assert turned.flags.c_contiguous


# ---- sums


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [0, 1, 7, 1000])
def test_column_sum_is_the_sum_over_rows(dtype, rows):
    exact = np.random.default_rng(0).integers(-8, 8, (rows, 5))
    g = exact.astype(dtype)
    out = np.full(5, np.nan, dtype)
    for given in (g, np.asfortranarray(g), np.repeat(g, 2, axis=1)[:, ::2]):
        assert column_sum(given).tolist() == exact.sum(0).tolist()
        assert column_sum(given).dtype == dtype
        out[...] = np.nan
        assert column_sum(given, out) is out
        assert out.tolist() == exact.sum(0).tolist()
    assert g.tolist() == exact.tolist()


# ---- optimizer steps

UPDATES = {
    "adam": lambda p, g, *sums: steps.adam(
        p, g, *sums[:2], steps.AdamStep(1e-2, 0.8, 0.9, 1e-8, 0.1, False, 3), sums[2]
    ),
    "sgd": lambda p, g, *sums: steps.sgd(p, g, sums[0], steps.SgdStep(1e-2, 0.9, 0.1, True)),
    "rmsprop": lambda p, g, *sums: steps.rmsprop(
        p, g, *sums, steps.RmsPropStep(1e-2, 0.9, 1e-4, 0.1, 0.9)
    ),
}


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_a_step_of_many_numbers_is_that_of_each_part(update, is_compiled, monkeypatch):
    """NumPy takes pieces that fit in the cache; tests of optimizers have the formulas."""
    if not is_compiled:
        for kernel in KERNELS.values():
            monkeypatch.setattr(kernel, "compiled", None)
    piece = steps._CHUNK_BYTES // 8
    arrays = np.random.default_rng(0).standard_normal((5, 2 * piece + 5))
    arrays[2:] **= 2
    whole, parts = arrays.copy(), arrays.copy()
    update(*whole)
    for part in (slice(10), slice(10, piece + 1), slice(piece + 1, None)):
        update(*parts[:, part])
    assert np.array_equal(whole, parts)
    assert np.array_equal(whole[1], arrays[1])
    assert (whole[0] != arrays[0]).all()


@pytest.mark.parametrize("goes", [True, False])
def test_a_factor_that_a_device_has_computed_takes_another_one(goes):
    start, g = np.random.default_rng(7).standard_normal((2, 7))
    c = steps.SgdStep(1e-2, 0.9, 0.1, False, 0.5)
    (p, v), (q, w) = ((start.copy(), np.ones(7)) for _ in range(2))
    steps.sgd(p, g, v, c, steps.MixedStep(None, np.array([0.25, goes])).times(-1.0))
    if goes:
        steps.sgd(q, g, w, c, steps.MixedStep(None, -0.25))
    assert np.array_equal(p, q)
    assert np.array_equal(v, w)
    assert np.array_equal(p, start) != goes
