/* The loops of optimizers.c for the type REAL. The last arguments of a loop are constants, so that
   each combination is compiled separately.

   p, g    parameters and their gradients        m, v, s   optimizer state: sums of g and of g^2
   c       the constants of the step, in the order of the arguments */

ALWAYS_INLINE void OF(adam_case)(const Arguments *x, const double *c, int decays, int shrinks,
                                 int tops) {
    REAL *restrict p = x->at[0], *restrict m = x->at[2], *restrict v = x->at[3];
    REAL *restrict top = x->at[4];
    const REAL *restrict g = x->at[1];
    const REAL beta1 = c[0], beta2 = c[1], a = c[2], e = c[3], decay = c[4], shrink = c[5];
    for (npy_intp i = 0; i < x->n; i++) {
        REAL P = shrinks ? p[i] * shrink : p[i], G = decays ? P * decay + g[i] : g[i];
        REAL M = m[i] * beta1 + G, V = v[i] * beta2 + G * G, W = V;
        m[i] = M;
        v[i] = V;
        if (tops) top[i] = W = top[i] >= V || top[i] != top[i] ? top[i] : V;
        p[i] = P - M / (ROOT(W) + e) * a;
    }
}

static void OF(scale)(const Arguments *x, const double *c) {
    REAL *p = x->at[0];
    const REAL factor = c[0];
    for (npy_intp i = 0; i < x->n; i++) p[i] *= factor;
}

static void OF(adam)(const Arguments *x, const double *c) {
    int tops = x->at[4] != NULL, decays = c[4] != 0, shrinks = c[5] != 1;
    if (decays && shrinks) OF(adam_case)(x, c, 1, 1, tops);
    else if (decays && tops) OF(adam_case)(x, c, 1, 0, 1);
    else if (decays) OF(adam_case)(x, c, 1, 0, 0);
    else if (shrinks && tops) OF(adam_case)(x, c, 0, 1, 1);
    else if (shrinks) OF(adam_case)(x, c, 0, 1, 0);
    else if (tops) OF(adam_case)(x, c, 0, 0, 1);
    else OF(adam_case)(x, c, 0, 0, 0);
}

ALWAYS_INLINE void OF(sgd_case)(const Arguments *x, const double *c, int decays, int direct,
                                int moves) {
    REAL *restrict p = x->at[0], *restrict v = x->at[2];
    const REAL *restrict g = x->at[1];
    const REAL momentum = c[0], decay = c[1], lr = c[2], rate = c[3];
    for (npy_intp i = 0; i < x->n; i++) {
        REAL P = p[i], G = decays ? P * decay + g[i] : g[i];
        if (moves) v[i] = v[i] * momentum + G;
        if (direct) P = P - G * lr;
        if (moves) P = P - v[i] * rate;
        p[i] = P;
    }
}

static void OF(sgd)(const Arguments *x, const double *c) {
    int decays = c[1] != 0, direct = c[4] != 0;
    if (!x->at[2]) {
        if (decays) OF(sgd_case)(x, c, 1, 1, 0);
        else OF(sgd_case)(x, c, 0, 1, 0);
    }
    else if (decays && direct) OF(sgd_case)(x, c, 1, 1, 1);
    else if (decays) OF(sgd_case)(x, c, 1, 0, 1);
    else if (direct) OF(sgd_case)(x, c, 0, 1, 1);
    else OF(sgd_case)(x, c, 0, 0, 1);
}

ALWAYS_INLINE void OF(rmsprop_case)(const Arguments *x, const double *c, int moves, int centers) {
    REAL *restrict p = x->at[0], *restrict s = x->at[2], *restrict v = x->at[3];
    REAL *restrict mean = x->at[4];
    const REAL *restrict g = x->at[1];
    const REAL lr = c[0], alpha = c[1], rest = c[2], eps = c[3], decay = c[4], momentum = c[5];
    const int decays = c[4] != 0;
    for (npy_intp i = 0; i < x->n; i++) {
        REAL G = decays ? p[i] * decay + g[i] : g[i], S = s[i] * alpha + G * G * rest, t = S;
        s[i] = S;
        if (centers) {
            REAL M = mean[i] = mean[i] * alpha + G * rest;
            t = S - M * M;
            t = t >= 0 || t != t ? t : 0; /* rounding may give less than 0 */
        }
        t = G / (ROOT(t) + eps);
        if (moves) t = v[i] = v[i] * momentum + t;
        p[i] = p[i] - t * lr;
    }
}

static void OF(rmsprop)(const Arguments *x, const double *c) {
    int moves = x->at[3] != NULL, centers = x->at[4] != NULL;
    if (moves && centers) OF(rmsprop_case)(x, c, 1, 1);
    else if (moves) OF(rmsprop_case)(x, c, 1, 0);
    else if (centers) OF(rmsprop_case)(x, c, 0, 1);
    else OF(rmsprop_case)(x, c, 0, 0);
}
