#include "few_rows.h"

#ifdef FUSED
#define FOUR 4
#define PIECE 512 /* elements of eight rows that stay in the L1 cache */

/* `many` elements of each of some rows of C = or += the sum over the `terms` rows of B of
   factor (r, t) times row t; rows are K elements apart. */
ALWAYS_INLINE void combine(const int rows, const int terms, npy_intp K, npy_intp many,
                           const float *factor, npy_intp row, npy_intp term, const float *B,
                           int adds, float *C) {
    Vector f[FOUR][FOUR];
    npy_intp k = 0;
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int t = 0; t < terms; t++)
        f[r][t] = ALL(factor[r * row + t * term]);
    for (; k + PER_VECTOR <= many; k += PER_VECTOR) {
        Vector b[FOUR];
        UNROLL for (int t = 0; t < terms; t++) b[t] = LOAD(B + t * K + k);
        UNROLL for (int r = 0; r < rows; r++) {
            Vector sum = adds ? LOAD(C + r * K + k) : ALL(0);
            UNROLL for (int t = 0; t < terms; t++) sum = MULTIPLY_ADD(f[r][t], b[t], sum);
            STORE(C + r * K + k, sum);
        }
    }
    for (; k < many; k++)
        for (int r = 0; r < rows; r++) {
            float sum = adds ? C[r * K + k] : 0;
            for (int t = 0; t < terms; t++)
                sum = __builtin_fmaf(factor[r * row + t * term], B[t * K + k], sum);
            C[r * K + k] = sum;
        }
}

#define COMBINE(m, k) combine(m, k, K, many, factor, row, term, B, adds, C)
#define TERMS_OF(m)                                                                                \
    case 4 * m: COMBINE(m, 4); break;                                                              \
    case 4 * m - 1: COMBINE(m, 3); break;                                                          \
    case 4 * m - 2: COMBINE(m, 2); break;                                                          \
    case 4 * m - 3: COMBINE(m, 1); break;

static void some_combinations(npy_intp rows, npy_intp terms, npy_intp K, npy_intp many,
                              const float *factor, npy_intp row, npy_intp term, const float *B,
                              int adds, float *C) {
    switch (4 * (rows - 1) + terms) {
        TERMS_OF(1)
        TERMS_OF(2)
        TERMS_OF(3)
        TERMS_OF(4)
    }
}

/* C (m, K) = A B, B (k, K), with A's elements `row` and `term` apart; 4 x 4 of them at a time. */
static void combinations(npy_intp m, npy_intp k, npy_intp K, const float *A, npy_intp row,
                         npy_intp term, const float *B, float *C) {
    for (npy_intp j = 0; j < K; j += PIECE)
        for (npy_intp i = 0; i < m; i += FOUR)
            for (npy_intp t = 0; t < k; t += FOUR)
                some_combinations(m - i < FOUR ? m - i : FOUR, k - t < FOUR ? k - t : FOUR, K,
                                  K - j < PIECE ? K - j : PIECE, A + i * row + t * term, row, term,
                                  B + t * K + j, t > 0, C + i * K + j);
}

void few_inputs(npy_intp n, npy_intp K, npy_intp O, const float *g, const float *w, float *dx) {
    combinations(n, O, K, g, O, 1, w, dx);
}

void few_weights(npy_intp n, npy_intp K, npy_intp O, const float *g, const float *x, float *dw) {
    combinations(O, n, K, g, 1, O, x, dw);
}
#endif
