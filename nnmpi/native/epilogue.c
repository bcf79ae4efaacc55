/* Pooling, bias and ReLU, as kernels/epilogue.py describes them, in float32 and with its bits.

   pool_loop(z, y, left, upper)          y (S), left (2, S) and upper (S) of z (2, 2, S)
   unpool_loop(g, left, upper, dz)       dz (2, 2, S) of g (S)
   bias_relu_loop(y, bias or None, zero or None)    y (rows, width), in place
   relu_gradient_loop(g, y, out)         out = g where y > 0 */
#include "native.h"

#define MOST_AXES 8

/* Rows of z (2, 2, S): S without its last axis, in order. */
typedef struct {
    int axes;
    npy_intp rows, width, size[MOST_AXES], by[MOST_AXES], at[MOST_AXES], offset;
    npy_intp down, right; /* numbers between neighbours in a window */
} Windows;

static int windows(PyArrayObject *z, Windows *w) {
    int n = PyArray_NDIM(z);
    if (n < 3 || n - 3 > MOST_AXES || PyArray_DIM(z, 0) != 2 || PyArray_DIM(z, 1) != 2) return 0;
    *w = (Windows){.axes = n - 3, .rows = 1, .width = PyArray_DIM(z, n - 1)};
    w->down = step(z, 0), w->right = step(z, 1);
    for (int i = 0; i < w->axes; i++) {
        w->size[i] = PyArray_DIM(z, i + 2), w->by[i] = step(z, i + 2);
        w->rows *= w->size[i];
    }
    return 1;
}

static void next(Windows *w) {
    for (int i = w->axes - 1; i >= 0; i--) {
        w->offset += w->by[i];
        if (++w->at[i] < w->size[i]) return;
        w->offset -= w->by[i] * w->size[i], w->at[i] = 0;
    }
}

/* As np.maximum: b where they are equal, as 0 and -0 are, and NaN if one is. */
ALWAYS_INLINE float larger(float a, float b) {
    float most = a > b ? a : b; /* with || instead, GCC 12 does not vectorise the loops */
    return a != a ? a : most;
}

/* One row of windows

       a b
       c d      of which `above`, `below` and `upper` say where the largest is */
static void pool_row(npy_intp n, const float *restrict a, const float *restrict b,
                     const float *restrict c, const float *restrict d, float *restrict y,
                     npy_bool *restrict above, npy_bool *restrict below, npy_bool *restrict upper) {
    for (npy_intp i = 0; i < n; i++) {
        float top = larger(a[i], b[i]), bottom = larger(c[i], d[i]);
        above[i] = a[i] >= b[i], below[i] = c[i] >= d[i], upper[i] = top >= bottom;
        y[i] = larger(top, bottom);
    }
}

static void pool(Windows w, const float *z, float *y, npy_bool *left, npy_bool *upper) {
    npy_intp S = w.rows * w.width;
    for (npy_intp r = 0; r < w.rows; r++, next(&w)) {
        const float *a = z + w.offset, *b = a + w.right, *c = a + w.down, *d = c + w.right;
        npy_intp s = r * w.width;
        pool_row(w.width, a, b, c, d, y + s, left + s, left + S + s, upper + s);
    }
}

static void unpool(Windows w, const float *g, const npy_bool *left, const npy_bool *upper, float *dz) {
    npy_intp S = w.rows * w.width;
    for (npy_intp r = 0; r < w.rows; r++, next(&w)) {
        float *a = dz + w.offset, *b = a + w.right, *c = a + w.down, *d = c + w.right;
        npy_intp s = r * w.width;
#pragma GCC ivdep
        for (npy_intp i = 0; i < w.width; i++) {
            float top = g[s + i] * upper[s + i], bottom = g[s + i] - top;
            float x = top * left[s + i], y = bottom * left[S + s + i];
            a[i] = x, b[i] = top - x, c[i] = y, d[i] = bottom - y;
        }
    }
}

static PyObject *pool_loop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Windows w;
    if (count != 4 || !has_rows(args[0], -1, 0) || !windows((PyArrayObject *)args[0], &w))
        Py_RETURN_NOTIMPLEMENTED;
    npy_intp S = w.rows * w.width;
    if (!is_flat_of(args[1], NPY_FLOAT, S, 1) || !is_flat_of(args[2], NPY_BOOL, 2 * S, 1) ||
        !is_flat_of(args[3], NPY_BOOL, S, 1))
        Py_RETURN_NOTIMPLEMENTED;
    void *at[4];
    for (int i = 0; i < 4; i++) at[i] = PyArray_DATA((PyArrayObject *)args[i]);
    WITHOUT_GIL(16 * S, pool(w, at[0], at[1], at[2], at[3]));
    Py_RETURN_NONE;
}

static PyObject *unpool_loop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Windows w;
    if (count != 4 || !has_rows(args[3], -1, 1) || !windows((PyArrayObject *)args[3], &w))
        Py_RETURN_NOTIMPLEMENTED;
    npy_intp S = w.rows * w.width;
    if (!is_flat_of(args[0], NPY_FLOAT, S, 0) || !is_flat_of(args[1], NPY_BOOL, 2 * S, 0) ||
        !is_flat_of(args[2], NPY_BOOL, S, 0))
        Py_RETURN_NOTIMPLEMENTED;
    void *at[4];
    for (int i = 0; i < 4; i++) at[i] = PyArray_DATA((PyArrayObject *)args[i]);
    WITHOUT_GIL(16 * S, unpool(w, at[0], at[1], at[2], at[3]));
    Py_RETURN_NONE;
}

ALWAYS_INLINE void lines(float *y, npy_intp rows, npy_intp n, const float *bias, int adds, int cuts) {
    for (npy_intp r = 0; r < rows; r++, y += n)
#pragma GCC ivdep
        for (npy_intp i = 0; i < n; i++) {
            float v = adds ? y[i] + bias[i] : y[i];
            y[i] = cuts ? larger(v, 0) : v;
        }
}

static void bias_relu(float *y, npy_intp rows, npy_intp n, const float *bias, int cuts) {
    if (bias && cuts) lines(y, rows, n, bias, 1, 1);
    else if (bias) lines(y, rows, n, bias, 1, 0);
    else if (cuts) lines(y, rows, n, bias, 0, 1);
}

static PyObject *bias_relu_loop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3 || !has_rows(args[0], 2, 1)) Py_RETURN_NOTIMPLEMENTED;
    PyArrayObject *y = (PyArrayObject *)args[0];
    npy_intp rows = PyArray_DIM(y, 0), n = PyArray_DIM(y, 1);
    int adds = args[1] != Py_None, cuts = args[2] != Py_None;
    if (!PyArray_IS_C_CONTIGUOUS(y) || (adds && !is_flat_of(args[1], NPY_FLOAT, n, 0)) ||
        (cuts && !is_flat_of(args[2], NPY_FLOAT, n, 0)))
        Py_RETURN_NOTIMPLEMENTED;
    const float *bias = adds ? PyArray_DATA((PyArrayObject *)args[1]) : NULL;
    WITHOUT_GIL(PyArray_NBYTES(y), bias_relu(PyArray_DATA(y), rows, n, bias, cuts));
    Py_RETURN_NONE;
}

static void relu_gradient(const float *g, const float *y, float *out, npy_intp n) {
#pragma GCC ivdep
    for (npy_intp i = 0; i < n; i++) out[i] = g[i] * (y[i] > 0);
}

static PyObject *relu_gradient_loop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3 || !PyArray_CheckExact(args[1])) Py_RETURN_NOTIMPLEMENTED;
    npy_intp n = PyArray_SIZE((PyArrayObject *)args[1]);
    for (int i = 0; i < 3; i++)
        if (!is_flat_of(args[i], NPY_FLOAT, n, i == 2)) Py_RETURN_NOTIMPLEMENTED;
    float *at[3];
    for (int i = 0; i < 3; i++) at[i] = PyArray_DATA((PyArrayObject *)args[i]);
    WITHOUT_GIL(n * sizeof(float), relu_gradient(at[0], at[1], at[2], n));
    Py_RETURN_NONE;
}

PyMethodDef epilogue_methods[] = {
    KERNEL(pool_loop),
    KERNEL(unpool_loop),
    KERNEL(bias_relu_loop),
    KERNEL(relu_gradient_loop),
    END_OF_KERNELS,
};
