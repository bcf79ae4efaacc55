/* Optimizer steps in one pass over memory. Each number is computed by the operations of
   kernels/steps.py in their order, so the bits are those of NumPy. */
#include "native.h"
#include <math.h>

#define REAL float
#define OF(name) name##_float
#define ROOT sqrtf
#include "optimizers.h"
#undef REAL
#undef OF
#undef ROOT

#define REAL double
#define OF(name) name##_double
#define ROOT sqrt
#include "optimizers.h"

typedef void (*Step)(const Flat *, const double *);

#define MAX_NUMBERS 6

/* A step on flat arrays, of which those with bits in `written` are written, and then numbers. */
static PyObject *update(PyObject *const *args, Py_ssize_t given, int arrays, unsigned written,
                        int count, Step of_float, Step of_double) {
    Flat x;
    double c[MAX_NUMBERS];
    if (given != arrays + count || !flat_arrays(args, arrays, written, &x) ||
        !numbers(args + arrays, count, c))
        Py_RETURN_NOTIMPLEMENTED;
    Step step_of = x.type == NPY_FLOAT ? of_float : of_double;
    WITHOUT_GIL(x.bytes, step_of(&x, c));
    Py_RETURN_NONE;
}

/* adam_loop(p, g, m, v, largest or None, beta1, beta2, a, e, decay, shrink) */
static PyObject *adam_loop(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    return update(args, given, 5, 0x1d, 6, adam_float, adam_double);
}

/* sgd_loop(p, g, velocity or None, momentum, decay, lr, rate of the velocity, whether g moves p) */
static PyObject *sgd_loop(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    return update(args, given, 3, 0x5, 5, sgd_float, sgd_double);
}

/* rmsprop_loop(p, g, squares, velocity or None, mean or None, lr, alpha, 1 - alpha, eps, decay,
   momentum) */
static PyObject *rmsprop_loop(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    return update(args, given, 5, 0x1d, 6, rmsprop_float, rmsprop_double);
}

PyMethodDef optimizer_methods[] = {
    KERNEL(adam_loop),
    KERNEL(sgd_loop),
    KERNEL(rmsprop_loop),
    END_OF_KERNELS,
};
