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
#endif
#endif
