/* Activations and their gradients, as kernels/activations.py describes them, on float32 arrays of
   one shape and one order in memory. Gradients but for that of gelu_loop have NumPy's bits. */
#include "elementary.h"

/* A kernel of arrays a, b, c, d, of which those with bits in `written` are written. */
#define ELEMENTWISE(name, arrays, written, statement)                                              \
    static void each_##name(const Flat *x) {                                                       \
        float *restrict a = x->at[0], *restrict b = x->at[1];                                      \
        float *restrict c = x->at[2], *restrict d = x->at[3];                                      \
        (void)c, (void)d;                                                                          \
        for (npy_intp i = 0, n = x->n; i < n; i++) statement;                                      \
    }                                                                                              \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count) {               \
        return on_all(args, count, arrays, written, each_##name);                                  \
    }

static PyObject *on_all(PyObject *const *args, Py_ssize_t count, int arrays, unsigned written,
                        void (*each)(const Flat *)) {
    Flat x = {0};
    if (count != arrays || !flat_arrays(args, arrays, written, &x) || x.type != NPY_FLOAT)
        Py_RETURN_NOTIMPLEMENTED;
    for (int i = 0; i < arrays; i++)
        if (!x.at[i]) Py_RETURN_NOTIMPLEMENTED;
    WITHOUT_GIL(x.bytes, each(&x));
    Py_RETURN_NONE;
}

#define SCALE 0.7978845608028654 /* sqrt(2 / pi) */
#define CUBIC 0.044715
#define DENSITY 0.3989422804014327f

/* The arrays of each kernel in the order of a, b, c, d: values from x, gradients of x from g */
ELEMENTWISE(tanh_loop /* x, y */, 2, 0x2, b[i] = tanh_of(a[i]))
ELEMENTWISE(sigmoid_loop /* x, y */, 2, 0x2, b[i] = sigmoid_of(a[i]))
ELEMENTWISE(silu_loop /* x, s, y */, 3, 0x6, c[i] = a[i] * (b[i] = sigmoid_of(a[i])))
ELEMENTWISE(gelu_loop /* x, phi, y */, 3, 0x6, c[i] = a[i] * (b[i] = normal_of(a[i])))
ELEMENTWISE(gelu_tanh_loop /* x, s, y */, 3, 0x6, {
    float u = a[i] * (a[i] * a[i] * (float)(SCALE * CUBIC) + (float)SCALE);
    c[i] = a[i] * (b[i] = sigmoid_of(2 * u));
})

ELEMENTWISE(tanh_gradient_loop /* g, y, dx */, 3, 0x4, c[i] = a[i] * (1 - b[i] * b[i]))
ELEMENTWISE(sigmoid_gradient_loop /* g, y, dx */, 3, 0x4, c[i] = a[i] * b[i] * (1 - b[i]))
ELEMENTWISE(silu_gradient_loop /* g, x, s, dx */, 4, 0x8,
            d[i] = a[i] * (c[i] * (1 + b[i] * (1 - c[i]))))
ELEMENTWISE(gelu_gradient_loop /* g, x, phi, dx */, 4, 0x8,
            d[i] = a[i] * (c[i] + b[i] * (bell_of(b[i]) * DENSITY)))
ELEMENTWISE(gelu_tanh_gradient_loop /* g, x, s, dx */, 4, 0x8, {
    float slope = b[i] * b[i] * (float)(3 * SCALE * CUBIC) + (float)SCALE;
    d[i] = a[i] * (b[i] * c[i] * (1 - c[i]) * slope * 2 + c[i]);
})

PyMethodDef activation_methods[] = {
    KERNEL(tanh_loop), KERNEL(tanh_gradient_loop),
    KERNEL(sigmoid_loop), KERNEL(sigmoid_gradient_loop),
    KERNEL(silu_loop), KERNEL(silu_gradient_loop),
    KERNEL(gelu_loop), KERNEL(gelu_gradient_loop),
    KERNEL(gelu_tanh_loop), KERNEL(gelu_tanh_gradient_loop),
    END_OF_KERNELS,
};
