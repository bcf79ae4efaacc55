/* Products of a matrix w (O, K) and few rows: w streams through the processor once, and is not
   packed. Terms are added in the order of `product`, so bits are the same; those of gradients up to
   TERMS_AT_ONCE terms. */
#ifndef NNMPI_FEW_ROWS_H
#define NNMPI_FEW_ROWS_H
#include "products.h"

#ifdef FUSED
#define FEW_ROWS 8                   /* at most, */
#define FEW_OUTPUTS (PER_VECTOR / 2) /* and for outputs, whose sums are in registers */

/* y (n, O) = x w^T, x (n, K), n > 1; 0 if `product` takes less time. */
int few_outputs(npy_intp n, npy_intp K, npy_intp O, const float *x, const float *w, float *y);

/* dx (n, K) = g w, g (n, O) */
void few_inputs(npy_intp n, npy_intp K, npy_intp O, const float *g, const float *w, float *dx);

/* dw (O, K) = g^T x */
void few_weights(npy_intp n, npy_intp K, npy_intp O, const float *g, const float *x, float *dw);
#endif
#endif
