"""Kernels for arrays of CuPy, in CUDA C or by cuBLAS, under the names and with the arguments of the
table; and graphs of cuDNN.

Each kernel returns NotImplemented, having written nothing, for arrays that it is not made for:
those of libraries without CUDA, of other types (those in CUDA C take float32 and 16 bits, products
16 bits), other strides, more than 2**31 numbers.
"""

from nnmpi.cuda import kernels, products

KERNELS = {**kernels.KERNELS, "products_loop": products.products_loop}
"""By their names in the table."""
