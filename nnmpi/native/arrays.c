#include "native.h"

static int is_flat(PyObject *o, int writes) {
    if (!PyArray_CheckExact(o)) return 0;
    PyArrayObject *a = (PyArrayObject *)o;
    int flags = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (writes ? NPY_ARRAY_WRITEABLE : 0);
    return PyArray_CHKFLAGS(a, flags) && PyArray_ISNOTSWAPPED(a);
}

int flat_arrays(PyObject *const *args, int count, unsigned written, Flat *out) {
    for (int i = 0; i < count; i++) {
        out->at[i] = NULL;
        if (i && args[i] == Py_None) continue;
        if (!is_flat(args[i], written >> i & 1)) return 0;
        PyArrayObject *a = (PyArrayObject *)args[i];
        if (i == 0) {
            out->type = PyArray_TYPE(a), out->n = PyArray_SIZE(a), out->bytes = PyArray_NBYTES(a);
            if (out->type != NPY_FLOAT && out->type != NPY_DOUBLE) return 0;
        }
        if (PyArray_TYPE(a) != out->type || PyArray_SIZE(a) != out->n) return 0;
        out->at[i] = PyArray_DATA(a);
        for (int j = 0; j < i; j++) {
            npy_uintp x = (npy_uintp)out->at[i], y = (npy_uintp)out->at[j];
            if (y && x < y + out->bytes && y < x + out->bytes) return 0;
        }
    }
    return 1;
}

int is_flat_of(PyObject *o, int type, npy_intp n, int writes) {
    return is_flat(o, writes) && PyArray_TYPE((PyArrayObject *)o) == type &&
           PyArray_SIZE((PyArrayObject *)o) == n;
}

int has_rows(PyObject *o, int axes, int writes) {
    if (!PyArray_CheckExact(o)) return 0;
    PyArrayObject *a = (PyArrayObject *)o;
    int n = PyArray_NDIM(a);
    if (PyArray_TYPE(a) != NPY_FLOAT || n < 1 || (axes >= 0 && n != axes) ||
        !PyArray_ISALIGNED(a) || !PyArray_ISNOTSWAPPED(a) || (writes && !PyArray_ISWRITEABLE(a)))
        return 0;
    for (int i = 0; i < n; i++)
        if (PyArray_STRIDE(a, i) % (npy_intp)sizeof(float)) return 0;
    return PyArray_DIM(a, n - 1) == 1 || PyArray_STRIDE(a, n - 1) == sizeof(float);
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
