"""Convolution kernels: every algorithm, fusion and cutting into chunks gives the same numbers."""

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

from nnmpi.arrays import backend
from nnmpi.arrays.kernels import conv
from nnmpi.arrays.kernels.im2col import Im2col
from nnmpi.arrays.kernels.window import Window, windows
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops import conv as ops
from nnmpi.autograd.ops import elementwise
from nnmpi.autograd.ops.pool import max_pool

ALGORITHMS = conv.CONVOLUTIONS[1:]  # but auto
N, C, O = 7, 9, 5  # images, channels in, channels out


class Options(NamedTuple):
    """Those of `ops.conv2d`."""

    stride: int = 1
    padding: int = 0
    relu: bool = False
    pool: bool = False
    algorithm: str = "auto"

    def shape(self, w: np.ndarray) -> conv.ConvShape:
        """What the kernel is given."""
        both = windows(w.shape[2:], self.stride, self.padding)
        return conv.ConvShape(both, 1, self.relu, self.pool, self.algorithm)


class Problem(NamedTuple):
    """Images, kernels, bias and the gradient of the outputs."""

    x: np.ndarray
    w: np.ndarray
    b: np.ndarray | None
    g: np.ndarray


def problem(size: tuple[int, int], f: Options, bias: bool = True) -> Problem:
    rng = np.random.default_rng([*size, f.padding])
    h, w = ((n + 2 * f.padding - 2) // (2 if f.pool else 1) for n in size)
    x, kernels = rng.standard_normal((N, *size, C)), rng.standard_normal((3, 3, C, O))
    b = rng.standard_normal(O) if bias else None
    g = rng.standard_normal((N, O, h, w))
    return Problem(x.transpose(0, 3, 1, 2), kernels.transpose(3, 2, 0, 1), b, g)


def solve(q: Problem, f: Options) -> list[np.ndarray]:
    """The value, and the gradients by x, w and b."""
    args = [None if a is None else Tensor(a, requires_grad=True) for a in (q.x, q.w, q.b)]
    y = apply(ops.conv2d, *args, **f._asdict())
    y.backward(q.g)
    return [y.data, *(a.grad for a in args if a is not None)]


def relative_error(ours: list[np.ndarray], exact: list[np.ndarray]) -> float:
    """The largest difference, as a share of each array's largest number."""
    pairs = zip(ours, exact, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def chunk_of(q: Problem, f: Options) -> tuple[Any, int]:
    """The algorithm that would be used, and how many images it takes at once."""
    return conv.method_of(q.x.transpose(0, 2, 3, 1), q.w.transpose(2, 3, 1, 0), f.shape(q.w))


@pytest.fixture(params=["one chunk", "uneven chunks", "image by image"])
def chunks(request, monkeypatch):
    """A function that sets, for a problem, how much is done at a time."""

    def cut(q: Problem, f: Options) -> None:
        size = 1 if request.param == "image by image" else 1 << 30
        while True:
            monkeypatch.setattr(backend, "CPU", backend.CPU._replace(chunk_bytes=size))
            chunk = chunk_of(q, f)[1]
            if request.param != "uneven chunks" or N % chunk:
                break
            size //= 2
        assert (chunk == N, chunk == 1) == (
            request.param == "one chunk",
            request.param == "image by image",
        )

    return cut


# ---- the algorithms agree: that im2col is right, tests/autograd/test_ops.py shows

SIZES = ((4, 4), (4, 5), (7, 8), (9, 9), (6, 11), (2, 13))


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "im2col"])
def test_each_algorithm_is_im2col(algorithm, padding, chunks):
    tried = 0
    for size, pool, (relu, bias) in product(
        SIZES, (False, True), ((False, False), (False, True), (True, True))
    ):
        if min(size) + 2 * padding < 4:
            continue
        f = Options(1, padding, relu, pool, algorithm)
        q = problem(size, f, bias)
        exact = solve(q, f._replace(algorithm="im2col"))
        chunks(q, f)
        assert not isinstance(chunk_of(q, f)[0], Im2col)
        assert relative_error(solve(q, f), exact) < 1e-11, (size, f)
        tried += 1
    assert tried >= 30


# ---- fusion


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_fused_relu_gives_the_same_bits(algorithm, chunks):
    f = Options(1, 1, True, False, algorithm)
    q = problem((7, 8), f)
    chunks(q, f)
    args = [Tensor(a, requires_grad=True) for a in (q.x, q.w, q.b)]
    y = apply(elementwise.relu, apply(ops.conv2d, *args, padding=1, algorithm=algorithm))
    y.backward(q.g)
    apart = [y.data, *(a.grad for a in args)]
    assert all(np.array_equal(a, b) for a, b in zip(solve(q, f), apart, strict=True))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [(8, 8), (7, 9)])
@pytest.mark.parametrize("relu", [False, True])
def test_a_fused_pool_is_the_pool_apart(algorithm, size, relu, chunks):
    f = Options(1, 1, relu, True, algorithm)
    q = problem(size, f)
    chunks(q, f)
    args = [Tensor(a, requires_grad=True) for a in (q.x, q.w, q.b)]
    y = apply(ops.conv2d, *args, padding=1, algorithm=algorithm)
    y = apply(elementwise.relu, y) if relu else y
    y = apply(max_pool, y, kernel=2, stride=2)
    y.backward(q.g)
    assert relative_error(solve(q, f), [y.data, *(a.grad for a in args)]) < 1e-12


def test_same_pads_one_more_behind_where_the_kernel_is_even() -> None:
    for kernel, dilation, sides in ((3, 1, (1, 1)), (4, 1, (1, 2)), (2, 3, (1, 2)), (1, 5, (0, 0))):
        rows, columns = windows((kernel, kernel), 1, "same", dilation)
        assert rows == columns == Window(kernel, 1, *sides, dilation)
        assert rows.outputs(9) == 9


# ---- rounding


def draws(count: int):
    """Problems of real sizes, the same every time."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        x, w = rng.standard_normal((4, 64, 14, 14)), rng.standard_normal((32, 64, 3, 3))
        yield Problem(x, w, None, rng.standard_normal((4, 32, 14, 14)))


def single(q: Problem) -> Problem:
    return Problem(*(None if a is None else a.astype("float32") for a in q))


BOUNDS = {"winograd2": 1.5e-6, "im2col": 1.5e-6, "winograd4": 3e-5}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rounding_in_float32_stays_within_its_class(algorithm):
    exact = Options(padding=1, algorithm="im2col")
    for q in draws(3):
        assert (
            relative_error(solve(single(q), exact._replace(algorithm=algorithm)), solve(q, exact))
            < BOUNDS[algorithm]
        )
