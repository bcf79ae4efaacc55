/* Activations and their gradients, as kernels/activations.py describes them, on float32 arrays of
   one shape and one order in memory. Gradients but for that of gelu_loop have NumPy's bits. */
#include "elementary.h"

/* A kernel of arrays a, b, c, d. */
#define ELEMENTWISE(name, statement)                                                               \
    static int name(Arguments *x) {                                                                \
        float *restrict a = x->at[0], *restrict b = x->at[1];                                      \
        float *restrict c = x->at[2], *restrict d = x->at[3];                                      \
        (void)c, (void)d;                                                                          \
        for (npy_intp i = 0, n = x->n; i < n; i++) statement;                                      \
        return DONE;                                                                               \
    }

#define SCALE 0.7978845608028654 /* sqrt(2 / pi) */
#define CUBIC 0.044715
#define DENSITY 0.3989422804014327f

/* The arrays of each kernel in the order of a, b, c, d: values from x, gradients of x from g */
ELEMENTWISE(tanh_loop /* x, y */, b[i] = tanh_of(a[i]))
ELEMENTWISE(sigmoid_loop /* x, y */, b[i] = sigmoid_of(a[i]))
ELEMENTWISE(silu_loop /* x, s, y */, c[i] = a[i] * (b[i] = sigmoid_of(a[i])))
ELEMENTWISE(gelu_loop /* x, phi, y */, c[i] = a[i] * (b[i] = normal_of(a[i])))
ELEMENTWISE(gelu_tanh_loop /* x, s, y */, {
    float u = a[i] * (a[i] * a[i] * (float)(SCALE * CUBIC) + (float)SCALE);
    c[i] = a[i] * (b[i] = sigmoid_of(2 * u));
})

ELEMENTWISE(tanh_gradient_loop /* g, y, dx */, c[i] = a[i] * (1 - b[i] * b[i]))
ELEMENTWISE(sigmoid_gradient_loop /* g, y, dx */, c[i] = a[i] * b[i] * (1 - b[i]))
ELEMENTWISE(silu_gradient_loop /* g, x, s, dx */,
            d[i] = a[i] * (c[i] * (1 + b[i] * (1 - c[i]))))
ELEMENTWISE(gelu_gradient_loop /* g, x, phi, dx */,
            d[i] = a[i] * (c[i] + b[i] * (bell_of(b[i]) * DENSITY)))
ELEMENTWISE(gelu_tanh_gradient_loop /* g, x, s, dx */, {
    float slope = b[i] * b[i] * (float)(3 * SCALE * CUBIC) + (float)SCALE;
    d[i] = a[i] * (b[i] * c[i] * (1 - c[i]) * slope * 2 + c[i]);
})

Kernel activation_kernels[] = {
    KERNEL(tanh_loop, "f@ =f@"),
    KERNEL(tanh_gradient_loop, "f@ f@ =f@"),
    KERNEL(sigmoid_loop, "f@ =f@"),
    KERNEL(sigmoid_gradient_loop, "f@ f@ =f@"),
    KERNEL(silu_loop, "f@ =f@ =f@"),
    KERNEL(silu_gradient_loop, "f@ f@ f@ =f@"),
    KERNEL(gelu_loop, "f@ =f@ =f@"),
    KERNEL(gelu_gradient_loop, "f@ f@ f@ =f@"),
    KERNEL(gelu_tanh_loop, "f@ =f@ =f@"),
    KERNEL(gelu_tanh_gradient_loop, "f@ f@ f@ =f@"),
    END_OF_KERNELS,
};
