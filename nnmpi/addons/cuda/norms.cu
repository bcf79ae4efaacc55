/* Normalisation, as kernels/norm.py describes it. Statistics and their gradients are float. */

/* ---- x (M, K): one block for each row */

KERNEL layer_norm(const T *x, const T *w, const T *b, float *mean, float *r, T *y, unsigned M,
                  unsigned K, float eps) {
    __shared__ float all[THREADS];
    EACH_BLOCK(i, M) {
        const T *row = x + AT(i, K);
        float sum = 0.0f, squares = 0.0f, m, s;
        EACH_OF_BLOCK(k, K) sum += LOAD(row[k]);
        m = sum_of_block(sum, all) / K;
        EACH_OF_BLOCK(k, K) squares += (LOAD(row[k]) - m) * (LOAD(row[k]) - m);
        s = 1.0f / sqrtf(sum_of_block(squares, all) / K + eps);
        if (threadIdx.x == 0) mean[i] = m, r[i] = s;
        EACH_OF_BLOCK(k, K) {
            float v = (LOAD(row[k]) - m) * s;
            if (w) v *= LOAD(w[k]);
            if (b) v += LOAD(b[k]);
            y[AT(i, K) + k] = ROUND(v);
        }
    }
}

#define E(k) (w ? LOAD(g[at + (k)]) * LOAD(w[k]) : LOAD(g[at + (k)]))

KERNEL layer_norm_gradient(const T *g, const T *x, const T *w, const float *mean, const float *r,
                           T *dx, unsigned M, unsigned K) {
    __shared__ float all[THREADS];
    EACH_BLOCK(i, M) {
        unsigned long long at = AT(i, K);
        float m = mean[i], s = r[i], sum = 0.0f, dot = 0.0f;
        EACH_OF_BLOCK(k, K) {
            sum += E(k);
            dot += E(k) * ((LOAD(x[at + k]) - m) * s);
        }
        sum = sum_of_block(sum, all) / K;
        dot = sum_of_block(dot, all) / K;
        EACH_OF_BLOCK(k, K)
            dx[at + k] = ROUND((E(k) - sum - (LOAD(x[at + k]) - m) * s * dot) * s);
    }
}

KERNEL rms_norm(const T *x, const T *w, float *r, T *y, unsigned M, unsigned K, float eps) {
    __shared__ float all[THREADS];
    EACH_BLOCK(i, M) {
        const T *row = x + AT(i, K);
        float squares = 0.0f, s;
        EACH_OF_BLOCK(k, K) squares += LOAD(row[k]) * LOAD(row[k]);
        s = 1.0f / sqrtf(sum_of_block(squares, all) / K + eps);
        if (threadIdx.x == 0) r[i] = s;
        EACH_OF_BLOCK(k, K) {
            float v = LOAD(row[k]) * s;
            y[AT(i, K) + k] = ROUND(w ? v * LOAD(w[k]) : v);
        }
    }
}

KERNEL rms_norm_gradient(const T *g, const T *x, const T *w, const float *r, T *dx, unsigned M,
                         unsigned K) {
    __shared__ float all[THREADS];
    EACH_BLOCK(i, M) {
        unsigned long long at = AT(i, K);
        float s = r[i], dot = 0.0f;
        EACH_OF_BLOCK(k, K) dot += E(k) * LOAD(x[at + k]);
        dot = sum_of_block(dot, all) / K * s * s * s;
        EACH_OF_BLOCK(k, K) dx[at + k] = ROUND(E(k) * s - LOAD(x[at + k]) * dot);
    }
}

/* ---- x (N, P, C): sums over P rows, for all N C columns

   A block takes 32 columns of one part of the rows, and each of its LANES every R * LANES-th row:

       block   (sample n, columns c.. c + 31, part) ─► parts[part, n, c]

   Another kernel joins R parts, in their order; if there is one part, `parts` is the result. */

#define COLUMNS 32
#define LANES (THREADS / COLUMNS)
#define GROUPS ((C + COLUMNS - 1) / COLUMNS)
#define LANE (threadIdx.x / COLUMNS)
#define COLUMN (block / R % GROUPS * COLUMNS + threadIdx.x % COLUMNS)
#define SAMPLE (block / R / GROUPS)
#define EACH_ROW(i) for (unsigned i = block % R * LANES + LANE; i < P; i += R * LANES)
#define PART (AT(block % R, AT(N, C)) + AT(SAMPLE, C) + COLUMN)

/* Adds up the terms u and v of each row, and stores the sums. */
#define STORE_SUMS first[PART] = u; if (second) second[PART] = v
#define TWO_SUMS(term, store)                                                                            \
    __shared__ float us[THREADS], vs[THREADS];                                                     \
    EACH_BLOCK(block, N * GROUPS * R) {                                                            \
        unsigned c = COLUMN, t = threadIdx.x;                                                      \
        float u = 0.0f, v = 0.0f;                                                                  \
        if (c < C) EACH_ROW(i) {                                                                   \
            unsigned long long at = AT(AT(SAMPLE, P) + i, C) + c;                                  \
            term;                                                                                  \
        }                                                                                          \
        us[t] = u, vs[t] = v;                                                                      \
        __syncthreads();                                                                           \
        if (LANE == 0 && c < C) {                                                                  \
            for (unsigned k = t + COLUMNS; k < THREADS; k += COLUMNS) u += us[k], v += vs[k];      \
            store;                                                                                 \
        }                                                                                          \
        __syncthreads();                                                                           \
    }

/* Column sums in `parts`; in `out` if there is one part. */
KERNEL column_sums(const T *g, float *parts, T *out, unsigned N, unsigned P, unsigned C,
                   unsigned R) {
    TWO_SUMS(u += LOAD(g[at]), if (R == 1) out[PART] = ROUND(u); else parts[PART] = u)
}

KERNEL norm_sums(const T *g, const T *x, const float *mean, float *first, float *second, unsigned N,
                 unsigned P, unsigned C, unsigned R) {
    TWO_SUMS(u += LOAD(g[at]); v += LOAD(g[at]) * (LOAD(x[at]) - mean[AT(SAMPLE, C) + c]), STORE_SUMS)
}

/* norm_sums of masked = g where y > 0, as relu_gradient computes it. */
KERNEL norm_relu_sums(const T *g, const T *x, const T *y, T *masked, const float *mean,
                      float *first, float *second, unsigned N, unsigned P, unsigned C, unsigned R) {
    TWO_SUMS(float d = LOAD(g[at]) * (LOAD(y[at]) > 0.0f ? 1.0f : 0.0f);
             masked[at] = ROUND(d); d = LOAD(masked[at]);
             u += d; v += d * (LOAD(x[at]) - mean[AT(SAMPLE, C) + c]), STORE_SUMS)
}

/* The gradients of LayerNorm's weights; without means, of RMSNorm's. */
KERNEL row_norm_sums(const T *g, const T *x, const float *mean, const float *r, float *first,
                     float *second, unsigned N, unsigned P, unsigned C, unsigned R) {
    TWO_SUMS(u += LOAD(g[at]) * ((mean ? LOAD(x[at]) - mean[i] : LOAD(x[at])) * r[i]);
             v += LOAD(g[at]), STORE_SUMS)
}

/* out (n) = the sum of R parts of `first`; other, unless it is NULL, that of `second` */
KERNEL add_parts(const float *first, const float *second, T *out, T *other, unsigned n,
                 unsigned R) {
    unsigned all = other ? 2 * n : n;
    EACH(k, all) {
        unsigned i = k < n ? k : k - n;
        const float *parts = k < n ? first : second;
        float sum = parts[i];
        for (unsigned part = 1; part < R; part++) sum += parts[AT(part, n) + i];
        (k < n ? out : other)[i] = ROUND(sum);
    }
}

/* Joins the moments (mean, and sum m2 of squared deviations) of n elements with those of others
   (Chan, Golub and LeVeque). */
#define JOIN(n, mean, m2, others, their_mean, their_m2)                                            \
    if (others) {                                                                                  \
        float d = (their_mean) - mean, share = (float)(others) / (float)(n + (others));            \
        mean += d * share;                                                                         \
        m2 += (their_m2) + d * d * ((float)n * share);                                             \
        n += (others);                                                                             \
    }
/* The number of rows of lane k of a part. */
#define ROWS_OF(part, k) ((part) * LANES + (k) < P ? (P - (part) * LANES - (k) - 1) / (R * LANES) + 1 : 0)

KERNEL moments(const T *x, float *mean, float *m2, unsigned N, unsigned P, unsigned C, unsigned R) {
    __shared__ float means[THREADS], squares[THREADS];
    EACH_BLOCK(block, N * GROUPS * R) {
        unsigned c = COLUMN, t = threadIdx.x, n = ROWS_OF(block % R, LANE);
        unsigned long long start = AT(AT(SAMPLE, P), C) + c;
        float m = 0.0f, s = 0.0f;
        if (c < C && n) {
            EACH_ROW(i) m += LOAD(x[start + AT(i, C)]);
            m /= n;
            EACH_ROW(i) s += (LOAD(x[start + AT(i, C)]) - m) * (LOAD(x[start + AT(i, C)]) - m);
        }
        means[t] = m, squares[t] = s;
        __syncthreads();
        if (LANE == 0 && c < C) {
            for (unsigned k = 1; k < LANES; k++) {
                unsigned others = ROWS_OF(block % R, k);
                JOIN(n, m, s, others, means[t + k * COLUMNS], squares[t + k * COLUMNS])
            }
            mean[PART] = m, m2[PART] = s;
        }
        __syncthreads();
    }
}

KERNEL join_moments(const float *means, const float *squares, float *mean, float *m2, unsigned n,
                    unsigned P, unsigned R) {
    EACH(i, n) {
        unsigned rows = 0;
        float m = 0.0f, s = 0.0f;
        for (unsigned part = 0; part < R; part++) {
            unsigned others = 0;
            for (unsigned k = 0; k < LANES; k++) others += ROWS_OF(part, k);
            JOIN(rows, m, s, others, means[AT(part, n) + i], squares[AT(part, n) + i])
        }
        mean[i] = m, m2[i] = s;
    }
}

/* y = (x - mean) scale + shift, then max(y, 0) if `then` is 1, or y sigmoid(y) if it is 2, rounded;
   S = P C elements of a sample */
KERNEL normalise(const T *x, const float *mean, const float *scale, const T *shift, T *y, unsigned n,
                 unsigned S, unsigned C, int then) {
    EACH(i, n) {
        unsigned c = i % C, at = i / S * C + c;
        float v = (LOAD(x[i]) - mean[at]) * scale[at];
        if (shift) v += LOAD(shift[c]);
        y[i] = ROUND(then == 2 ? v * sigmoid(v) : then ? LARGER(v, 0.0f) : v);
    }
}

/* dx = g a - (x - mean) b - e */
KERNEL norm_gradient(const T *g, const T *x, const float *mean, const float *a, const float *b,
                     const float *e, T *dx, unsigned n, unsigned S, unsigned C) {
    EACH(i, n) {
        unsigned at = i / S * C + i % C;
        dx[i] = ROUND(LOAD(g[i]) * a[at] - (LOAD(x[i]) - mean[at]) * b[at] - e[at]);
    }
}

/* norm_gradient for BatchNorm, from the sums (2, C) of g and of g (x - mean) over `numbers`
   rows. */
KERNEL batch_norm_gradient(const T *g, const T *x, const float *mean, const float *sums,
                           const float *scale, const float *r, T *dx, unsigned n, unsigned C,
                           float numbers) {
    EACH(i, n) {
        unsigned c = i % C;
        float e = sums[c] * scale[c] / numbers, b = sums[C + c] * r[c] * scale[c] / numbers * r[c];
        dx[i] = ROUND(LOAD(g[i]) * scale[c] - (LOAD(x[i]) - mean[c]) * b - e);
    }
}

/* ---- one element for each channel: BatchNorm */

/* m2: the sum of squared deviations of `numbers` elements from their mean */
KERNEL channel_scales(const float *m2, const T *w, float *r, float *scale, unsigned n,
                      float numbers, float eps) {
    EACH(i, n) {
        float s = 1.0f / sqrtf(m2[i] / numbers + eps);
        r[i] = s;
        scale[i] = w ? s * LOAD(w[i]) : s;
    }
}

KERNEL track(float *mean, float *var, long long *batches, const float *now, const float *m2,
             unsigned C, float others, float share, float rest) {
    EACH(i, C) {
        if (i == 0) ++*batches;
        mean[i] = mean[i] * rest + now[i] * share;
        var[i] = var[i] * rest + m2[i] / others * share;
    }
}
