"""Array backends (NumPy, CuPy, arrays without data) and the kernels that compute on their arrays;
dtypes, keyed random numbers, settings of BLAS. Gradients: `nnmpi.autograd`."""
