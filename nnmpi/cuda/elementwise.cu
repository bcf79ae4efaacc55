/* Bias and ReLU, and its gradient: each number by the operations of kernels/epilogue.py, in their
   order. */

/* y (rows, width) += bias (width), or NULL; then max(y, 0), if it cuts. */
KERNEL bias_relu(float *y, const float *bias, unsigned n, unsigned width, int cuts) {
    for (unsigned i = FIRST; i < n; i += STEP) {
        float v = bias ? y[i] + bias[i % width] : y[i];
        y[i] = cuts ? LARGER(v, 0.0f) : v;
    }
}

/* out = g where y > 0: a product, so that 0 has the sign of g, and NaN stays. */
KERNEL relu_gradient(const float *g, const float *y, float *out, unsigned n) {
    for (unsigned i = FIRST; i < n; i += STEP) out[i] = g[i] * (y[i] > 0.0f ? 1.0f : 0.0f);
}
