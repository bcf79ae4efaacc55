#include "native.h"

/* Whether its numbers are one stretch of memory, with its axes in any order. */
static int is_dense(PyArrayObject *a) {
    npy_intp next = PyArray_ITEMSIZE(a), whole = PyArray_NBYTES(a);
    while (next < whole) {
        int i = 0, n = PyArray_NDIM(a);
        while (i < n && (PyArray_DIM(a, i) == 1 || PyArray_STRIDE(a, i) != next)) i++;
        if (i == n) return 0;
        next *= PyArray_DIM(a, i);
    }
    return 1;
}

/* Whether both have one shape and one order in memory. */
static int is_alike(PyArrayObject *a, PyArrayObject *b) {
    if (PyArray_NDIM(a) != PyArray_NDIM(b)) return 0;
    for (int i = 0; i < PyArray_NDIM(a); i++)
        if (PyArray_DIM(a, i) != PyArray_DIM(b, i) ||
            (PyArray_DIM(a, i) > 1 && PyArray_STRIDE(a, i) != PyArray_STRIDE(b, i)))
            return 0;
    return 1;
}

int is_of_numbers(PyObject *o, int writes) {
    return PyArray_CheckExact(o) &&
           PyArray_CHKFLAGS((PyArrayObject *)o,
                            NPY_ARRAY_ALIGNED | (writes ? NPY_ARRAY_WRITEABLE : 0)) &&
           PyArray_ISNOTSWAPPED((PyArrayObject *)o);
}

int flat_arrays(PyObject *const *args, int count, unsigned written, Flat *out) {
    for (int i = 0; i < count; i++) {
        out->at[i] = NULL;
        if (i && args[i] == Py_None) continue;
        if (!is_of_numbers(args[i], written >> i & 1)) return 0;
        PyArrayObject *a = (PyArrayObject *)args[i];
        if (i == 0) {
            out->type = PyArray_TYPE(a), out->n = PyArray_SIZE(a), out->bytes = PyArray_NBYTES(a);
            if ((out->type != NPY_FLOAT && out->type != NPY_DOUBLE) || !is_dense(a)) return 0;
        }
        if (PyArray_TYPE(a) != out->type || !is_alike(a, (PyArrayObject *)args[0])) return 0;
        out->at[i] = PyArray_DATA(a);
        for (int j = 0; j < i; j++) {
            npy_uintp x = (npy_uintp)out->at[i], y = (npy_uintp)out->at[j];
            if (y && x < y + out->bytes && y < x + out->bytes) return 0;
        }
    }
    return 1;
}

int is_flat_of(PyObject *o, int type, npy_intp n, int writes) {
    return is_of_numbers(o, writes) && PyArray_IS_C_CONTIGUOUS((PyArrayObject *)o) &&
           PyArray_TYPE((PyArrayObject *)o) == type && PyArray_SIZE((PyArrayObject *)o) == n;
}

float *floats(PyObject *o, npy_intp n, int writes) {
    return is_flat_of(o, NPY_FLOAT, n, writes) ? PyArray_DATA((PyArrayObject *)o) : NULL;
}

npy_int64 *integers(PyObject *o, npy_intp n, npy_intp end) {
    if (!is_flat_of(o, NPY_INT64, n, 0)) return NULL;
    npy_int64 *x = PyArray_DATA((PyArrayObject *)o);
    int wrong = 0;
    for (npy_intp i = 0; i < n; i++) wrong |= (npy_uint64)x[i] >= (npy_uint64)end;
    return wrong ? NULL : x;
}

int has_strides(PyObject *o, int axes, int writes) {
    if (!is_of_numbers(o, writes)) return 0;
    PyArrayObject *a = (PyArrayObject *)o;
    int n = PyArray_NDIM(a);
    if (PyArray_TYPE(a) != NPY_FLOAT || n < 1 || (axes >= 0 && n != axes)) return 0;
    for (int i = 0; i < n; i++)
        if (PyArray_STRIDE(a, i) % (npy_intp)sizeof(float)) return 0;
    return 1;
}

int has_rows(PyObject *o, int axes, int writes) {
    if (!has_strides(o, axes, writes)) return 0;
    PyArrayObject *a = (PyArrayObject *)o;
    int last = PyArray_NDIM(a) - 1;
    return PyArray_DIM(a, last) == 1 || PyArray_STRIDE(a, last) == sizeof(float);
}

int numbers(PyObject *const *args, int count, double *out) {
    for (int i = 0; i < count; i++) {
        out[i] = PyFloat_AsDouble(args[i]);
        if (out[i] == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}
