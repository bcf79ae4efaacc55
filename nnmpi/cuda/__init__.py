"""Kernels in CUDA C for arrays of CuPy, under the names and with the arguments of the table.

Each returns NotImplemented, having written nothing, for arrays that it is not made for: those of
libraries without CUDA, other types than float32, strides, more than 2**31 numbers.
"""

from nnmpi.cuda.kernels import KERNELS as KERNELS
