/* Winograd's transforms of 3x3 convolutions, in float32, channels last.

   n images of H x W pixels with C channels, padded by `pad`, in th x tw tiles each

   winograd_tiles(x, V, side, pad, th, tw)     V (tile^2, n th tw C) from x (n, H, W, C)
   winograd_images(V, x, side, pad, th, tw)    and back, added up where tiles overlap
   winograd_inverse(M, Y, side)                Y (side^2, S) from M (tile^2, S)
   winograd_spread(Y, M, side)                 and back */
#include "native.h"
#include <string.h>

typedef struct {
    npy_intp n, H, W, C, pad, th, tw;
    npy_intp image, row, column; /* numbers from one to the next */
    npy_intp plane;              /* the same of V */
} Grid;

/* The channels of a pixel of the padded image; NULL in the padding. */
static inline float *pixel(const Grid *q, float *images, npy_intp n, npy_intp h, npy_intp w) {
    h -= q->pad, w -= q->pad;
    if (h < 0 || h >= q->H || w < 0 || w >= q->W) return NULL;
    return images + n * q->image + h * q->row + w * q->column;
}

#define SIDE 2
#define OF(name) name##_2
#include "winograd.h"
#undef SIDE
#undef OF

#define SIDE 4
#define OF(name) name##_4
#include "winograd.h"
#undef SIDE
#undef OF

static PyObject *between(PyObject *images, PyObject *planes, PyObject *const *rest, int back) {
    double c[4];
    if (!has_rows(images, 4, back) || !has_rows(planes, 2, !back) || !numbers(rest, 4, c))
        Py_RETURN_NOTIMPLEMENTED;
    PyArrayObject *x = (PyArrayObject *)images, *V = (PyArrayObject *)planes;
    npy_intp *size = PyArray_DIMS(x), tile = c[0] + 2;
    Grid q = {size[0], size[1], size[2], size[3], c[1], c[2], c[3]};
    q.image = step(x, 0), q.row = step(x, 1), q.column = step(x, 2), q.plane = step(V, 0);
    if ((tile != 4 && tile != 6) || PyArray_DIM(V, 0) != tile * tile || q.pad < 0 ||
        PyArray_DIM(V, 1) != q.n * q.th * q.tw * q.C)
        Py_RETURN_NOTIMPLEMENTED;
    float *outside = PyMem_Calloc(q.C, sizeof(float));
    if (!outside) return PyErr_NoMemory();
    float *pixels = PyArray_DATA(x), *v = PyArray_DATA(V);
    WITHOUT_GIL(PyArray_NBYTES(V),
                if (back) (tile == 4 ? images_2 : images_4)(&q, v, pixels, outside);
                else (tile == 4 ? tiles_2 : tiles_4)(&q, pixels, v, outside));
    PyMem_Free(outside);
    Py_RETURN_NONE;
}

static PyObject *winograd_tiles(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 6) Py_RETURN_NOTIMPLEMENTED;
    return between(args[0], args[1], args + 2, 0);
}

static PyObject *winograd_images(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 6) Py_RETURN_NOTIMPLEMENTED;
    return between(args[1], args[0], args + 2, 1);
}

typedef void (*Planes)(const float *, npy_intp, float *, npy_intp, npy_intp);

static PyObject *planes(PyObject *const *args, Py_ssize_t count, int back) {
    double side;
    if (count != 3 || !has_rows(args[0], 2, 0) || !has_rows(args[1], 2, 1) ||
        !numbers(args + 2, 1, &side) || (side != 2 && side != 4))
        Py_RETURN_NOTIMPLEMENTED;
    PyArrayObject *x = (PyArrayObject *)args[0], *y = (PyArrayObject *)args[1];
    npy_intp S = PyArray_DIM(x, 1), m = side * side, t = (side + 2) * (side + 2);
    if (PyArray_DIM(y, 1) != S || PyArray_DIM(x, 0) != (back ? m : t) ||
        PyArray_DIM(y, 0) != (back ? t : m))
        Py_RETURN_NOTIMPLEMENTED;
    Planes f = side == 2 ? (back ? spreads_2 : inverse_2) : (back ? spreads_4 : inverse_4);
    WITHOUT_GIL(S * t * sizeof(float),
                f(PyArray_DATA(x), step(x, 0), PyArray_DATA(y), step(y, 0), S));
    Py_RETURN_NONE;
}

static PyObject *winograd_inverse(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    return planes(args, count, 0);
}

static PyObject *winograd_spread(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    return planes(args, count, 1);
}

PyMethodDef winograd_methods[] = {
    KERNEL(winograd_tiles),
    KERNEL(winograd_images),
    KERNEL(winograd_inverse),
    KERNEL(winograd_spread),
    END_OF_KERNELS,
};
