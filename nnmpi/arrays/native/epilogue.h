/* Rows of pooling, bias and ReLU, as kernels/epilogue.py describes them: NumPy's bits. */
#ifndef NNMPI_EPILOGUE_H
#define NNMPI_EPILOGUE_H
#include "halves.h"

/* As np.maximum: b if they are equal (also 0 and -0), and NaN if one is NaN. */
ALWAYS_INLINE float larger(float a, float b) {
    float most = a > b ? a : b; /* with || instead, GCC 12 does not vectorise the loops */
    return a != a ? a : most;
}

/* Pools one row of windows

       a b    `largest` says where the largest element is:    0 1
       c d                                                    2 3 */
static inline void pool_row(npy_intp n, const float *restrict a, const float *restrict b,
                            const float *restrict c, const float *restrict d, float *restrict y,
                            npy_uint8 *restrict largest) {
    for (npy_intp i = 0; i < n; i++) {
        float top = larger(a[i], b[i]), bottom = larger(c[i], d[i]);
        int first = a[i] >= b[i] ? 0 : 1, last = c[i] >= d[i] ? 2 : 3;
        largest[i] = top >= bottom ? first : last;
        y[i] = larger(top, bottom);
    }
}

/* The transpose of pool_row: the gradient g goes to the largest element. */
static inline void unpool_row(npy_intp n, const float *restrict g,
                              const npy_uint8 *restrict largest, float *restrict a,
                              float *restrict b, float *restrict c, float *restrict d) {
    for (npy_intp i = 0; i < n; i++) {
        int at = largest[i];
        a[i] = at == 0 ? g[i] : 0, b[i] = at == 1 ? g[i] : 0;
        c[i] = at == 2 ? g[i] : 0, d[i] = at == 3 ? g[i] : 0;
    }
}

ALWAYS_INLINE void finish(npy_intp n, const float *x, float *y, const float *bias, int adds,
                          int cuts) {
#pragma GCC ivdep
    for (npy_intp i = 0; i < n; i++) {
        float v = adds ? x[i] + bias[i] : x[i];
        y[i] = cuts ? larger(v, 0) : v;
    }
}

/* y = relu(x + bias); no bias if it is NULL, no ReLU unless `cuts`; y may be x. */
static inline void finish_row(npy_intp n, const float *x, float *y, const float *bias, int cuts) {
    if (bias && cuts) finish(n, x, y, bias, 1, 1);
    else if (bias) finish(n, x, y, bias, 1, 0);
    else if (cuts) finish(n, x, y, bias, 0, 1);
    else finish(n, x, y, bias, 0, 0);
}

/* out = g where the output y of ReLU is positive. */
static inline void relu_gradient_row(npy_intp n, const float *g, const float *y, float *out) {
#pragma GCC ivdep
    for (npy_intp i = 0; i < n; i++) out[i] = g[i] * (y[i] > 0);
}

/* The outputs y (n, h, w, O) of a convolution, and the place of the largest element of each pooling
   window; NULL without pooling. */
typedef struct {
    npy_intp n, h, w, O;
    float *y;
    npy_uint8 *largest; /* (n, h, w, O) */
    const float *bias;  /* (O); NULL if there is none */
    int cuts;           /* whether ReLU follows */
} Outputs;

/* Reads the arguments y, largest, bias and zero, of which y has number `first`. */
Outputs outputs_of(const Arguments *a, int first);
#define OUTPUTS "~fnhwO ~?bnhwO ?fw.O ?fw.O"

/* The gradient g (n, h, w, O) of the outputs, with any strides, and what it is masked by. */
typedef struct {
    npy_intp n, h, w, O, image, row, column, channel;
    Numbers g, y; /* y.at is NULL without ReLU */
    const npy_uint8 *largest;
    float *db; /* (O), to which sums of the gradient are added; NULL if it is not needed */
} Gradient;

/* Reads the arguments g, y, largest and db, of which g has number `first`. */
Gradient gradient_of(const Arguments *a, int first);
#define GRADIENT "h:nhwO ?hnhwO ?bnhwO =?fO"

/* Writes the gradient of one output's channels before ReLU to `out`, and adds it to db. */
static inline void masked_gradient(const Gradient *q, npy_intp n, npy_intp h, npy_intp w,
                                   float *out) {
    npy_intp at = ((n * q->h + h) * q->w + w) * q->O;
    float room[FEW];
    gather(q->g, n * q->image + h * q->row + w * q->column, q->channel, out, q->O);
    for (npy_intp o = 0; q->y.at && o < q->O; o += FEW) {
        npy_intp some = q->O - o < FEW ? q->O - o : FEW;
        relu_gradient_row(some, out + o, floats_of(q->y, at + o, some, room), out + o);
    }
    if (q->db)
#pragma GCC ivdep
        for (npy_intp o = 0; o < q->O; o++) q->db[o] += out[o];
}
#endif
