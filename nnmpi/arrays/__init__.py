"""Array backends (NumPy, CuPy, arrays without data) and the kernels that compute on their arrays;
the policy of dtypes, keyed random numbers and settings of BLAS. Gradients are in
`nnmpi.autograd`."""
