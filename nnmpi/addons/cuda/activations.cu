/* Smooth activations and their gradients, as kernels/activations.py describes them. */

KERNEL tanh_value(const T *x, T *y, unsigned n) { EACH(i, n) y[i] = ROUND(tanhf(LOAD(x[i]))); }

KERNEL tanh_gradient(const T *g, const T *y, T *dx, unsigned n) {
    EACH(i, n) dx[i] = ROUND(LOAD(g[i]) * (1.0f - LOAD(y[i]) * LOAD(y[i])));
}

KERNEL sigmoid_value(const T *x, T *y, unsigned n) { EACH(i, n) y[i] = ROUND(sigmoid(LOAD(x[i]))); }

KERNEL sigmoid_gradient(const T *g, const T *y, T *dx, unsigned n) {
    EACH(i, n) dx[i] = ROUND(LOAD(g[i]) * LOAD(y[i]) * (1.0f - LOAD(y[i])));
}

KERNEL silu(const T *x, T *slope, T *y, unsigned n) {
    EACH(i, n) {
        float v = LOAD(x[i]), s = sigmoid(v);
        y[i] = ROUND(v * s);
        slope[i] = ROUND(((1.0f - s) * v + 1.0f) * s);
    }
}

/* s = sigmoid(x): y = x s tells it, except near 0 */
KERNEL silu_gradient(const T *g, const T *x, const T *y, T *dx, unsigned n) {
    EACH(i, n) {
        float v = LOAD(x[i]), value = LOAD(y[i]);
        float s = fabsf(v) < 0.0009765625f ? 0.5f + 0.25f * v : value / v;
        dx[i] = ROUND(LOAD(g[i]) * (s + value * (1.0f - s)));
    }
}

KERNEL gelu(const T *x, T *slope, T *y, unsigned n) {
    EACH(i, n) {
        float v = LOAD(x[i]), phi = erfcf(v * -0.70710678118654752f) * 0.5f;
        y[i] = ROUND(v * phi);
        slope[i] = ROUND(v * (expf(v * v * -0.5f) * 0.39894228040143268f) + phi);
    }
}

#define SCALE 0.79788456080286536f /* sqrt(2 / pi) */
#define CUBIC 0.044715f

/* s = sigmoid(2 u); where tanh(u) rounds to 1, x s (1 - s) is 0 */
KERNEL gelu_tanh(const T *x, T *slope, T *y, unsigned n) {
    EACH(i, n) {
        float v = LOAD(x[i]), square = v * v;
        float s = (tanhf((square * (SCALE * CUBIC) + SCALE) * v) + 1.0f) * 0.5f, value = v * s;
        y[i] = ROUND(value);
        slope[i] = ROUND(value * (1.0f - s) * (square * (3.0f * SCALE * CUBIC) + SCALE) * 2.0f + s);
    }
}
