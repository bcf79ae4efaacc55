"""Products of matrices by cuBLAS, mostly in 16 bits."""

from collections.abc import Iterator

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device, needs_emulator
from helpers.kernels.numbers import Rng, one_of

from nnmpi.addons.cuda import products
from nnmpi.addons.cuda.products import products_loop
from nnmpi.addons.cuda.tf32 import allow_tf32
from nnmpi.arrays import backend
from nnmpi.arrays.dtypes import named
from nnmpi.arrays.kernels.linear import matmul
from nnmpi.autograd.ops import linear

pytestmark = needs_device
HALVES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
CLOSE = {"float16": 1e-3, "bfloat16": 8e-3}


def placed(rng: Rng, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Numbers whose axes lie in memory in some order, with gaps in every third draw."""
    axes = rng.permutation(len(shape))
    order = [shape[i] for i in axes]
    if order and one_of(rng, True, False, False):
        order[-1] += int(rng.integers(1, 4))
    a = rng.standard_normal(order).astype(named(dtype)).transpose(np.argsort(axes))
    return a[tuple(slice(0, n) for n in shape)]


def on_device(a: np.ndarray) -> backend.Array:
    """The same numbers at the same distances."""
    base = a
    while base.base is not None:
        base = base.base
    whole = DEVICE.asarray(base)
    start = (a.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // a.itemsize
    flat = whole.reshape(-1)[start:]
    return DEVICE.xp.lib.stride_tricks.as_strided(flat, a.shape, a.strides)


@HALVES
def test_matrices_are_read_and_written_where_they_lie(dtype: str) -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        m, k, n = map(int, rng.integers(1, 6, 3))
        lead = tuple(map(int, rng.integers(1, 4, rng.integers(0, 4))))
        some = tuple(one_of(rng, size, 1) for size in lead)[rng.integers(0, len(lead) + 1) :]
        a, b = placed(rng, (*lead, m, k), dtype), placed(rng, (*some, k, n), dtype)
        c = placed(rng, (*lead, m, n), one_of(rng, dtype, "float32"))
        adds = one_of(rng, True, False)
        there = on_device(c)
        assert products_loop(on_device(a), on_device(b), there, adds) is None
        exact = a.astype("float64") @ b.astype("float64") + (c.astype("float64") if adds else 0)
        bound = CLOSE[dtype] if c.dtype == a.dtype else 1e-6
        found = backend.to_host(there).astype("float64")
        np.testing.assert_allclose(found, exact, rtol=bound, atol=bound * 4, err_msg=str(seed))


def drawn(seed: int, dtype: str, layouts: int) -> list[np.ndarray]:
    """A, B and C with numbers of `seed`, in memory as `layouts` says."""
    rng, numbers = np.random.default_rng(layouts), np.random.default_rng(seed)
    m, k, n = map(int, rng.integers(1, 4, 3))
    matrices = [placed(rng, (2, 3, *shape), dtype) for shape in ((m, k), (k, n), (m, n))]
    for a in matrices:
        a[...] = numbers.standard_normal(a.shape).astype(a.dtype)
    return matrices


def assert_multiplied(a: np.ndarray, b: np.ndarray, c: np.ndarray, adds: bool) -> None:
    there = on_device(c)
    assert products_loop(on_device(a), on_device(b), there, adds) is None
    exact = a.astype("f8") @ b.astype("f8") + (c.astype("f8") if adds else 0)
    bound = CLOSE.get(c.dtype.name, 1e-5)
    np.testing.assert_allclose(
        backend.to_host(there).astype("f8"), exact, rtol=bound, atol=bound * 4
    )


def test_layouts_that_were_multiplied_before_are_right_for_other_arrays() -> None:
    """cuBLAS's arguments are kept; addresses, dtypes of the same size and sums are not mixed up."""
    products._plan.cache_clear()
    for layouts in range(40):
        for seed, (dtype, adds) in enumerate(
            (dtype, adds) for adds in (False, True) for dtype in ("float16", "bfloat16", "float32")
        ):
            assert_multiplied(*drawn(seed, dtype, layouts), adds)
            before = products._plan.cache_info().misses
            assert_multiplied(*drawn(seed + 10, dtype, layouts), adds)
            assert products._plan.cache_info().misses == before


@pytest.fixture
def tf32() -> Iterator[None]:
    yield
    allow_tf32(DEVICE, False)


@pytest.mark.usefixtures("tf32")
def test_tf32_that_is_allowed_later_is_used_for_layouts_of_before() -> None:
    a, b, c = (DEVICE.asarray(np.full((2, 2), 1 + 2**-12, "float32")) for _ in range(3))
    found = []
    for allowed in (False, True, False):
        allow_tf32(DEVICE, allowed)
        products_loop(a, b, c, False)
        found.append(float(c[0, 0]))
    exact = 2 * (1 + 2**-12) ** 2
    assert found[0] == found[2] == np.float32(exact)
    assert found[1] == 2.0  # factors of 11 bits


@needs_emulator
def test_each_device_has_a_handle_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are threads, on different devices, with products of the same layouts."""
    cuda, handles = DEVICE.xp.cuda, list[tuple[int, int]]()
    real = cuda.cublas.gemmStridedBatchedEx

    def gemm(handle: int, *arguments: object) -> None:
        handles.append((handle, cuda.get_cublas_handle()))
        real(handle, *arguments)

    monkeypatch.setattr(products, "_gemm", lambda *_: gemm)
    for device in (0, 1, 0):
        with cuda.Device(device):
            a, c = DEVICE.xp.ones((3, 3), "float32"), DEVICE.xp.empty((3, 3), "float32")
            products_loop(a, a, c, False)
            assert backend.to_host(c).tolist() == [[3.0] * 3] * 3
    assert all(used == current for used, current in handles)
    assert len(set(handles)) == 2


@HALVES
def test_sums_are_in_float32(dtype: str) -> None:
    """Of 4,000 ones float16's own sum would stop at 2,048, and bfloat16's at 256."""
    ones = DEVICE.asarray(np.ones((2, 1, 4000), named(dtype)))
    found = backend.to_host(matmul(ones, ones.swapaxes(1, 2), "float32"))
    np.testing.assert_array_equal(found, np.full((2, 1, 1), 4000.0))


def test_no_columns_and_no_rows() -> None:
    xp = DEVICE.xp
    for m, k in ((0, 3), (3, 0)):
        a, b = xp.ones((2, m, k), "float16"), xp.ones((2, k, 4), "float16")
        c = xp.ones((2, m, 4), "float16")
        products_loop(a, b, c, False)
        assert backend.to_host(c).tolist() == np.zeros((2, m, 4)).tolist()


SHAPES = {
    "several": ((2, 3, 4), (2, 4, 5)),
    "one for several": ((2, 3, 4), (4, 5)),
    "broadcast": ((2, 1, 3, 4), (3, 4, 5)),
    "vectors": ((4,), (4,)),
    "a vector": ((2, 3, 4), (4,)),
    "rows": ((4,), (2, 4, 5)),
    "matrices": ((3, 4), (4, 5)),
}


@HALVES
@pytest.mark.parametrize("name", SHAPES)
def test_the_op_gives_the_values_and_gradients_of_the_host(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(named(dtype)) for shape in SHAPES[name])
    here, there = linear.matmul(a, b), linear.matmul(DEVICE.asarray(a), DEVICE.asarray(b))
    g = rng.standard_normal(here.value.shape).astype(named(dtype))
    pairs = [(here.value, there.value)]
    for one, other in zip(here.vjps, there.vjps, strict=True):
        of_g = g if here.prepare is None else here.prepare(g, [True, True])
        on = DEVICE.asarray(g)
        of_there = on if there.prepare is None else there.prepare(on, [True, True])
        pairs.append((one(of_g, None), other(of_there, None)))
    for wanted, found in pairs:
        assert found.dtype == wanted.dtype
        x, y = backend.to_host(found).astype("float64"), wanted.astype("float64")
        np.testing.assert_allclose(x, y, rtol=CLOSE[dtype], atol=4 * CLOSE[dtype])
