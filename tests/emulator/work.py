"""The bytes and operations of what the null device has noted.

An array that a kernel gets counts as a whole, once: what caches keep, and what a kernel reads
twice, is not known here. Sources that nnmpi compiles take arrays as addresses: `note_arrays` lets
their launches say how many bytes each has.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from emulator import machine

Parameter = tuple[str, int]
"""A parameter of a kernel: the kernel's name, and the place."""

NONE = frozenset[Parameter]()


class Work(NamedTuple):
    """What one call makes the device do; `numbers` is the kind of numbers that are multiplied."""

    name: str
    nbytes: int
    operations: int = 0
    numbers: str = ""


def works(calls: Iterable[tuple[str, str]], twice: Collection[Parameter] = NONE) -> Iterator[Work]:
    """The work of all calls, those in graphs included. The arrays of parameters in `twice` are read
    and written, or read twice."""
    for kind, text in calls:
        if kind == "node":
            kind, _, text = text.partition("\t")
        name, *details = text.split("\t")
        if kind == "kernel" and name != "memset":
            yield _of_kernel(name, details, twice)
        elif kind == "copy":
            yield Work(name, int(details[0]) * (2 if name == "device to device" else 1))
        elif kind in ("kernel", "library"):
            yield LIBRARIES.get(name, _of_bytes)(name, details)


def _of_kernel(name: str, details: list[str], twice: Collection[Parameter]) -> Work:
    parameters, arrays = (text.split() for text in details)
    if not arrays:  # of CuPy
        return Work(name, sum(map(_bytes_of_view, map(bytes.fromhex, parameters))))
    times = (1 + ((name, place) in twice) for place in range(len(arrays)))
    return Work(name, sum(int(n) * k for n, k in zip(arrays, times, strict=True)))


def _bytes_of_view(parameter: bytes) -> int:
    """The bytes of an array that CuPy gives to a kernel: address, size, shape and strides. 0 for
    all else, such as an index, which has an odd number of words."""
    if not parameter or len(parameter) % 16:
        return 0
    _, _, *rest = np.frombuffer(parameter, np.int64).tolist()
    shape, strides = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    moved = [(n, abs(s)) for n, s in zip(shape, strides, strict=True) if s]
    step = min((s for _, s in moved), default=4)
    item = step if step in (1, 2, 4, 8) else 4  # the size of a number is not among the parameters
    return int(np.prod([n for n, _ in moved], dtype=np.int64)) * item


def _of_bytes(name: str, details: list[str]) -> Work:
    return Work(name, int(details[0]))


def _of_product(name: str, details: list[str]) -> Work:
    m, n, k, count, item, item_of_c, in_tf32, adds = map(int, details)
    nbytes = count * ((m * k + k * n) * item + (1 + adds) * m * n * item_of_c)
    numbers = "tf32" if in_tf32 else {2: "16 bits", 4: "float32", 8: "float64"}[item]
    return Work(name, nbytes, 2 * m * n * k * count, numbers)


def _of_numbers(name: str, details: list[str]) -> Work:
    letter, read, written = details
    return Work(name, (int(read) + int(written)) * np.dtype(letter).itemsize)


def _of_cudnn(name: str, details: list[str]) -> Work:
    nbytes, operations, numbers = details
    return Work(name, int(nbytes), int(operations), numbers)


LIBRARIES = {
    "gemm": _of_product,
    **dict.fromkeys(("reduce", "scan", "sort"), _of_numbers),
    **dict.fromkeys(("fprop", "dgrad", "wgrad", "sdpa", "sdpa_backward"), _of_cudnn),
}
"""How the details of a library's call are read; of others they are bytes."""


def note_arrays() -> None:
    """From now on, kernels of cupy.RawModule say how many bytes their arrays have."""
    import cupy

    plain, driver = cupy.RawModule, machine.library()

    class Kernel:
        def __init__(self, kernel: Any) -> None:
            self._kernel = kernel

        def __call__(self, grid: Any, block: Any, args: Any, **options: Any) -> None:
            driver.emulator_arrays(" ".join(map(_size_of, args)).encode())
            self._kernel(grid, block, args, **options)

    class Module:
        def __init__(self, *args: Any, **options: Any) -> None:
            self._module = plain(*args, **options)

        def get_function(self, name: str) -> Kernel:
            return Kernel(self._module.get_function(name))

    cupy.RawModule = Module


def _size_of(argument: Any) -> str:
    if isinstance(argument, np.uintp) and argument:
        raise TypeError("a kernel gets an address, whose bytes are not known: give it the array")
    return "0" if isinstance(argument, np.generic) else str(argument.nbytes)
