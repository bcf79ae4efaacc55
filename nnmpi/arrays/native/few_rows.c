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

#define LINE 16    /* terms at a time: a cache line of each row of w */
#define OUTPUTS 16 /* rows of w at a time */
#define VECTORS (OUTPUTS / PER_VECTOR)

/* Turns PER_VECTOR terms of as many rows of w. */
ALWAYS_INLINE void turned(const float *w, npy_intp K, Vector *b) {
#if PER_VECTOR == 16
    __m512i line[16];
    UNROLL for (int i = 0; i < 16; i++) line[i] = _mm512_loadu_si512(w + i * K);
    turn(line);
    UNROLL for (int i = 0; i < 16; i++) b[i] = _mm512_castsi512_ps(line[i]);
#else
    UNROLL for (int i = 0; i < 8; i++) b[i] = LOAD(w + i * K);
    turn_eight(b);
#endif
}

/* Sums `terms` terms of n columns of x and OUTPUTS rows of w. */
ALWAYS_INLINE void turned_sums(const int n, npy_intp terms, const float *x, const float *w,
                               npy_intp K, float (*sums)[OUTPUTS]) {
    Vector total[FEW_OUTPUTS][VECTORS], b[PER_VECTOR];
    npy_intp t = 0;
    UNROLL for (int r = 0; r < n; r++) UNROLL for (int v = 0; v < VECTORS; v++)
        total[r][v] = ALL(0);
    for (; t + LINE <= terms; t += LINE)
        UNROLL for (int v = 0; v < VECTORS; v++)
            UNROLL for (int half = 0; half < LINE; half += PER_VECTOR) {
                turned(w + v * PER_VECTOR * K + t + half, K, b);
                UNROLL for (int i = 0; i < PER_VECTOR; i++) UNROLL for (int r = 0; r < n; r++)
                    total[r][v] =
                        MULTIPLY_ADD(ALL(x[(t + half + i) * n + r]), b[i], total[r][v]);
            }
    UNROLL for (int r = 0; r < n; r++) UNROLL for (int v = 0; v < VECTORS; v++)
        STORE(sums[r] + v * PER_VECTOR, total[r][v]);
    for (; t < terms; t++)
        for (int r = 0; r < n; r++)
            for (npy_intp o = 0; o < OUTPUTS; o++)
                sums[r][o] = __builtin_fmaf(x[t * n + r], w[o * K + t], sums[r][o]);
}

#define ROWS_OF(n)                                                                                 \
    case n: turned_sums(n, terms, x, w, K, sums); break;

static void some_sums(npy_intp n, npy_intp terms, const float *x, const float *w, npy_intp K,
                      float (*sums)[OUTPUTS]) {
    switch (n) {
        ROWS_OF(2)
        ROWS_OF(3)
        ROWS_OF(4)
#if FEW_OUTPUTS == 8
        ROWS_OF(5)
        ROWS_OF(6)
        ROWS_OF(7)
        ROWS_OF(8)
#endif
    }
}

int few_outputs(npy_intp n, npy_intp K, npy_intp O, const float *x, const float *w, float *y) {
    float sums[FEW_OUTPUTS][OUTPUTS], columns[TERMS_AT_ONCE * FEW_OUTPUTS];
    /* rows that are 4 KB apart share too few places of the L1 cache */
    if (n > FEW_OUTPUTS || O < OUTPUTS || K % 1024 == 0) return 0;
    for (npy_intp k = 0; k < K; k += TERMS_AT_ONCE) {
        npy_intp terms = K - k < TERMS_AT_ONCE ? K - k : TERMS_AT_ONCE;
        for (npy_intp t = 0; t < terms; t++)
            for (npy_intp r = 0; r < n; r++) columns[t * n + r] = x[r * K + k + t];
        for (npy_intp o = 0; o < O; o += OUTPUTS) {
            npy_intp first = O - o < OUTPUTS ? O - OUTPUTS : o; /* some are computed twice */
            some_sums(n, terms, columns, w + first * K + k, K, sums);
            for (npy_intp r = 0; r < n; r++)
                for (npy_intp i = o - first; i < OUTPUTS; i++) {
                    float *to = y + r * O + first + i;
                    *to = k ? *to + sums[r][i] : sums[r][i];
                }
        }
    }
    return 1;
}

void few_inputs(npy_intp n, npy_intp K, npy_intp O, const float *g, const float *w, float *dx) {
    combinations(n, O, K, g, O, 1, w, dx);
}

void few_weights(npy_intp n, npy_intp K, npy_intp O, const float *g, const float *x, float *dw) {
    combinations(O, n, K, g, 1, O, x, dw);
}
#endif
