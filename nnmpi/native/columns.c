/* The columns of a convolution: each place of its kernel in each output's window, in float32.

   `places` is a view (..., kw, C) of padded images, in which windows overlap, `columns` an array
   of its shape.

   gather_loop(places, columns)     columns = places
   overlap_loop(places, columns)    places += columns, window by window */
#include "native.h"
#include <string.h>

#define MOST_AXES 10

/* The runs of contiguous numbers of a view: its last axis, with the one before if that follows. */
typedef struct {
    int axes;
    npy_intp runs, run, size[MOST_AXES], by[MOST_AXES], at[MOST_AXES];
} Runs;

static int runs_of(PyObject *places, PyObject *columns, int adds, Runs *r) {
    if (!has_rows(places, -1, adds) || !has_rows(columns, -1, !adds)) return 0;
    PyArrayObject *p = (PyArrayObject *)places, *c = (PyArrayObject *)columns;
    int n = PyArray_NDIM(p);
    if (n < 2 || n > MOST_AXES || !PyArray_IS_C_CONTIGUOUS(c) || !PyArray_SAMESHAPE(p, c)) return 0;
    *r = (Runs){n - 1, 1, PyArray_DIM(p, n - 1)};
    if (step(p, n - 2) == r->run) r->run *= PyArray_DIM(p, n - 2), r->axes--;
    for (int i = 0; i < r->axes; i++) {
        r->size[i] = PyArray_DIM(p, i), r->by[i] = step(p, i);
        r->runs *= r->size[i];
    }
    return 1;
}

static float *next(Runs *r, float *at) {
    for (int i = r->axes - 1; i >= 0; i--) {
        at += r->by[i];
        if (++r->at[i] < r->size[i]) return at;
        at -= r->by[i] * r->size[i], r->at[i] = 0;
    }
    return at;
}

static void gather(Runs r, float *places, float *columns) {
    for (npy_intp k = 0; k < r.runs; k++, columns += r.run, places = next(&r, places))
        memcpy(columns, places, r.run * sizeof *columns);
}

static void overlap(Runs r, float *places, const float *columns) {
    for (npy_intp k = 0; k < r.runs; k++, columns += r.run, places = next(&r, places))
#pragma GCC ivdep
        for (npy_intp i = 0; i < r.run; i++) places[i] += columns[i];
}

/* places and columns, of which the loop writes the places if it adds to them. */
#define COLUMNS(name, loop, adds)                                                                  \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count) {               \
        Runs r;                                                                                    \
        if (count != 2 || !runs_of(args[0], args[1], adds, &r)) Py_RETURN_NOTIMPLEMENTED;          \
        float *places = PyArray_DATA((PyArrayObject *)args[0]);                                    \
        float *columns = PyArray_DATA((PyArrayObject *)args[1]);                                   \
        WITHOUT_GIL(PyArray_NBYTES((PyArrayObject *)args[1]), loop(r, places, columns));           \
        Py_RETURN_NONE;                                                                            \
    }

COLUMNS(gather_loop, gather, 0)
COLUMNS(overlap_loop, overlap, 1)

PyMethodDef column_methods[] = {KERNEL(gather_loop), KERNEL(overlap_loop), END_OF_KERNELS};
