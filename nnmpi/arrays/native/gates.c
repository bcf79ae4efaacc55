/* Steps of recurrent layers, as kernels/recurrent.py describes them: float32, n sequences in
   contiguous rows of H elements, or of the elements of all gates. Gradients have NumPy's bits. */
#include "elementary.h"

#define MAX_ROWS 6

/* Defines a kernel that loops over rows; p are the rows of the arrays. */
#define STEP(name, arrays, ...)                                                                    \
    static int name(Arguments *a) {                                                                \
        npy_intp H = SIZE(a, 'H');                                                                 \
        for (npy_intp row = 0; row < SIZE(a, 'n'); row++) {                                        \
            float *p[MAX_ROWS];                                                                    \
            for (int i = 0; i < arrays; i++) p[i] = (float *)a->at[i] + row * step(a, i, 0);       \
            __VA_ARGS__                                                                            \
        }                                                                                          \
        return DONE;                                                                               \
    }

#define EACH(n) _Pragma("GCC ivdep") for (npy_intp k = 0; k < (n); k++)

STEP(lstm_loop /* z, u, cells, squashed, h, c */, 6, {
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

STEP(lstm_gradient_loop /* dh, dc, z, cells, squashed, d */, 6, {
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

STEP(gru_loop /* z, u, hidden, off, h */, 5, {
    float *r = p[0], *t = r + H, *n = t + H, *u = p[1], *hidden = p[2], *off = p[3], *h = p[4];
    EACH(2 * H) r[k] = sigmoid_of(r[k] + u[k]);
    EACH(H) {
        hidden[k] = u[2 * H + k];
        n[k] = tanh_of(n[k] + r[k] * hidden[k]);
        off[k] = h[k] - n[k];
        h[k] = t[k] * off[k] + n[k];
    }
})

STEP(gru_gradient_loop /* dh, z, hidden, off, d, e */, 6, {
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

Kernel gate_kernels[] = {
    PARTS("n", lstm_loop, "=f-n4.H f-n4.H ~f-nH ~f-nH ~f-nH =f-nH"),
    PARTS("n", lstm_gradient_loop, "=f-nH =f-nH f-n4.H f-nH f-nH ~f-n4.H"),
    PARTS("n", gru_loop, "=f-n3.H f-n3.H ~f-nH ~f-nH =f-nH"),
    PARTS("n", gru_gradient_loop, "=f-nH f-n3.H f-nH f-nH ~f-n3.H ~f-n3.H"),
    END_OF_KERNELS,
};
