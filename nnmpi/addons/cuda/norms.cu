/* Normalisation, as kernels/norm.py describes it. Statistics and their gradients are float. */

/* ---- x (M, K): one block for each row */

REDUCTION layer_norm(const T *x, const T *w, const T *b, float *mean, float *r, T *y, unsigned M,
                     unsigned K, float eps) {
    __shared__ float all[THREADS];
    EACH_BLOCK(i, M) {
        const T *row = x + AT(i, K);
        float m = SUM_OF_BLOCK(k, K, LOAD(row[k])) / K;
        float squares = SUM_OF_BLOCK(k, K, (LOAD(row[k]) - m) * (LOAD(row[k]) - m));
        float s = 1.0f / sqrtf(squares / K + eps);
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

REDUCTION layer_norm_gradient(const T *g, const T *x, const T *w, const float *mean, const float *r,
                              T *dx, unsigned M, unsigned K) {
    __shared__ float all[THREADS];
    EACH_BLOCK(i, M) {
        unsigned long long at = AT(i, K);
        float m = mean[i], s = r[i], sum = 0.0f, dot = 0.0f;
        struct Values { float e, x; };
        in_batches(
            threadIdx.x, K, THREADS, [&](unsigned k) { return Values{E(k), LOAD(x[at + k])}; },
            [&](Values of, unsigned) { sum += of.e, dot += of.e * ((of.x - m) * s); });
        sum = sum_of_block(sum, all) / K;
        dot = sum_of_block(dot, all) / K;
        EACH_OF_BLOCK(k, K)
            dx[at + k] = ROUND((E(k) - sum - (LOAD(x[at + k]) - m) * s * dot) * s);
    }
}

REDUCTION rms_norm(const T *x, const T *w, float *r, T *y, unsigned M, unsigned K, float eps) {
    __shared__ float all[THREADS];
    EACH_BLOCK(i, M) {
        const T *row = x + AT(i, K);
        float s = 1.0f / sqrtf(SUM_OF_BLOCK(k, K, LOAD(row[k]) * LOAD(row[k])) / K + eps);
        if (threadIdx.x == 0) r[i] = s;
        EACH_OF_BLOCK(k, K) {
            float v = LOAD(row[k]) * s;
            y[AT(i, K) + k] = ROUND(w ? v * LOAD(w[k]) : v);
        }
    }
}

REDUCTION rms_norm_gradient(const T *g, const T *x, const T *w, const float *r, T *dx, unsigned M,
                            unsigned K) {
    __shared__ float all[THREADS];
    EACH_BLOCK(i, M) {
        unsigned long long at = AT(i, K);
        float s = r[i], dot = SUM_OF_BLOCK(k, K, E(k) * LOAD(x[at + k])) / K * s * s * s;
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
#define ROWS block % R * LANES + LANE, P, R * LANES /* of a thread, as in_batches has them */
#define PART (AT(block % R, AT(N, C)) + AT(SAMPLE, C) + COLUMN)

/* Adds up u and v of all rows by take(u, v, values, at), with values = load(at, i, column) of element
   `at` in row i, and gives the sums of a part to store(place, u, v). */
template <class Load, class Take, class Store>
DEVICE void sum_columns(unsigned N, unsigned P, unsigned C, unsigned R, Load load, Take take,
                        Store store) {
    __shared__ float us[THREADS], vs[THREADS];
    EACH_BLOCK(block, N * GROUPS * R) {
        unsigned c = COLUMN, t = threadIdx.x;
        unsigned long long start = AT(AT(SAMPLE, P), C) + c, column = AT(SAMPLE, C) + c;
        float u = 0.0f, v = 0.0f;
        if (c < C)
            in_batches(
                ROWS, [&](unsigned i) { return load(start + AT(i, C), i, column); },
                [&](decltype(load(0, 0, 0)) values, unsigned i) {
                    take(u, v, values, start + AT(i, C));
                });
        us[t] = u, vs[t] = v;
        __syncthreads();
        if (LANE == 0 && c < C) {
            for (unsigned k = t + COLUMNS; k < THREADS; k += COLUMNS) u += us[k], v += vs[k];
            store(PART, u, v);
        }
        __syncthreads();
    }
}

/* Column sums in `parts`; in `out` if there is one part. */
REDUCTION column_sums(const T *g, float *parts, T *out, unsigned N, unsigned P, unsigned C,
                      unsigned R) {
    sum_columns(
        N, P, C, R, [&](size_t at, unsigned, size_t) { return LOAD(g[at]); },
        [&](float &u, float &, float value, size_t) { u += value; },
        [&](size_t place, float u, float) {
            if (R == 1) out[place] = ROUND(u);
            else parts[place] = u;
        });
}

#define STORE_SUMS                                                                                 \
    [&](size_t place, float u, float v) {                                                          \
        first[place] = u;                                                                          \
        if (second) second[place] = v;                                                             \
    }

REDUCTION norm_sums(const T *g, const T *x, const float *mean, float *first, float *second,
                    unsigned N, unsigned P, unsigned C, unsigned R) {
    struct Values { float g, x; };
    sum_columns(
        N, P, C, R,
        [&](size_t at, unsigned, size_t column) {
            return Values{LOAD(g[at]), LOAD(x[at]) - mean[column]};
        },
        [&](float &u, float &v, Values of, size_t) { u += of.g, v += of.g * of.x; }, STORE_SUMS);
}

/* norm_sums of masked = g where y > 0, as relu_gradient computes it. */
REDUCTION norm_relu_sums(const T *g, const T *x, const T *y, T *__restrict__ masked,
                         const float *__restrict__ mean, float *first, float *second, unsigned N,
                         unsigned P, unsigned C, unsigned R) {
    struct Values { float g, x; };
    sum_columns(
        N, P, C, R,
        [&](size_t at, unsigned, size_t column) {
            float open = LOAD(y[at]) > 0.0f ? 1.0f : 0.0f;
            return Values{LOAD(g[at]) * open, LOAD(x[at]) - mean[column]};
        },
        [&](float &u, float &v, Values of, size_t at) {
            T rounded = ROUND(of.g);
            masked[at] = rounded;
            u += LOAD(rounded), v += LOAD(rounded) * of.x;
        },
        STORE_SUMS);
}

/* The gradients of LayerNorm's weights; without means, of RMSNorm's. */
REDUCTION row_norm_sums(const T *g, const T *x, const float *mean, const float *r, float *first,
                        float *second, unsigned N, unsigned P, unsigned C, unsigned R) {
    struct Values { float g, x; };
    sum_columns(
        N, P, C, R,
        [&](size_t at, unsigned i, size_t) {
            return Values{LOAD(g[at]), (mean ? LOAD(x[at]) - mean[i] : LOAD(x[at])) * r[i]};
        },
        [&](float &u, float &v, Values of, size_t) { u += of.g * of.x, v += of.g; }, STORE_SUMS);
}

/* out (n) = the sum of R parts of `first`; other, unless it is NULL, that of `second` */
REDUCTION add_parts(const float *first, const float *second, T *out, T *other, unsigned n,
                    unsigned R) {
    unsigned all = other ? 2 * n : n;
    EACH(k, all) {
        unsigned i = k < n ? k : k - n;
        const float *parts = k < n ? first : second;
        float sum = parts[i];
        in_batches(
            1, R, 1, [&](unsigned part) { return parts[AT(part, n) + i]; },
            [&](float value, unsigned) { sum += value; });
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
#define ROWS_OF(part, k) (P / (R * LANES) + (P % (R * LANES) > (part) * LANES + (k)))

REDUCTION moments(const T *x, float *mean, float *m2, unsigned N, unsigned P, unsigned C,
                  unsigned R) {
    __shared__ float means[THREADS], squares[THREADS];
    EACH_BLOCK(block, N * GROUPS * R) {
        unsigned c = COLUMN, t = threadIdx.x, n = ROWS_OF(block % R, LANE);
        const T *column = x + AT(AT(SAMPLE, P), C) + c;
        float m = 0.0f, s = 0.0f;
        if (c < C && n) {
            m = sum_of(ROWS, [&](unsigned i) { return LOAD(column[AT(i, C)]); }) / n;
            s = sum_of(ROWS, [&](unsigned i) {
                float d = LOAD(column[AT(i, C)]) - m;
                return d * d;
            });
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

REDUCTION join_moments(const float *means, const float *squares, float *mean, float *m2, unsigned n,
                       unsigned P, unsigned R) {
    struct Values { float mean, m2; };
    EACH(i, n) {
        unsigned rows = 0;
        float m = 0.0f, s = 0.0f;
        in_batches(
            0, R, 1,
            [&](unsigned part) {
                return Values{means[AT(part, n) + i], squares[AT(part, n) + i]};
            },
            [&](Values of, unsigned part) {
                unsigned others = 0;
                for (unsigned k = 0; k < LANES; k++) others += ROWS_OF(part, k);
                JOIN(rows, m, s, others, of.mean, of.m2)
            });
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
