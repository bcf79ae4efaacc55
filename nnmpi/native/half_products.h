/* C (m, n) = A (m, k) B (k, n) of numbers in 16 bits, with sums in float32. */
#ifndef NNMPI_HALF_PRODUCTS_H
#define NNMPI_HALF_PRODUCTS_H
#include "halves.h"
#include "products.h"

#ifdef FUSED
/* What becomes of a row of sums before it is rounded: + bias, if it is not NULL, and ReLU if it
   cuts; it is added to C if it adds. Where C is in float32 (is_wide), it is not rounded. */
typedef struct {
    const float *bias;
    int cuts, is_wide, adds;
} Finish;

/* All three have this type of 16 bits. C has neighbours in its rows. Terms are added in the order
   of k, two at a time where the processor does so; 0 where memory is lacking. */
int half_product(const Sizes *s, int half, const npy_uint16 *A, const npy_uint16 *B, void *C,
                 Finish finish);

/* How a side of a product lies in memory: A has rows of C, B its columns. */
typedef struct {
    const void *at;
    npy_intp lines, terms, line, term; /* how many, and the numbers between neighbours */
} Side;

#ifdef __AVX512BF16__
#define TALL 12

/* B of bfloat16 in strips of 32 columns, pairs of terms together. */
void pack_strips(Side B, void *strips);

/* C (A.lines, n) = A B, or C += A B if it adds, of A of bfloat16 and the first A.terms of the `terms`
   that strips have. C has rows and columns for whole tiles, TALL and 32, which are written too; room
   is for a tile of A. C, strips and room begin with lines of the cache. */
void multiply_strips(Side A, npy_intp n, const void *strips, npy_intp terms, float *C, npy_intp row,
                     int adds, void *room);
#endif
#endif
#endif
