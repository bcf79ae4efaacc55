"""Attention of arrays in 16 bits, compiled for each set of instructions and in NumPy."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers.kernels.numbers import Rng, one_of

from nnmpi.addons.transformer.kernels import attention as kernels
from nnmpi.addons.transformer.kernels.attention import Scores
from nnmpi.addons.transformer.kernels.heads import Heads
from nnmpi.arrays import native
from nnmpi.arrays.dtypes import HALVES, named
from nnmpi.arrays.kernels.precision import round_loop
from nnmpi.arrays.native.table import Kernel

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of one rounding."""

SETS = [pytest.param(module, id=name) for name, module in native.modules()]
LENGTHS = 2, 7, 12, 13, 48, 49, 100, 256, 300
SIZES = 2, 5, 31, 32, 33, 64, 80

Arrays = list[np.ndarray]


@pytest.fixture(params=[*SETS, pytest.param(None, id="numpy")])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of one set of instructions."""
    module: ModuleType | None = request.param
    for loop in (kernels.attention_loop, kernels.attention_gradient_loop, round_loop):
        name = loop.reference.__name__
        one = Kernel(loop.reference, getattr(module, name, None), None)
        monkeypatch.setattr(kernels, name, one)


def drawn(rng: Rng, dtype: Any) -> Arrays:
    """q, k, v and dy; in every second draw a position's heads lie side by side in memory."""
    N, K, G = map(int, rng.integers(1, 3, 3))
    (T, S), (D, E) = (rng.choice(x, 2) for x in (LENGTHS, SIZES))

    def array(*shape: int) -> np.ndarray:
        *lead, rows, n = shape
        x = rng.standard_normal((lead[0], rows, *lead[1:], n))
        return np.moveaxis(x, 1, -2).astype(dtype, order=one_of(rng, "C", "K"))

    return [array(N, K, G, T, D), array(N, K, S, D), array(N, K, S, E), array(N, K, G, T, E)]


def computed(arrays: Arrays, how: Scores) -> Arrays:
    """y, lse, dq, dk and dv, in the type of q, k, v and dy."""
    q, k, v, dy = arrays
    y = np.empty(dy.shape, dy.dtype)
    lse = np.empty(dy.shape[:-1], np.promote_types(np.float32, dy.dtype))
    kernels.attention(Heads(q, k, v), how, y, lse)
    gradients = [np.empty(a.shape, a.dtype) for a in (q, k, v)]
    kernels.attention_gradients(Heads(q, k, v), how, y, lse, dy, Heads(*gradients))
    return [y, lse, *gradients]


def probabilities(q: np.ndarray, k: np.ndarray, how: Scores) -> np.ndarray:
    s = how.scale * np.einsum("nkgtd,nksd->nkgts", q, k)
    T, S = s.shape[-2:]
    if how.causal:
        s[..., np.arange(S) > np.arange(T)[:, None]] = -np.inf
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def bounds(arrays: Arrays, how: Scores, u: float) -> Arrays:
    """How far y, dq, dk and dv may be from what these numbers give, to first order in u.

    y = sum p v is off by u |p| |v| of p and u |y| of itself. In ds = scale p (dp - dot(dy, y)) the
    dot is off by u |dy| |y|, and y by what is above; ds is rounded as p is, and then dq, dk and dv.
    """
    q, k, v, dy = (abs(a) for a in arrays)
    p = probabilities(*arrays[:2], how)
    y = 2 * u * np.einsum("nkgts,nkse->nkgte", p, v)
    dp = np.einsum("nkgte,nkse->nkgts", dy, v)
    dot = np.einsum("nkgts,nkgts->nkgt", p, dp)[..., None]
    ds = abs(how.scale) * p * u * (dp + dot + 2 * dot)
    own = 2 * np.einsum("nkgts,nksd->nkgtd", ds, k), 2 * np.einsum("nkgts,nkgtd->nksd", ds, q)
    return [y, *own, 2 * u * np.einsum("nkgts,nkgte->nkse", p, dy)]


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("dtype", HALVES)
def test_values_and_gradients_are_those_of_float64_but_for_roundings(dtype: str) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        arrays, u = drawn(rng, named(dtype)), UNIT[dtype]
        how = Scores(
            one_of(rng, arrays[0].shape[-1] ** -0.5, -0.3), causal=one_of(rng, False, True)
        )
        exact = [a.astype(np.float64) for a in arrays]
        y, lse, *gradients = computed(arrays, how)
        right, right_lse, *rest = computed(exact, how)
        np.testing.assert_allclose(lse, right_lse, rtol=0, atol=1e-5)
        pairs = zip((y, *gradients), (right, *rest), bounds(exact, how, u), strict=True)
        for found, wanted, bound in pairs:
            assert found.dtype == arrays[0].dtype
            tiny = 2.0**-24 + 1e-6 * abs(wanted).max()  # denormals of float16; sums in float32
            assert (abs(found.astype(np.float64) - wanted) <= bound + tiny).all(), seed


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("dtype", HALVES)
def test_a_head_has_the_same_bits_alone(dtype: str) -> None:
    rng = np.random.default_rng(1)
    shapes = (3, 2, 2, 70, 40), (3, 2, 300, 40), (3, 2, 300, 24), (3, 2, 2, 70, 24)
    arrays = [rng.standard_normal(shape).astype(named(dtype)) for shape in shapes]
    how = Scores(0.2, causal=True)
    whole = computed(arrays, how)
    part = computed([a[1:2, 1:] for a in arrays], how)
    for a, b in zip(whole, part, strict=True):
        assert a[1:2, 1:].tobytes() == b.tobytes()


@pytest.mark.usefixtures("loops")
def test_gradients_of_many_tiles_are_rounded_once() -> None:
    """Each of 2,000 queries adds 1 / 4 to dv of four keys: bfloat16's own sum would stop at 128."""
    T, dtype = 2000, named("bfloat16")
    q, dy = np.zeros((1, 1, 1, T, 2), dtype), np.ones((1, 1, 1, T, 2), dtype)
    k, v = np.zeros((1, 1, 4, 2), dtype), np.ones((1, 1, 4, 2), dtype)
    dv = computed([q, k, v, dy], Scores(1.0))[-1]
    np.testing.assert_array_equal(dv.astype(float), np.array(T / 4, dtype).astype(float))
