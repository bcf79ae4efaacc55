/* Pooling, bias and ReLU, as kernels/epilogue.py describes them, in float32 and with its bits.

   pool_loop(z, y, left, upper)          y (S), left (2, S) and upper (S) of z (2, 2, S)
   unpool_loop(g, left, upper, dz)       dz (2, 2, S) of g (S)
   bias_relu_loop(y, bias or None, zero or None)    y (rows, width), in place
   relu_gradient_loop(g, y, out)         out = g where y > 0 */
#include "epilogue.h"

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
        unpool_row(w.width, g + s, left + s, left + S + s, upper + s, a, b, c, d);
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

static void bias_relu(float *y, npy_intp rows, npy_intp n, const float *bias, int cuts) {
    for (npy_intp r = 0; r < rows; r++, y += n) finish_row(n, y, y, bias, cuts);
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

static PyObject *relu_gradient_loop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 3 || !PyArray_CheckExact(args[1])) Py_RETURN_NOTIMPLEMENTED;
    npy_intp n = PyArray_SIZE((PyArrayObject *)args[1]);
    for (int i = 0; i < 3; i++)
        if (!is_flat_of(args[i], NPY_FLOAT, n, i == 2)) Py_RETURN_NOTIMPLEMENTED;
    float *at[3];
    for (int i = 0; i < 3; i++) at[i] = PyArray_DATA((PyArrayObject *)args[i]);
    WITHOUT_GIL(n * sizeof(float), relu_gradient_row(n, at[0], at[1], at[2]));
    Py_RETURN_NONE;
}

int outputs_of(PyObject *const *args, Outputs *q) {
    if (!has_rows(args[0], 4, 1) || !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)args[0])) return 0;
    npy_intp *size = PyArray_DIMS((PyArrayObject *)args[0]), row = size[2] * size[3];
    *q = (Outputs){size[0], size[1], size[2], size[3], PyArray_DATA((PyArrayObject *)args[0])};
    npy_intp S = q->n * q->h * row;
    if (args[1] != Py_None) {
        if (!is_flat_of(args[1], NPY_BOOL, 2 * S, 1) || !is_flat_of(args[2], NPY_BOOL, S, 1))
            return 0;
        q->left = PyArray_DATA((PyArrayObject *)args[1]);
        q->upper = PyArray_DATA((PyArrayObject *)args[2]);
    }
    if (args[3] != Py_None) {
        if (!is_flat_of(args[3], NPY_FLOAT, row, 0)) return 0;
        q->bias = PyArray_DATA((PyArrayObject *)args[3]);
    }
    q->cuts = args[4] != Py_None;
    return !q->cuts || is_flat_of(args[4], NPY_FLOAT, row, 0);
}

int gradient_of(PyObject *const *args, Gradient *q) {
    if (!has_strides(args[0], 4, 0)) return 0;
    PyArrayObject *g = (PyArrayObject *)args[0];
    npy_intp *size = PyArray_DIMS(g), S = PyArray_SIZE(g);
    *q = (Gradient){size[0],    size[1],    size[2],    size[3],
                    step(g, 0), step(g, 1), step(g, 2), step(g, 3)};
    q->g = PyArray_DATA(g);
    if (args[1] != Py_None) {
        if (!is_flat_of(args[1], NPY_FLOAT, S, 0)) return 0;
        q->y = PyArray_DATA((PyArrayObject *)args[1]);
    }
    if (args[2] != Py_None) {
        if (!is_flat_of(args[2], NPY_BOOL, 2 * S, 0) || !is_flat_of(args[3], NPY_BOOL, S, 0))
            return 0;
        q->left = PyArray_DATA((PyArrayObject *)args[2]);
        q->upper = PyArray_DATA((PyArrayObject *)args[3]);
    }
    if (args[4] != Py_None) {
        if (!is_flat_of(args[4], NPY_FLOAT, q->O, 1)) return 0;
        q->db = PyArray_DATA((PyArrayObject *)args[4]);
    }
    return 1;
}

PyMethodDef epilogue_methods[] = {
    KERNEL(pool_loop),
    KERNEL(unpool_loop),
    KERNEL(bias_relu_loop),
    KERNEL(relu_gradient_loop),
    END_OF_KERNELS,
};
