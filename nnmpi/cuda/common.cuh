/* Read before each source of this folder.

   In CUDA's order of threads, thread FIRST of a grid takes numbers FIRST, FIRST + STEP, ... */
#ifndef KERNEL /* a test defines it, to compile kernels for the host */
#define KERNEL extern "C" __global__ void
#endif
#define FIRST (blockIdx.x * blockDim.x + threadIdx.x)
#define STEP (gridDim.x * blockDim.x)

/* As np.maximum: b where they are equal, as 0 and -0 are, and NaN if one is. */
#define LARGER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
