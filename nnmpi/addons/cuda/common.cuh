/* Included before each source of this folder, after the macros of its types: T, and G for
   gradients.

   Thread FIRST of a grid takes elements FIRST, FIRST + STEP, ... Elements of type T are LOADed
   to float, all computation is in float, and results are ROUNDed once. */
typedef float float32;
typedef double float64; /* only for a loss */
typedef unsigned short float16, bfloat16; /* as bits */

#ifndef KERNEL /* tests define it to compile kernels for the host */
#define KERNEL extern "C" __global__ void
/* A kernel with sums. For four blocks on a multiprocessor a thread may have 64 registers, which the
   loads of a batch need; the compiler would take 32, and wait for some loads before the others. */
#define REDUCTION KERNEL __launch_bounds__(THREADS, 4)
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

/* Calls take(load(i), i) for i from `first` below n by `step`, in this order. A thread begins BATCH
   loads before it waits for one: memory is fast only if much is asked of it. Behind the last index
   it loads that of n - 1 again, and does not take it. */
#define BATCH 8
template <class Load, class Take>
DEVICE void in_batches(unsigned first, unsigned n, unsigned step, Load load, Take take) {
    for (unsigned i = first; i < n; i += BATCH * step) {
        decltype(load(i)) values[BATCH];
#pragma unroll
        for (unsigned j = 0; j < BATCH; j++) values[j] = load(min(i + j * step, n - 1));
#pragma unroll
        for (unsigned j = 0; j < BATCH; j++)
            if (j == 0 || i + j * step < n) take(values[j], i + j * step);
    }
}

/* The sum of term(i) for these i, and the largest of them and of `least`. */
template <class Term>
DEVICE float sum_of(unsigned first, unsigned n, unsigned step, Term term) {
    float sum = 0.0f;
    in_batches(first, n, step, term, [&](float value, unsigned) { sum += value; });
    return sum;
}
template <class Term>
DEVICE float largest_of(float least, unsigned first, unsigned n, unsigned step, Term term) {
    in_batches(first, n, step, term, [&](float value, unsigned) { least = LARGER(least, value); });
    return least;
}

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

/* The sum of `term` for i from 0 below n, and the largest one, by all threads of a block, with `all`
   in shared memory. */
#define SUM_OF_BLOCK(i, n, term)                                                                   \
    sum_of_block(sum_of(threadIdx.x, n, THREADS, [&](unsigned i) { return term; }), all)
#define LARGEST_OF_BLOCK(i, n, term) largest_of_terms(n, all, [&](unsigned i) { return term; })
template <class Term> DEVICE float largest_of_terms(unsigned n, float *all, Term term) {
    return largest_of_block(largest_of(term(0), threadIdx.x, n, THREADS, term), all);
}
