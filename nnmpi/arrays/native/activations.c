/* Activations and their gradients, as kernels/activations.py describes them, and sums and
   products, on float32 arrays of one shape and one memory layout. All except the values of
   activations have NumPy's bits. */
#include "elementary.h"
#include "epilogue.h"

/* Defines a kernel of arrays a, b, c. */
#define ELEMENTWISE(name, statement)                                                               \
    static int name(Arguments *x) {                                                                \
        float *restrict a = x->at[0], *restrict b = x->at[1], *restrict c = x->at[2];              \
        (void)c;                                                                                   \
        for (npy_intp i = 0, n = x->n; i < n; i++) statement;                                      \
        return DONE;                                                                               \
    }

#define SCALE 0.7978845608028654 /* sqrt(2 / pi) */
#define CUBIC 0.044715
#define DENSITY 0.3989422804014327f

/* The arrays of each kernel in the order of a, b, c: values from x, gradients of x from g */
ELEMENTWISE(tanh_loop /* x, y */, b[i] = tanh_of(a[i]))
ELEMENTWISE(sigmoid_loop /* x, y */, b[i] = sigmoid_of(a[i]))
ELEMENTWISE(silu_loop /* x, slope, y */, {
    float s = sigmoid_of(a[i]);
    b[i] = s * (1 + a[i] * (1 - s));
    c[i] = a[i] * s;
})
ELEMENTWISE(gelu_loop /* x, slope, y */, {
    float phi = normal_of(a[i]);
    b[i] = phi + a[i] * (bell_of(a[i]) * DENSITY);
    c[i] = a[i] * phi;
})
ELEMENTWISE(gelu_tanh_loop /* x, slope, y */, {
    float u = a[i] * (a[i] * a[i] * (float)(SCALE * CUBIC) + (float)SCALE);
    float du = a[i] * a[i] * (float)(3 * SCALE * CUBIC) + (float)SCALE;
    float s = sigmoid_of(2 * u);
    b[i] = a[i] * s * (1 - s) * du * 2 + s;
    c[i] = a[i] * s;
})

ELEMENTWISE(relu_loop /* x, y */, b[i] = larger(a[i], 0))
ELEMENTWISE(add_loop /* x, y, x + y */, c[i] = a[i] + b[i])
ELEMENTWISE(subtract_loop /* x, y, x - y */, c[i] = a[i] - b[i])
ELEMENTWISE(multiply_loop /* x, y, x y */, c[i] = a[i] * b[i])

ELEMENTWISE(tanh_gradient_loop /* g, y, dx */, c[i] = a[i] * (1 - b[i] * b[i]))
ELEMENTWISE(sigmoid_gradient_loop /* g, y, dx */, c[i] = a[i] * b[i] * (1 - b[i]))

Kernel activation_kernels[] = {
    PARTS("@", tanh_loop, "f@ ~f@"),
    PARTS("@", tanh_gradient_loop, "f@ f@ ~f@"),
    PARTS("@", sigmoid_loop, "f@ ~f@"),
    PARTS("@", sigmoid_gradient_loop, "f@ f@ ~f@"),
    PARTS("@", silu_loop, "f@ ~f@ ~f@"),
    PARTS("@", gelu_loop, "f@ ~f@ ~f@"),
    PARTS("@", gelu_tanh_loop, "f@ ~f@ ~f@"),
    PARTS("@", relu_loop, "f@ ~f@"),
    PARTS("@", add_loop, "f@ f@ ~f@"),
    PARTS("@", subtract_loop, "f@ f@ ~f@"),
    PARTS("@", multiply_loop, "f@ f@ ~f@"),
    END_OF_KERNELS,
};
