/* Steps of recurrent layers, as kernels/recurrent.py describes them: float32, n sequences in
   contiguous rows of H numbers, or of those of all gates. Gradients have NumPy's bits. */
#include "elementary.h"

#define MAX_ROWS 8

typedef struct {
    npy_intp n, H, step[MAX_ROWS];
    float *at[MAX_ROWS];
} Rows;

/* Whether the arguments are arrays (n, gates H), where bit i of `wide` is set, or (n, H), none of
   which lies in another one; those with bits in `written` are written. */
static int of_rows(PyObject *const *args, Py_ssize_t count, int arrays, int gates, unsigned wide,
                   unsigned written, Rows *x) {
    if (count != arrays) return 0;
    for (int i = 0; i < arrays; i++) {
        if (!has_rows(args[i], 2, written >> i & 1)) return 0;
        PyArrayObject *a = (PyArrayObject *)args[i];
        npy_intp width = PyArray_DIM(a, 1), parts = wide >> i & 1 ? gates : 1;
        if (i == 0) x->n = PyArray_DIM(a, 0), x->H = width / parts;
        if (PyArray_DIM(a, 0) != x->n || width != x->H * parts) return 0;
        x->at[i] = PyArray_DATA(a), x->step[i] = step(a, 0);
        if (x->step[i] < width) return 0;
        for (int j = 0; j < i; j++)
            if (x->at[i] < x->at[j] + x->n * x->step[j] && x->at[j] < x->at[i] + x->n * x->step[i])
                return 0;
    }
    return 1;
}

/* A kernel of rows: the names of its arrays, and loops over a row of each, p. */
#define STEP(name, arrays, gates, wide, written, ...)                                              \
    static void each_##name(const Rows *x) {                                                       \
        npy_intp H = x->H;                                                                         \
        for (npy_intp row = 0; row < x->n; row++) {                                                \
            float *p[MAX_ROWS];                                                                    \
            for (int i = 0; i < arrays; i++) p[i] = x->at[i] + row * x->step[i];                   \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }                                                                                              \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count) {               \
        Rows x;                                                                                    \
        if (!of_rows(args, count, arrays, gates, wide, written, &x)) Py_RETURN_NOTIMPLEMENTED;     \
        WITHOUT_GIL(4 * x.n * x.H * gates, each_##name(&x));                                       \
        Py_RETURN_NONE;                                                                            \
    }

#define EACH(n) _Pragma("GCC ivdep") for (npy_intp k = 0; k < (n); k++)

STEP(lstm_loop /* z, u, cells, squashed, h, c */, 6, 4, 0x3, 0x3d, {
    float *i = p[0], *f = i + H, *g = f + H, *o = g + H;
    float *u = p[1], *cells = p[2], *squashed = p[3], *h = p[4], *c = p[5];
    EACH(2 * H) i[k] = sigmoid_of(i[k] + u[k]);
    EACH(H) g[k] = tanh_of(g[k] + u[2 * H + k]);
    EACH(H) o[k] = sigmoid_of(o[k] + u[3 * H + k]);
    EACH(H) {
        cells[k] = c[k];
        c[k] = c[k] * f[k] + i[k] * g[k];
        squashed[k] = tanh_of(c[k]);
        h[k] = o[k] * squashed[k];
    }
})

STEP(lstm_gradient_loop /* dh, dc, z, cells, squashed, d */, 6, 4, 0x24, 0x23, {
    float *i = p[2], *f = i + H, *g = f + H, *o = g + H;
    float *dh = p[0], *dc = p[1], *cells = p[3], *squashed = p[4], *d = p[5];
    EACH(H) {
        float of_c = dc[k] + dh[k] * o[k] * (1 - squashed[k] * squashed[k]);
        d[3 * H + k] = dh[k] * squashed[k] * o[k] * (1 - o[k]);
        d[k] = of_c * g[k] * i[k] * (1 - i[k]);
        d[H + k] = of_c * cells[k] * f[k] * (1 - f[k]);
        d[2 * H + k] = of_c * i[k] * (1 - g[k] * g[k]);
        dc[k] = of_c * f[k];
        dh[k] = 0;
    }
})

STEP(gru_loop /* z, u, hidden, off, h */, 5, 3, 0x3, 0x1d, {
    float *r = p[0], *t = r + H, *n = t + H, *u = p[1], *hidden = p[2], *off = p[3], *h = p[4];
    EACH(2 * H) r[k] = sigmoid_of(r[k] + u[k]);
    EACH(H) {
        hidden[k] = u[2 * H + k];
        n[k] = tanh_of(n[k] + r[k] * hidden[k]);
        off[k] = h[k] - n[k];
        h[k] = t[k] * off[k] + n[k];
    }
})

STEP(gru_gradient_loop /* dh, z, hidden, off, d, e */, 6, 3, 0x32, 0x31, {
    float *r = p[1], *t = r + H, *n = t + H;
    float *dh = p[0], *hidden = p[2], *off = p[3], *d = p[4], *e = p[5];
    EACH(H) {
        float on = dh[k] * t[k], of_n = (dh[k] - on) * (1 - n[k] * n[k]);
        e[k] = d[k] = of_n * hidden[k] * r[k] * (1 - r[k]);
        e[H + k] = d[H + k] = dh[k] * off[k] * t[k] * (1 - t[k]);
        d[2 * H + k] = of_n, e[2 * H + k] = of_n * r[k];
        dh[k] = on;
    }
})

PyMethodDef gate_methods[] = {
    KERNEL(lstm_loop), KERNEL(lstm_gradient_loop),
    KERNEL(gru_loop), KERNEL(gru_gradient_loop), END_OF_KERNELS,
};
