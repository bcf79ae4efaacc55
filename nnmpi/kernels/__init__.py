"""The inner loops: convolution, pooling and optimizer steps, written for cache and BLAS."""
