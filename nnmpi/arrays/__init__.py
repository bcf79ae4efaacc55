"""Arrays of NumPy, of CuPy and without numbers, and the kernels that compute on them.

Here: the backends and their devices, types of numbers, keyed random numbers and settings of BLAS;
`meta`, arrays without numbers; `kernels`, functions of arrays; their compiled forms, `native` and
`cuda`. Not here: gradients, which are `nnmpi.autograd`'s.
"""
