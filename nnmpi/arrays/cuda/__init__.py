"""Kernels for arrays of CuPy, in CUDA C or by cuBLAS, under the names and with the arguments of the
table; and graphs of cuDNN.

Each kernel returns NotImplemented, having written nothing, for arrays that it is not made for:
those of libraries without CUDA, of other types (those in CUDA C take float32 and 16 bits, products
16 bits), other strides, more than 2**31 numbers.
"""

from typing import TYPE_CHECKING, NoReturn

from nnmpi.arrays import backend
from nnmpi.arrays.cuda import kernels, products

KERNELS = {**kernels.KERNELS, "products_loop": products.products_loop}
"""The kernels by their names in the table."""


def is_available() -> bool:
    """Tell whether CuPy is installed and finds a GPU."""
    return not backend.get("auto").is_host


if not TYPE_CHECKING:  # so that type checkers still know which names there are

    def __getattr__(name: str) -> NoReturn:
        raise AttributeError(
            f"nnmpi.cuda has no {name!r}: nnmpi.manual_seed seeds all devices, a rank takes the "
            "GPU of its number on the node, and t.item() and t.numpy() alone wait for it"
        )
