/* Products of a matrix w (O, K) with few rows: w streams through the processor once, and is not
   packed. Bits of a row do not depend on the number of rows. */
#ifndef NNMPI_FEW_ROWS_H
#define NNMPI_FEW_ROWS_H
#include "products.h"

#ifdef FUSED
/* y (n, O) = x w^T, x (n, K) */
void few_outputs(npy_intp n, npy_intp K, npy_intp O, const float *x, const float *w, float *y);

/* dx (n, K) = g w, g (n, O) */
void few_inputs(npy_intp n, npy_intp K, npy_intp O, const float *g, const float *w, float *dx);

/* dw (O, K) = g^T x */
void few_weights(npy_intp n, npy_intp K, npy_intp O, const float *g, const float *x, float *dw);
#endif
#endif
