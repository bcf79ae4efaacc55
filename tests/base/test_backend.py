"""Backends: how they are found, and how arrays move between them."""

from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from helpers.device import DEVICE, ON_DEVICE, needs_device, waits

from nnmpi.arrays import backend
from nnmpi.arrays.backend import CPU

BOTH = pytest.mark.parametrize("on", [pytest.param(CPU, id="host"), ON_DEVICE])


@pytest.fixture
def cupy(monkeypatch):
    """A function that replaces CuPy by a module, or its import by an error."""

    def put(module: ModuleType | SimpleNamespace | Exception) -> None:
        def load():
            if isinstance(module, Exception):
                raise module
            return module

        monkeypatch.setattr(backend, "_cupy", load)
        backend._why_no_cuda.cache_clear()

    yield put
    backend._why_no_cuda.cache_clear()


def gpu(available: bool) -> SimpleNamespace:
    return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: available))


# ---- by name


@pytest.mark.parametrize(
    ("module", "remedy"),
    [
        (ImportError("No module named 'cupy'"), r"pip install 'nnmpi\[cuda\]'"),
        (gpu(available=False), "finds no GPU or no driver"),
    ],
    ids=["no CuPy", "no GPU"],
)
def test_no_cuda_is_one_line_with_the_remedy(cupy, module, remedy):
    cupy(module)
    with pytest.raises(
        ValueError, match=f"^no CUDA device: .*{remedy}.*; use the device cpu$"
    ) as e:
        backend.get("cuda")
    assert "\n" not in str(e.value)
    assert backend.get("auto") is CPU


def test_cuda_where_it_works(cupy):
    module = gpu(available=True)
    cupy(module)
    for device in ("cuda", "auto"):
        found = backend.get(device)
        assert (found.name, found.xp) == ("cuda", module)
        assert not found.is_host
        assert found.chunk_bytes > 100 * CPU.chunk_bytes
    assert backend.get("cpu") is CPU


def test_auto_and_cuda_agree_on_this_machine():
    """`auto` never fails, and `cuda` works exactly where `auto` chooses it."""
    auto = backend.get("auto")
    if auto is CPU:
        with pytest.raises(ValueError, match="use the device cpu"):
            backend.get("cuda")
    else:
        assert auto.name == backend.get("cuda").name == "cuda"


# ---- by array


@needs_device
def test_the_module_of_an_array_of_a_device():
    array = DEVICE.xp.ones(2)
    assert backend.xp_of(array) is DEVICE.xp
    assert backend.of(array) == DEVICE
    assert not backend.of(array).is_host
    assert backend.is_array(array)


# ---- between backends

VALUES = {
    "NumPy": np.array([[1.5, 2.5]]),
    "0-d": np.array(1.5),
    "a scalar": np.float64(1.5),
    "integers": np.arange(3, dtype="uint8"),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@BOTH
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_asarray_copies_values_to_the_backend(on, value, dtype):
    array = on.asarray(value, dtype)
    assert type(array) is on.xp.ndarray
    assert array.dtype == (dtype or value.dtype)
    assert array.shape == value.shape
    assert type(CPU.asarray(array, dtype)) is np.ndarray
    assert backend.to_host(array).tolist() == backend.to_host(value).tolist()


@needs_device
def test_arrays_on_different_backends_share_no_memory():
    host = np.ones(3)
    device = DEVICE.asarray(host)
    host[0] = 7
    assert device.get().tolist() == [1, 1, 1]
    back = CPU.asarray(device)
    back[0] = 9
    assert device.get().tolist() == [1, 1, 1]


@needs_device
def test_to_host_synchronises_once_and_only_for_a_device():
    host, device = np.arange(3.0), DEVICE.xp.arange(3.0)
    with waits(0):
        assert backend.to_host(host) is host
        assert backend.to_host(np.float64(2)).shape == ()
        DEVICE.asarray(host)
    with waits(1):
        out = backend.to_host(device)
    assert type(out) is np.ndarray
    assert out.tolist() == [0, 1, 2]
