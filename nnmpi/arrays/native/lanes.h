/* Sums in 16 lanes, added up in a fixed order, so that all instruction sets give the same bits. */
#ifndef NNMPI_LANES_H
#define NNMPI_LANES_H
#include "elementary.h"

#define LANES 16

/* Runs the statement for each i < n, with lane l = i % 16. The inner loop becomes vectors. It
   must not be unrolled earlier: GCC would then vectorise over 16 turns of the outer loop, and
   transpose. */
#define EACH_LANE(n, statement)                                                                    \
    {                                                                                              \
        npy_intp in_lanes = (n) / LANES * LANES;                                                   \
        for (npy_intp first = 0; first < in_lanes; first += LANES) {                               \
            _Pragma("GCC ivdep") _Pragma("GCC unroll 1") for (int l = 0; l < LANES; l++) {         \
                npy_intp i = first + l;                                                            \
                statement;                                                                         \
            }                                                                                      \
        }                                                                                          \
        for (npy_intp i = in_lanes; i < (n); i++) {                                                \
            npy_intp l = i - in_lanes;                                                             \
            statement;                                                                             \
        }                                                                                          \
    }

ALWAYS_INLINE float sum_of_lanes(const float *lane) {
    float sum[LANES / 2];
    for (int l = 0; l < 8; l++) sum[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; l++) sum[l] += sum[l + 4];
    return sum[0] + sum[2] + (sum[1] + sum[3]);
}

/* p = e^(x - top) for n elements, whose largest is top; returns the sum of p. p may be x. */
static inline float exponentials(const float *x, float *p, npy_intp n, float *top) {
    float most[LANES], sum[LANES] = {0};
    for (int l = 0; l < LANES; l++) most[l] = x[0];
    EACH_LANE(n, most[l] = most[l] < x[i] ? x[i] : most[l]);
    for (int l = 1; l < LANES; l++) most[0] = most[0] < most[l] ? most[l] : most[0];
    *top = most[0];
    EACH_LANE(n, sum[l] += p[i] = exp_of(x[i] - most[0]));
    return sum_of_lanes(sum);
}

static inline void times(float *x, npy_intp n, float factor) {
    for (npy_intp i = 0; i < n; i++) x[i] *= factor;
}

#endif
