/* Included before each source of this folder, after the macros of its types: T, and G for
   gradients.

   Thread FIRST of a grid takes elements FIRST, FIRST + STEP, ... Elements of type T are LOADed
   to float, all computation is in float, and results are ROUNDed once. */
typedef float float32;
typedef double float64; /* only for a loss */
typedef unsigned short float16, bfloat16; /* as bits */

#ifndef KERNEL /* tests define it to compile kernels for the host */
#define KERNEL extern "C" __global__ void
#define DEVICE static __device__
DEVICE float from_float16(float16 bits) {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
    return v;
}
DEVICE float16 to_float16(float v) {
    float16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
}
#endif
DEVICE float from_bfloat16(bfloat16 bits) { return __uint_as_float((unsigned)bits << 16); }
DEVICE bfloat16 to_bfloat16(float v) {
    unsigned bits = __float_as_uint(v);
    return v != v ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
#define from_float32(v) (v)
#define from_float64(v) (v)
#define to_float32(v) (v)
#define to_float64(v) (v)
#define JOINED(a, b) a##b
#define OF(way, type) JOINED(way, type)
#define LOAD(v) OF(from_, T)(v)
#define ROUND(v) OF(to_, T)(v)

#define FIRST (blockIdx.x * blockDim.x + threadIdx.x)
#define STEP (gridDim.x * blockDim.x)
#define EACH(i, n) for (unsigned i = FIRST; i < (n); i += STEP)
#define EACH_BLOCK(i, n) for (unsigned i = blockIdx.x; i < (n); i += gridDim.x)
#define EACH_OF_BLOCK(i, n) for (unsigned i = threadIdx.x; i < (n); i += THREADS)
#define AT(row, width) ((unsigned long long)(row) * (width))

/* As np.maximum: b if they are equal (also 0 and -0), and NaN if one is NaN. */
#define LARGER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

/* 1 / (1 + e^-x), from e^-|x| */
DEVICE float sigmoid(float x) {
    float e = expf(-fabsf(x));
    return LARGER(e, x >= 0.0f ? 1.0f : 0.0f) / (e + 1.0f);
}

/* Reduces one value of each thread of a block to one, in `all` (THREADS, shared memory). The order
   of additions is fixed, so that the same input gives the same bits. */
#define SOME (THREADS / 16)
#define OF_BLOCK(name, operation)                                                                  \
    DEVICE float name(float v, float *all) {                                                       \
        unsigned t = threadIdx.x;                                                                  \
        __syncthreads(); /* all threads have read the previous result */                           \
        all[t] = v;                                                                                \
        __syncthreads();                                                                           \
        if (t < SOME) {                                                                            \
            for (unsigned k = t + SOME; k < THREADS; k += SOME) v = operation(v, all[k]);          \
            all[t] = v;                                                                            \
        }                                                                                          \
        __syncthreads();                                                                           \
        v = all[0];                                                                                \
        for (unsigned k = 1; k < SOME; k++) v = operation(v, all[k]);                              \
        return v;                                                                                  \
    }
#define SUM(a, b) ((a) + (b))
OF_BLOCK(sum_of_block, SUM)
OF_BLOCK(largest_of_block, LARGER)
