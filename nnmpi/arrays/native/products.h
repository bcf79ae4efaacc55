/* C (m, n) += A (m, k) B (k, n), in registers: the inner loop of products and direct convolutions.

   i  rows of C, at most ROWS at a time     j  columns of C, WIDTH at a time     k  terms

   A is read one element at a time, with any strides, so it need not be packed. The terms of an
   element are added in the order of k, each by an FMA, whatever the sizes, and their sum is
   added to C. If the processor has no FMA, FUSED is not defined, and NumPy computes. */
#ifndef NNMPI_PRODUCTS_H
#define NNMPI_PRODUCTS_H
#include "native.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#define FUSED
#define PER_VECTOR 16
#define ROWS 8
typedef __m512 Vector;
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define ALL _mm512_set1_ps
#define ADD _mm512_add_ps
#define MULTIPLY_ADD _mm512_fmadd_ps

/* Transposes 16 x 16 elements of 4 bytes. */
static inline void turn(__m512i *x) {
    __m512i y[16];
    UNROLL for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4) UNROLL for (int k = 0; k < 2; k++) {
        x[i + 2 * k] = _mm512_unpacklo_epi64(y[i + k], y[i + 2 + k]);
        x[i + 2 * k + 1] = _mm512_unpackhi_epi64(y[i + k], y[i + 2 + k]);
    }
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int k = 0; k < 2; k++) {
        y[8 * k + i] = _mm512_shuffle_i32x4(x[8 * k + i], x[8 * k + 4 + i], 0x88);
        y[8 * k + 4 + i] = _mm512_shuffle_i32x4(x[8 * k + i], x[8 * k + 4 + i], 0xdd);
    }
    UNROLL for (int i = 0; i < 8; i++) {
        x[i] = _mm512_shuffle_i32x4(y[i], y[8 + i], 0x88);
        x[8 + i] = _mm512_shuffle_i32x4(y[i], y[8 + i], 0xdd);
    }
}
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define FUSED
#define PER_VECTOR 8
#define ROWS 6
typedef __m256 Vector;
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define ALL _mm256_set1_ps
#define ADD _mm256_add_ps
#define MULTIPLY_ADD _mm256_fmadd_ps
#endif

#ifdef FUSED
#define WIDTH (2 * PER_VECTOR)
#define TERMS_AT_ONCE 1024 /* of a product: their sum is added to C, which decides its bits */

/* Transposes 8 x 8 elements. */
static inline void turn_eight(__m256 *x) {
    __m256 y[8];
    UNROLL for (int i = 0; i < 8; i += 2) {
        y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4) UNROLL for (int k = 0; k < 2; k++) {
        x[i + 2 * k] = _mm256_shuffle_ps(y[i + k], y[i + 2 + k], 0x44);
        x[i + 2 * k + 1] = _mm256_shuffle_ps(y[i + k], y[i + 2 + k], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        y[i] = _mm256_permute2f128_ps(x[i], x[4 + i], 0x20);
        y[4 + i] = _mm256_permute2f128_ps(x[i], x[4 + i], 0x31);
    }
    memcpy(x, y, sizeof y);
}

/* `outer` times `inner` terms: term (o, i) is at A[o * jump + i * at], and in this order in B. */
typedef struct {
    npy_intp outer, inner, jump, at;
} Terms;

ALWAYS_INLINE void block(const int m, const int vectors, const int adds, Terms t, const float *A,
                         npy_intp a_row, const float *B, npy_intp b_row, float *C, npy_intp c_row) {
    Vector c[ROWS][2], b[2];
    UNROLL for (int i = 0; i < m; i++)
        UNROLL for (int j = 0; j < vectors; j++)
            c[i][j] = ALL(0);
    for (npy_intp o = 0; o < t.outer; o++, A += t.jump) {
        const float *a = A;
        for (npy_intp k = 0; k < t.inner; k++, a += t.at, B += b_row) {
            UNROLL for (int j = 0; j < vectors; j++) b[j] = LOAD(B + j * PER_VECTOR);
            UNROLL for (int i = 0; i < m; i++) {
                Vector one = ALL(a[i * a_row]);
                UNROLL for (int j = 0; j < vectors; j++)
                    c[i][j] = MULTIPLY_ADD(one, b[j], c[i][j]);
            }
        }
    }
    UNROLL for (int i = 0; i < m; i++)
        UNROLL for (int j = 0; j < vectors; j++) {
            float *at = C + i * c_row + j * PER_VECTOR;
            STORE(at, adds ? ADD(LOAD(at), c[i][j]) : c[i][j]);
        }
}

/* Defines the block functions for m from 1 to ROWS, and 1 or 2 vectors. */
#define BLOCKS_OF(m)                                                                               \
    case m:                                                                                        \
        if (vectors == 2 && adds) block(m, 2, 1, t, A, a_row, B, b_row, C, c_row);                 \
        else if (vectors == 2) block(m, 2, 0, t, A, a_row, B, b_row, C, c_row);                    \
        else if (adds) block(m, 1, 1, t, A, a_row, B, b_row, C, c_row);                            \
        else block(m, 1, 0, t, A, a_row, B, b_row, C, c_row);                                      \
        break;

static inline void some_rows(npy_intp m, int vectors, int adds, Terms t, const float *A,
                             npy_intp a_row, const float *B, npy_intp b_row, float *C,
                             npy_intp c_row) {
    switch (m) {
        BLOCKS_OF(1)
        BLOCKS_OF(2)
        BLOCKS_OF(3)
        BLOCKS_OF(4)
        BLOCKS_OF(5)
        BLOCKS_OF(6)
#if ROWS == 8
        BLOCKS_OF(7)
        BLOCKS_OF(8)
#endif
    }
}

/* Computes all m rows, for PER_VECTOR or 2 PER_VECTOR columns. */
static inline void strip(npy_intp m, int vectors, int adds, Terms t, const float *A, npy_intp a_row,
                         const float *B, npy_intp b_row, float *C, npy_intp c_row) {
    for (npy_intp i = 0; i < m; i += ROWS)
        some_rows(m - i < ROWS ? m - i : ROWS, vectors, adds, t, A + i * a_row, a_row, B, b_row,
                  C + i * c_row, c_row);
}

/* C (m, n) and k terms, with strides in elements. */
typedef struct {
    npy_intp m, n, k, a_row, a_term, b_term, b_column, c_row, c_column;
} Sizes;

/* C = A B, or C += A B if it adds; returns 0 if there is no memory. B is copied: if it is larger
   than A, computing C^T = B^T A^T takes less time. */
int product(const Sizes *s, const float *A, const float *B, float *C, int adds);

/* Packs B in strips of WIDTH columns and k rows, one after the other; the last one has zeros. */
void pack(const Sizes *s, const float *B, float *strips);

/* C = A B, or C += A B if it adds, with the first k of the `terms` rows of B's strips, and from A
   or, if not NULL, its panels. `next` are columns of B that are packed afterwards, or NULL. */
void packed_product(const Sizes *s, const float *A, const float *panels, const float *strips,
                    npy_intp terms, float *C, int adds, const float *next);
#endif
#endif
