/* Steps of optimizers on flat arrays: each number by the operations of kernels/steps.py, in their
   order. No product and sum may be contracted to one rounding, so that the bits are NumPy's.

   p, g    parameters and their gradients        m, v, s   running sums of g and of its square */

/* top: the largest v so far (AMSGrad), or NULL */
KERNEL adam(float *p, const float *g, float *m, float *v, float *top, unsigned n, float beta1,
            float beta2, float a, float e, float decay, float shrink) {
    for (unsigned i = FIRST; i < n; i += STEP) {
        float P = shrink != 1.0f ? p[i] * shrink : p[i];
        float G = decay != 0.0f ? P * decay + g[i] : g[i];
        float M = m[i] * beta1 + G, V = v[i] * beta2 + G * G, W = V;
        m[i] = M;
        v[i] = V;
        if (top) top[i] = W = LARGER(top[i], V);
        p[i] = P - M / (sqrtf(W) + e) * a;
    }
}

/* v: the velocity, or NULL; direct: whether g moves p */
KERNEL sgd(float *p, const float *g, float *v, unsigned n, float momentum, float decay, float lr,
           float rate, int direct) {
    for (unsigned i = FIRST; i < n; i += STEP) {
        float P = p[i], G = decay != 0.0f ? P * decay + g[i] : g[i], V = 0.0f;
        if (v) v[i] = V = v[i] * momentum + G;
        if (direct) P = P - G * lr;
        if (v) P = P - V * rate;
        p[i] = P;
    }
}

/* v: the velocity, mean: the running sum of g, or NULL; rest: 1 - alpha */
KERNEL rmsprop(float *p, const float *g, float *s, float *v, float *mean, unsigned n, float lr,
               float alpha, float rest, float eps, float decay, float momentum) {
    for (unsigned i = FIRST; i < n; i += STEP) {
        float P = p[i], G = decay != 0.0f ? P * decay + g[i] : g[i];
        float S = s[i] * alpha + G * G * rest, t = S;
        s[i] = S;
        if (mean) {
            float M = mean[i] * alpha + G * rest;
            mean[i] = M;
            t = S - M * M;
            t = LARGER(t, 0.0f); /* rounding may leave less than 0 */
        }
        t = G / (sqrtf(t) + eps);
        if (v) v[i] = t = v[i] * momentum + t;
        p[i] = P - t * lr;
    }
}
