"""The small kernels: pooling and its ties, the epilogue of a convolution, sums, optimizer steps."""

from itertools import product

import numpy as np
import pytest

from nnmpi.arrays.kernels import column_sum, epilogue, steps
from nnmpi.arrays.kernels.pool import max_pool2d
from nnmpi.arrays.kernels.window import Window

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

PIECE = steps._CHUNK_BYTES // 8
ADAMS = [
    steps.AdamStep(1e-2, *betas, eps, decay, decoupled, 0)
    for betas, eps, (decay, decoupled) in product(
        ((0.9, 0.999), (0.0, 0.5), (0.8, 0.0)),
        (1e-8, 1e-2),
        ((0.0, False), (0.1, False), (0.1, True)),
    )
]
SGDS = [
    steps.SgdStep(1e-2, momentum, decay, nesterov)
    for momentum, decay, nesterov in product((0.0, 0.9), (0.0, 0.1), (False, True))
    if momentum or not nesterov
]
RMSPROPS = [
    steps.RmsPropStep(1e-2, alpha, 1e-4, decay, momentum)
    for alpha, decay, momentum in product((0.99, 0.5), (0.0, 0.1), (0.0, 0.9))
]


def plain_adam(p, gs, c, amsgrad=False):
    """Kingma and Ba as they wrote it down: parameters, m and v after all steps."""
    m = v = largest = np.zeros_like(p)
    for t, g in enumerate(gs, 1):
        if c.decoupled:
            p = p - c.lr * c.weight_decay * p
        else:
            g = g + c.weight_decay * p
        m = c.beta1 * m + (1 - c.beta1) * g
        v = c.beta2 * v + (1 - c.beta2) * g**2
        largest = np.maximum(largest, v) if amsgrad else v
        p = p - c.lr * (m / (1 - c.beta1**t)) / (np.sqrt(largest / (1 - c.beta2**t)) + c.eps)
    return p, m, v


def plain_sgd(p, gs, c):
    v = np.zeros_like(p)
    for g in gs:
        g = g + c.weight_decay * p
        v = c.momentum * v + g
        p = p - c.lr * (g + c.momentum * v if c.nesterov else v)
    return p, v


def plain_rmsprop(p, gs, c, centered):
    squares = mean = velocity = np.zeros_like(p)
    for g in gs:
        g = g + c.weight_decay * p
        squares = c.alpha * squares + (1 - c.alpha) * g**2
        mean = c.alpha * mean + (1 - c.alpha) * g
        step = g / (np.sqrt(squares - mean**2 if centered else squares) + c.eps)
        velocity = c.momentum * velocity + step
        p = p - c.lr * velocity
    return p, squares, velocity, mean


def tensors(size, count=6):
    rng = np.random.default_rng(size)
    return rng.standard_normal(size), [rng.standard_normal(size) for _ in range(count)]


def near(a, b):
    return np.allclose(a, b, rtol=1e-11, atol=1e-13)


SIZES = {"small": 10, "one piece": PIECE, "uneven pieces": 2 * PIECE + 5}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("c", ADAMS, ids=str)
def test_adam_is_the_formula(c, size):
    start, gs = tensors(size)
    p, M, V = start.copy(), np.zeros(size), np.zeros(size)
    for t, g in enumerate(gs, 1):
        before = g.copy()
        steps.adam(p, g, M, V, c._replace(t=t))
        assert np.array_equal(g, before)
    expected, m, v = plain_adam(start, gs, c)
    assert near(p, expected)
    assert near(M * (1 - c.beta1), m)  # the sums are kept scaled
    assert near(V * (1 - c.beta2), v)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("c", SGDS, ids=str)
def test_sgd_is_the_formula(c, size):
    start, gs = tensors(size)
    p, velocity = start.copy(), np.zeros(size)
    for g in gs:
        before = g.copy()
        steps.sgd(p, g, velocity, c)
        assert np.array_equal(g, before)
    expected, v = plain_sgd(start, gs, c)
    assert near(p, expected)
    assert near(velocity, v if c.momentum else 0)


@pytest.mark.parametrize("goes", [True, False])
def test_a_factor_that_a_device_has_computed_takes_another_one(goes):
    start, gs = tensors(7)
    c = steps.SgdStep(1e-2, 0.9, 0.1, False, 0.5)
    (p, v), (q, w) = ((start.copy(), np.ones(7)) for _ in range(2))
    steps.sgd(p, gs[0], v, c, steps.MixedStep(None, np.array([0.25, goes])).times(-1.0))
    if goes:
        steps.sgd(q, gs[0], w, c, steps.MixedStep(None, -0.25))
    assert np.array_equal(p, q)
    assert np.array_equal(v, w)
    assert np.array_equal(p, start) != goes


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("c", [ADAMS[1], ADAMS[-1]], ids=str)
def test_amsgrad_is_the_formula(c, size):
    start, gs = tensors(size)
    p, M, V, largest = start.copy(), np.zeros(size), np.zeros(size), np.zeros(size)
    for t, g in enumerate(gs, 1):
        steps.adam(p, g, M, V, c._replace(t=t), largest)
    assert near(p, plain_adam(start, gs, c, amsgrad=True)[0])
    assert (largest >= V).all()


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("c", RMSPROPS, ids=str)
def test_rmsprop_is_the_formula(c, centered, size):
    start, gs = tensors(size)
    p, squares, velocity, mean = start.copy(), *np.zeros((3, size))
    for g in gs:
        before = g.copy()
        steps.rmsprop(
            p, g, squares, velocity if c.momentum else None, mean if centered else None, c
        )
        assert np.array_equal(g, before)
    expected = plain_rmsprop(start, gs, c, centered)
    assert near(p, expected[0])
    assert near(squares, expected[1])
    assert near(velocity, expected[2] if c.momentum else 0)
    assert near(mean, expected[3] if centered else 0)
