"""Array backends (NumPy, CuPy, arrays without data) and the kernels that compute on their arrays.

This folder has backends and devices, the policy of dtypes, keyed random numbers and settings of
BLAS; `meta`, arrays without data; `kernels`, functions of arrays; their compiled forms in `native`
and `cuda`. Gradients are in `nnmpi.autograd`.
"""
