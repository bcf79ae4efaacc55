/* Steps of optimizers on flat arrays: each element by the operations of kernels/steps.py, in their
   order. A product and a sum must not be contracted to an FMA, so that the bits are NumPy's.

   p, g     parameters and their gradients       m, v, s   optimizer state: sums of g and of g^2
   values   p rounded to 16 bits, or NULL: where they are no longer that, they replace p before the
            step; after the step they are p rounded again
   factor   the factor of gradients
   by       NULL, or what the device has decided: the factor, and whether to make the step */
#define DECIDED                                                                                    \
    if (by) {                                                                                      \
        if (by[1] == 0.0f) return;                                                                 \
        factor = by[0];                                                                            \
    }
#define GRADIENT(i) (factor != 1.0f ? OF(from_, G)(g[i]) * factor : OF(from_, G)(g[i]))
#define MERGED(i) (values && ROUND(p[i]) != values[i] ? LOAD(values[i]) : p[i])
#define WRITE(i, value)                                                                            \
    p[i] = value;                                                                                  \
    if (values) values[i] = ROUND(p[i])

/* top: the largest v so far (AMSGrad), or NULL */
KERNEL adam(float *p, const G *g, float *m, float *v, float *top, T *values, const float *by,
            unsigned n, float beta1, float beta2, float a, float e, float decay, float shrink,
            float factor) {
    DECIDED
    EACH(i, n) {
        float P = MERGED(i), d = GRADIENT(i);
        if (shrink != 1.0f) P *= shrink;
        if (decay != 0.0f) d = P * decay + d;
        float M = m[i] * beta1 + d, V = v[i] * beta2 + d * d, W = V;
        m[i] = M;
        v[i] = V;
        if (top) top[i] = W = LARGER(top[i], V);
        WRITE(i, P - M / (sqrtf(W) + e) * a);
    }
}

/* v: the velocity, or NULL; direct: 1 if p -= lr g */
KERNEL sgd(float *p, const G *g, float *v, T *values, const float *by, unsigned n, float momentum,
           float decay, float lr, float rate, float factor, int direct) {
    DECIDED
    EACH(i, n) {
        float P = MERGED(i), d = GRADIENT(i), V = 0.0f;
        if (decay != 0.0f) d = P * decay + d;
        if (v) v[i] = V = v[i] * momentum + d;
        if (direct) P = P - d * lr;
        if (v) P = P - V * rate;
        WRITE(i, P);
    }
}

/* v: the velocity, mean: the running mean of g, or NULL each; rest: 1 - alpha */
KERNEL rmsprop(float *p, const G *g, float *s, float *v, float *mean, T *values, const float *by,
               unsigned n, float lr, float alpha, float rest, float eps, float decay,
               float momentum, float factor) {
    DECIDED
    EACH(i, n) {
        float P = MERGED(i), d = GRADIENT(i);
        if (decay != 0.0f) d = P * decay + d;
        float S = s[i] * alpha + d * d * rest, t = S;
        s[i] = S;
        if (mean) {
            float M = mean[i] * alpha + d * rest;
            mean[i] = M;
            t = S - M * M;
            t = LARGER(t, 0.0f); /* rounding may give less than 0 */
        }
        t = d / (sqrtf(t) + eps);
        if (v) v[i] = t = v[i] * momentum + t;
        WRITE(i, P - t * lr);
    }
}

/* Writes the factor of gradients and whether to make the step (`by`), from the loss, the squares of
   all gradients, their factor and their largest norm; `shown` gets loss and squares. */
KERNEL decide(const T *loss, const double *squares, float *by, double *shown, double factor,
              double most) {
    EACH(i, 1) {
        double clip = most / (sqrt(*squares) + 1e-6), both = LOAD(*loss) + *squares;
        by[0] = clip >= 1.0 ? factor : factor * clip;
        by[1] = both - both == 0.0;
        shown[0] = LOAD(*loss);
        shown[1] = *squares;
    }
}

/* sums[k] = the squares of factor * g in block k of `length` elements */
REDUCTION squares(const T *g, float *sums, unsigned n, unsigned length, float factor) {
    __shared__ float all[THREADS];
    EACH_BLOCK(k, (n - 1) / length + 1) {
        unsigned start = k * length, stop = n - start < length ? n : start + length;
        float sum = sum_of(start + threadIdx.x, stop, THREADS, [&](unsigned i) {
            return LOAD(g[i]) * factor * (LOAD(g[i]) * factor);
        });
        sum = sum_of_block(sum, all);
        if (threadIdx.x == 0) sums[k] = sum;
    }
}
