/* C (m, n) = A (m, k) B (k, n) where B is in the L1 cache, with contiguous rows: B is read where it
   is, and bias and ReLU are applied in registers. The bits are those of `product`. */
#ifndef NNMPI_NEAR_PRODUCTS_H
#define NNMPI_NEAR_PRODUCTS_H
#include "products.h"

#ifdef FUSED
#define NEAREST 4096 /* elements of B */

/* The first lanes of a vector. */
#if defined(__AVX512F__)
typedef __mmask16 Lanes;
#define LANES_BELOW(n) ((Lanes)((1u << (n)) - 1))
#define LOAD_LANES(lanes, at) _mm512_maskz_loadu_ps(lanes, at)
#define STORE_LANES(at, lanes, x) _mm512_mask_storeu_ps(at, lanes, x)
#define CUT(x) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, ALL(0), _CMP_NLE_UQ), x)
#else
typedef struct {
    __m256i mask;
    npy_intp count;
} Lanes;
static const int lanes_of[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
#define LANES_BELOW(n) ((Lanes){_mm256_loadu_si256((const __m256i *)(lanes_of + 8 - (n))), n})
#define LOAD_LANES(lanes, at) _mm256_maskload_ps(at, (lanes).mask)

/* In parts of 8, 4, 2 and 1: stores with masks take as long as ten others on some processors. */
ALWAYS_INLINE void STORE_LANES(float *at, Lanes lanes, Vector x) {
    __m128 part = _mm256_castps256_ps128(x);
    if (lanes.count == 8) STORE(at, x);
    else {
        if (lanes.count & 4) {
            _mm_storeu_ps(at, part);
            at += 4, part = _mm256_extractf128_ps(x, 1);
        }
        if (lanes.count & 2) {
            _mm_storel_pi((__m64 *)at, part);
            at += 2, part = _mm_movehl_ps(part, part);
        }
        if (lanes.count & 1) _mm_store_ss(at, part);
    }
}
#define CUT(x) _mm256_and_ps(x, _mm256_cmp_ps(x, ALL(0), _CMP_NLE_UQ))
#endif

/* What is done with a product before it is stored: + bias, unless it is NULL, and ReLU if it cuts,
   as np.maximum computes it. */
typedef struct {
    const float *bias;
    int cuts;
} Ending;

/* Returns 0, and has written nothing, if B has other strides or more elements than NEAREST. */
int near_product(const Sizes *s, const float *A, const float *B, float *C, Ending e);

/* m rows, and 1 or 2 vectors of columns, of which the last has these lanes, or all if `whole`. */
ALWAYS_INLINE void near_block(const int m, const int vectors, const int whole, const Sizes *s,
                              const float *A, const float *B, Lanes lanes, float *C, npy_intp c_row,
                              Ending e) {
    const int last = vectors - 1;
    Vector c[ROWS][2], b[2];
    UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < vectors; j++) c[i][j] = ALL(0);
    for (npy_intp k = 0; k < s->k; k++, A += s->a_term, B += s->b_term) {
        if (vectors == 2) b[0] = LOAD(B);
        b[last] = whole ? LOAD(B + last * PER_VECTOR) : LOAD_LANES(lanes, B + last * PER_VECTOR);
        UNROLL for (int i = 0; i < m; i++) {
            Vector one = ALL(A[i * s->a_row]);
            UNROLL for (int j = 0; j < vectors; j++) c[i][j] = MULTIPLY_ADD(one, b[j], c[i][j]);
        }
    }
    if (e.bias) {
        if (vectors == 2) b[0] = LOAD(e.bias);
        b[last] = LOAD_LANES(lanes, e.bias + last * PER_VECTOR);
        UNROLL for (int i = 0; i < m; i++)
            UNROLL for (int j = 0; j < vectors; j++) c[i][j] = ADD(c[i][j], b[j]);
    }
    UNROLL for (int i = 0; i < m; i++, C += c_row) {
        if (e.cuts) UNROLL for (int j = 0; j < vectors; j++) c[i][j] = CUT(c[i][j]);
        if (vectors == 2) STORE(C, c[i][0]);
        STORE_LANES(C + last * PER_VECTOR, lanes, c[i][last]);
    }
}

#define NEAR_ROWS(m)                                                                               \
    case m:                                                                                        \
        if (vectors == 2 && whole) near_block(m, 2, 1, s, A, B, lanes, C, c_row, e);               \
        else if (vectors == 2) near_block(m, 2, 0, s, A, B, lanes, C, c_row, e);                   \
        else if (whole) near_block(m, 1, 1, s, A, B, lanes, C, c_row, e);                          \
        else near_block(m, 1, 0, s, A, B, lanes, C, c_row, e);                                     \
        break;

/* Computes up to ROWS rows and up to WIDTH columns. */
static inline void near_tile(const Sizes *s, npy_intp rows, npy_intp columns, const float *A,
                      const float *B, float *C, npy_intp c_row, Ending e) {
    int vectors = columns <= PER_VECTOR ? 1 : 2, whole = columns % PER_VECTOR == 0;
    Lanes lanes = LANES_BELOW(columns - (vectors - 1) * PER_VECTOR);
    switch (rows) {
        NEAR_ROWS(1)
        NEAR_ROWS(2)
        NEAR_ROWS(3)
        NEAR_ROWS(4)
        NEAR_ROWS(5)
        NEAR_ROWS(6)
#if ROWS == 8
        NEAR_ROWS(7)
        NEAR_ROWS(8)
#endif
    }
}
#endif
#endif
