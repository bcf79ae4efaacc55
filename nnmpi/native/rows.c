/* Rows of matrices by integers.

   dropout_mask_loop(index, rows, k0, k1, k2, k3, least, factor, mask)
       mask (n, m) = factor where the bits of index (m) and row (n), as in nnmpi/keyed.py, are at
       least `least`, 0 elsewhere
   embedding_gradient_loop(g, index, dw)
       dw (rows, width) += g (n, width) at the rows index (n), one after the other */
#include "native.h"

#define TILE 1024

/* nnmpi/keyed.py: _mix */
ALWAYS_INLINE npy_uint32 mix(npy_uint32 x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

static void dropout_mask(const npy_uint32 *index, const npy_int64 *rows, const npy_uint32 *k,
                         npy_uint32 least, float factor, float *mask, npy_intp n, npy_intp m) {
    npy_uint32 column[TILE];
    for (npy_intp first = 0; first < m; first += TILE) {
        npy_intp width = m - first < TILE ? m - first : TILE;
        for (npy_intp i = 0; i < width; i++) column[i] = mix(mix(index[first + i] + k[2]) ^ k[3]);
        for (npy_intp r = 0; r < n; r++) {
            npy_uint64 whole = rows[r];
            npy_uint32 row = mix(mix((npy_uint32)whole + k[0]) ^ k[1] ^ (npy_uint32)(whole >> 32));
            float *to = mask + r * m + first;
            for (npy_intp i = 0; i < width; i++) to[i] = mix(column[i] ^ row) >= least ? factor : 0;
        }
    }
}

static PyObject *dropout_mask_loop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    double c[6];
    if (count != 9 || !numbers(args + 2, 6, c) || !has_rows(args[8], 2, 1))
        Py_RETURN_NOTIMPLEMENTED;
    npy_intp *size = PyArray_DIMS((PyArrayObject *)args[8]), n = size[0], m = size[1];
    float *mask = floats(args[8], n * m, 1);
    if (!mask || !is_flat_of(args[0], NPY_UINT32, m, 0) || !is_flat_of(args[1], NPY_INT64, n, 0))
        Py_RETURN_NOTIMPLEMENTED;
    npy_uint32 k[4] = {c[0], c[1], c[2], c[3]};
    npy_uint32 *index = PyArray_DATA((PyArrayObject *)args[0]);
    npy_int64 *rows = PyArray_DATA((PyArrayObject *)args[1]);
    WITHOUT_GIL(8 * n * m, dropout_mask(index, rows, k, c[4], c[5], mask, n, m));
    Py_RETURN_NONE;
}

static void embedding_gradient(const float *restrict g, const npy_int64 *index, float *restrict dw,
                               npy_intp n, npy_intp width) {
    for (npy_intp i = 0; i < n; i++, g += width) {
        float *row = dw + index[i] * width;
        for (npy_intp k = 0; k < width; k++) row[k] += g[k];
    }
}

static PyObject *embedding_gradient_loop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3 || !has_rows(args[2], 2, 1) || !PyArray_CheckExact(args[1]))
        Py_RETURN_NOTIMPLEMENTED;
    npy_intp *size = PyArray_DIMS((PyArrayObject *)args[2]), rows = size[0], width = size[1];
    npy_intp n = PyArray_SIZE((PyArrayObject *)args[1]);
    float *g = floats(args[0], n * width, 0), *dw = floats(args[2], rows * width, 1);
    npy_int64 *index = integers(args[1], n, rows);
    if (!g || !dw || !index) Py_RETURN_NOTIMPLEMENTED;
    WITHOUT_GIL(4 * n * width, embedding_gradient(g, index, dw, n, width));
    Py_RETURN_NONE;
}

PyMethodDef row_methods[] = {
    KERNEL(dropout_mask_loop),
    KERNEL(embedding_gradient_loop),
    END_OF_KERNELS,
};
