/* Gradients of a matrix w (O, K) and few rows: w streams through the processor once, and is not
   packed. Up to 1024 terms are added in the order of `product`, so bits are the same. */
#ifndef NNMPI_FEW_ROWS_H
#define NNMPI_FEW_ROWS_H
#include "products.h"

#ifdef FUSED
/* dx (n, K) = g w, g (n, O) */
void few_inputs(npy_intp n, npy_intp K, npy_intp O, const float *g, const float *w, float *dx);

/* dw (O, K) = g^T x */
void few_weights(npy_intp n, npy_intp K, npy_intp O, const float *g, const float *x, float *dw);
#endif
#endif
