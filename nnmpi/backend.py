"""Which array library holds an array, and the few ways in and out of it.

Everything above this file writes `xp = xp_of(array)` and then plain array
operations; this is the only file that knows that CuPy exists. The library is
found from the array itself, so no state is kept and any module that behaves
as NumPy does (the strict stand-in of the tests, say) takes part.
"""

import sys
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

Array = Any  # an ndarray, or whatever another library has in its place

DEVICES = ("cpu", "cuda", "auto")


class Backend(NamedTuple):
    """An array library `xp`, and how many bytes a kernel should touch at a time there.

    A core works best within its own cache; a GPU wants everything at once.
    """

    name: str
    xp: ModuleType
    chunk_bytes: int = 1 << 30

    @property
    def is_host(self) -> bool:
        return self.xp is np

    def asarray(self, array: Array, dtype: Any = None) -> Array:
        """`array` on this backend; the very same object if it is there already."""
        if not self.is_host or type(array) is np.ndarray:
            return self.xp.asarray(array, dtype)
        return np.asarray(to_host(array), dtype)


CPU = Backend("cpu", np, chunk_bytes=5 << 19)


def get(device: str) -> Backend:
    """The backend behind `--device`; `auto` takes CUDA where it works and the CPU elsewhere."""
    if device not in DEVICES:
        raise ValueError(f"device {device!r} is not one of {', '.join(DEVICES)}")
    if device == "cpu":
        return CPU
    missing = _why_no_cuda()
    if not missing:
        return Backend("cuda", _cupy())
    if device == "auto":
        return CPU
    raise ValueError(f"no CUDA device: {missing}; use --device cpu")


@lru_cache(maxsize=1)
def _why_no_cuda() -> str:
    """What stands between this process and CUDA, or the empty string."""
    try:
        cupy = _cupy()
    except ImportError:
        return "CuPy is not installed (pip install 'nnmpi[cuda]')"
    if not cupy.cuda.is_available():
        return "CuPy is installed but finds no GPU or no driver"
    return ""


def _cupy() -> ModuleType:
    import cupy  # type: ignore[import-not-found, unused-ignore]

    module: ModuleType = cupy
    return module


@lru_cache(maxsize=64)
def _xp_of_type(kind: Any) -> Any:
    root = sys.modules[kind.__module__.partition(".")[0]]
    if not hasattr(root, "ndarray"):
        raise ValueError(f"{kind.__name__} is not an array of NumPy, CuPy or a module like them")
    return root


def xp_of(array: Array) -> Any:
    """The module (numpy, cupy, ...) whose functions take this array."""
    kind: Any = type(array)
    return np if kind is np.ndarray else _xp_of_type(kind)


def of(array: Array) -> Backend:
    """The backend that holds this array."""
    xp = xp_of(array)
    return CPU if xp is np else Backend("cuda", xp)


def is_array(value: object) -> bool:
    """Whether `value` is an array of some backend (a NumPy scalar is not one)."""
    kind: Any = type(value)
    return kind is np.ndarray or _is_array_type(kind)


@lru_cache(maxsize=64)
def _is_array_type(kind: Any) -> bool:
    array = getattr(sys.modules[kind.__module__.partition(".")[0]], "ndarray", None)
    return isinstance(array, type) and issubclass(kind, array)


def to_host(array: Array) -> np.ndarray:
    """A NumPy array with these values: the one place where the host waits for a device."""
    if isinstance(array, (np.ndarray, np.generic)):
        return np.asarray(array)
    host: np.ndarray = array.get()
    return host
