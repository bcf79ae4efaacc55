"""Backends: finds the array library that an array belongs to, and moves arrays between libraries.

Other modules write `xp = xp_of(array)` and then plain array operations; only this file imports
CuPy. The library follows from an array's type: there is no state, and any NumPy-like module works.
"""

import sys
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays import meta

Array = Any  # an ndarray of NumPy, CuPy or a module like them

DEVICES = ("cpu", "cuda", "auto")


class Backend(NamedTuple):
    """An array library `xp`, and the number of bytes that a kernel should process at a time: on a
    CPU what fits in the cache of a core; a GPU processes everything at once.

        is_host   True if arrays are in host memory, or stand for such arrays but have no data
    """

    name: str
    xp: Any
    chunk_bytes: int = 1 << 30
    is_host: bool = False

    @property
    def type(self) -> str:
        """The name of the backend, "cpu" or "cuda", as `type` of PyTorch's devices."""
        return self.name

    def __str__(self) -> str:
        return self.name

    def asarray(self, array: Array, dtype: Any = None) -> Array:
        """Returns `array` as an array of this backend; itself if it is one or has no data."""
        # by type, since an array without data is an instance of ndarray, too
        if type(array) is np.ndarray or not (self.is_host or meta.is_meta(array)):
            return self.xp.asarray(array, dtype)
        return meta.xp.asarray(to_host(array), dtype)


CPU = Backend("cpu", np, chunk_bytes=5 << 19, is_host=True)
META = CPU._replace(xp=meta.xp)
"""The backend of arrays without data, which computes shapes and dtypes as on the host."""


def is_device(value: object) -> bool:
    """True if `value` is the name of a device, such as "cpu" or "cuda:1". A GPU with another number
    than 0 counts too, though `get` then raises ValueError: each rank sees one GPU."""
    return isinstance(value, str) and value.partition(":")[0] in DEVICES


def get(device: str | Backend, index: int | None = None) -> Backend:
    """Returns the backend of a device: "cpu", "cuda", or "auto" (CUDA where it works, else the
    CPU). Its number, as in "cuda:0" or in `index`, may only be 0: the GPU of this rank."""
    if isinstance(device, Backend):
        return device
    if device not in DEVICES or index is not None:
        device = _without_number(device, index)
    if device == "cpu":
        return CPU
    missing = _why_no_cuda()
    if not missing:
        return Backend("cuda", _cupy())
    if device == "auto":
        return CPU
    raise ValueError(f"no CUDA device: {missing}; use the device cpu")


def _without_number(device: str, index: int | None) -> str:
    """Returns the name of a device, "cuda", without the number that follows it ("cuda:0") or that
    is given as `index`. Raises ValueError if the number is not 0, or if there is no such device."""
    name, _, number = str(device).partition(":")
    if name not in DEVICES:
        raise ValueError(f"device {device!r} is not one of {', '.join(DEVICES)}")
    if index is not None:
        number = str(index)
    if number not in ("", "0"):
        raise ValueError(
            f"device '{name}:{number}': write {name!r}: each rank has one GPU, number r "
            f"mod the number of GPUs for rank r, and sees it as {name}:0"
        )
    return name


device = get
"""`get` under PyTorch's name."""


@lru_cache(maxsize=1)
def _why_no_cuda() -> str:
    """Returns the reason why CUDA cannot be used, or an empty string if it can."""
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
    if issubclass(kind, meta.MetaArray):
        return meta.xp
    if issubclass(kind, np.generic):  # an element; bfloat16 is not in the module of its array
        return np
    root = sys.modules[kind.__module__.partition(".")[0]]
    if not hasattr(root, "ndarray"):
        raise ValueError(f"{kind.__name__} is not an array of NumPy, CuPy or a module like them")
    return root


def xp_of(array: Array) -> Any:
    """Returns the module (numpy, cupy, ...) that an array belongs to."""
    kind: Any = type(array)
    return np if kind is np.ndarray else _xp_of_type(kind)


def of(array: Array) -> Backend:
    if type(array) is np.ndarray:
        return CPU
    xp = xp_of(array)
    return CPU if xp is np else META if xp is meta.xp else Backend("cuda", xp)


def address_of(array: Array) -> int:
    """Returns the address of an array's first element, in the memory of its device."""
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(interface["data"][0])


def is_array(value: object) -> bool:
    """True if `value` is an array of some backend; a NumPy scalar is not one."""
    kind: Any = type(value)
    return kind is np.ndarray or _is_array_type(kind)


@lru_cache(maxsize=64)
def _is_array_type(kind: Any) -> bool:
    module = sys.modules[kind.__module__.partition(".")[0]]
    # not getattr: a module-level __getattr__ may raise with advice
    array = vars(module).get("ndarray", meta.MetaArray)
    return isinstance(array, type) and issubclass(kind, array)


def from_dlpack(value: Any) -> Array:
    """Returns an array of NumPy or CuPy that shares memory with an array of another library, such
    as a tensor of PyTorch or an array of JAX; raises TypeError if its memory cannot be shared."""
    if is_array(value):
        return value
    if not hasattr(value, "__dlpack__"):
        raise TypeError(f"{type(value).__name__} is no array: it has no __dlpack__")
    kind = int(value.__dlpack_device__()[0])
    if kind not in (HOST, PINNED, *CUDA_KINDS):
        raise TypeError(
            f"this {type(value).__name__} is in memory of the DLPack device type {kind}, which "
            "neither NumPy nor CuPy can use: copy it to the host first"
        )
    try:
        return (get("cuda").xp if kind in CUDA_KINDS else np).from_dlpack(value)
    except (BufferError, RuntimeError, ValueError) as error:
        raise TypeError(
            f"the memory of this {type(value).__name__} cannot be shared ({error}): pass a copy in "
            "a type of NumPy, without a gradient"
        ) from error


HOST, PINNED, CUDA_KINDS = 1, 3, (2, 13)
"""Device types of DLPack: host memory, pinned host memory, and memory of a GPU."""


def to_list(row: Array) -> list[float]:
    """Copies a 1-D array to a list of floats; one without data gives ones, which are finite."""
    if isinstance(row, meta.MetaArray):
        return [1.0] * row.size
    listed: list[float] = (row if type(row) is np.ndarray else to_host(row)).tolist()
    return listed


def to_floats(on: Backend, numbers: Sequence[Any]) -> list[float]:
    """Converts numbers and one-element arrays on `on` to floats; the host waits only once."""
    if on.is_host:
        return [to_float(x) for x in numbers]
    xp = on.xp
    return to_list(xp.concatenate([xp.asarray(x, np.float64).reshape(1) for x in numbers]))


def to_float(x: Any) -> float:
    """Converts a number or an array with one element to a float; an array without data gives 1."""
    return 1.0 if isinstance(x, meta.MetaArray) else float(x)


def to_host(array: Array) -> np.ndarray:
    """Returns a NumPy array of the values; nothing else in a step waits for a device."""
    # np.asarray would make a plain array of one without data, which could then be read
    if isinstance(array, (np.ndarray, np.generic)):
        return array if isinstance(array, meta.MetaArray) else np.asarray(array)
    host: np.ndarray = array.get()
    return host
