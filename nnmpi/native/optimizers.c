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

/* adam_loop(p, g, m, v, largest or None, beta1, beta2, a, e, decay, shrink) */
static PyObject *adam_loop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Flat x;
    double c[6];
    if (count != 11 || !flat_arrays(args, 5, 0x1d, &x) || !numbers(args + 5, 6, c))
        Py_RETURN_NOTIMPLEMENTED;
    WITHOUT_GIL(x.bytes, if (x.type == NPY_FLOAT) adam_float(&x, c); else adam_double(&x, c));
    Py_RETURN_NONE;
}

/* sgd_loop(p, g, velocity or None, momentum, decay, lr, rate of the velocity, whether g moves p) */
static PyObject *sgd_loop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Flat x;
    double c[5];
    if (count != 8 || !flat_arrays(args, 3, 0x5, &x) || !numbers(args + 3, 5, c))
        Py_RETURN_NOTIMPLEMENTED;
    WITHOUT_GIL(x.bytes, if (x.type == NPY_FLOAT) sgd_float(&x, c); else sgd_double(&x, c));
    Py_RETURN_NONE;
}

/* rmsprop_loop(p, g, squares, velocity or None, mean or None, lr, alpha, 1 - alpha, eps, decay,
   momentum) */
static PyObject *rmsprop_loop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Flat x;
    double c[6];
    if (count != 11 || !flat_arrays(args, 5, 0x1d, &x) || !numbers(args + 5, 6, c))
        Py_RETURN_NOTIMPLEMENTED;
    WITHOUT_GIL(x.bytes, if (x.type == NPY_FLOAT) rmsprop_float(&x, c); else rmsprop_double(&x, c));
    Py_RETURN_NONE;
}

PyMethodDef optimizer_methods[] = {
    KERNEL(adam_loop),
    KERNEL(sgd_loop),
    KERNEL(rmsprop_loop),
    END_OF_KERNELS,
};
