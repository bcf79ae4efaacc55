"""Kernels in CUDA C for arrays of CuPy, under the names and with the arguments of the table.

    kernel("adam_loop")    the function of that name, or None

Each returns NotImplemented, having written nothing, for arrays that it is not made for: those of
libraries without CUDA, other types than float32, strides, more than 2**31 numbers.
"""

from collections.abc import Callable
from typing import Any

from nnmpi.cuda.kernels import KERNELS


def kernel(name: str) -> Callable[..., Any] | None:
    """The kernel of this name in CUDA, if there is one."""
    return KERNELS.get(name)
