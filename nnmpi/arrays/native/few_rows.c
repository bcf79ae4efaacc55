#include "few_rows.h"

#ifdef FUSED
#define FOUR 4
#define OUTPUTS (PER_VECTOR == 16 ? 4 : 2) /* sums of 4 rows and as many outputs are in registers */
#define NEAR 1536 /* elements of four rows of x that stay in the L1 cache, */
#define PIECE 512 /* and of eight rows */

/* The sum of all elements, halves first. */
static inline float sum_of(Vector x) {
#if PER_VECTOR == 16
    return _mm512_reduce_add_ps(x);
#else
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#endif
}

/* sum[i][o] = the dot product of row i of x and row o of w, of `vectors` vectors. */
ALWAYS_INLINE void dots(const int rows, const int outputs, npy_intp vectors, const float *x,
                        npy_intp x_row, const float *w, npy_intp w_row, float *sum) {
    Vector total[FOUR][FOUR];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int o = 0; o < outputs; o++)
        total[i][o] = ALL(0);
    for (npy_intp k = 0; k < vectors; k++, x += PER_VECTOR, w += PER_VECTOR) {
        Vector b[FOUR];
        UNROLL for (int o = 0; o < outputs; o++) b[o] = LOAD(w + o * w_row);
        UNROLL for (int i = 0; i < rows; i++) {
            Vector a = LOAD(x + i * x_row);
            UNROLL for (int o = 0; o < outputs; o++)
                total[i][o] = MULTIPLY_ADD(a, b[o], total[i][o]);
        }
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int o = 0; o < outputs; o++)
        sum[i * FOUR + o] = sum_of(total[i][o]);
}

/* y[i][o] = or += the dot products of some rows and outputs, K elements long. */
static void some_dots(npy_intp rows, npy_intp outputs, npy_intp K, const float *x, npy_intp x_row,
                      const float *w, npy_intp w_row, int adds, float *y, npy_intp y_row) {
    float sum[FOUR * FOUR];
    npy_intp vectors = K / PER_VECTOR;
    switch (outputs == OUTPUTS ? rows : 0) {
    case 4: dots(4, OUTPUTS, vectors, x, x_row, w, w_row, sum); break;
    case 3: dots(3, OUTPUTS, vectors, x, x_row, w, w_row, sum); break;
    case 2: dots(2, OUTPUTS, vectors, x, x_row, w, w_row, sum); break;
    case 1: dots(1, OUTPUTS, vectors, x, x_row, w, w_row, sum); break;
    default:
        for (npy_intp i = 0; i < rows; i++)
            for (npy_intp o = 0; o < outputs; o++)
                dots(1, 1, vectors, x + i * x_row, x_row, w + o * w_row, w_row, sum + i * FOUR + o);
    }
    for (npy_intp i = 0; i < rows; i++)
        for (npy_intp o = 0; o < outputs; o++) {
            float found = sum[i * FOUR + o], *to = y + i * y_row + o;
            for (npy_intp k = vectors * PER_VECTOR; k < K; k++)
                found += x[i * x_row + k] * w[o * w_row + k];
            *to = adds ? *to + found : found;
        }
}

void few_outputs(npy_intp n, npy_intp K, npy_intp O, const float *x, const float *w, float *y) {
    for (npy_intp k = 0; k < K; k += NEAR)
        for (npy_intp o = 0; o < O; o += OUTPUTS)
            for (npy_intp i = 0; i < n; i += FOUR)
                some_dots(n - i < FOUR ? n - i : FOUR, O - o < OUTPUTS ? O - o : OUTPUTS,
                          K - k < NEAR ? K - k : NEAR, x + i * K + k, K, w + o * K + k, K, k > 0,
                          y + i * O + o, O);
}

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
