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

   Of the R blocks with the same columns, the last one to come here joins the parts, in their order;
   if there is one part, it is the result. */

#define COLUMNS 32
#define LANES (THREADS / COLUMNS)
#define GROUPS ((C + COLUMNS - 1) / COLUMNS)
#define LANE (threadIdx.x / COLUMNS)
#define COLUMN (block / R % GROUPS * COLUMNS + threadIdx.x % COLUMNS)
#define SAMPLE (block / R / GROUPS)
#define ROWS block % R * LANES + LANE, P, R * LANES /* of a thread, as in_batches has them */

/* True in the last of R blocks that come here with this ticket, 0 before and after: what the others
   have written is there then, if L1, which may have it from before, is passed by (__ldcg). */
DEVICE bool is_last(unsigned *ticket, unsigned R) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(ticket, R - 1) == R - 1;
    __syncthreads();
    return last;
}

/* Joins R parts u and v of this block's columns by add(u, v, u of part, v of part, part), and gives the
   results to store(column, u, v). Lane 0 has u and v of this block's part; all lie in parts (2, R, N C),
   or those of u alone if not TWO. */
template <bool TWO, class Add, class Store>
DEVICE void join_parts(float u, float v, float *parts, unsigned *tickets, unsigned block, unsigned N,
                       unsigned C, unsigned R, Add add, Store store) {
    struct Values { float u, v; };
    size_t width = AT(N, C), column = AT(SAMPLE, C) + COLUMN;
    bool is_mine = LANE == 0 && COLUMN < C;
    if (R > 1) {
        float *mine = parts + block % R * width + column, *others = parts + R * width;
        if (is_mine) *mine = u;
        if (is_mine && TWO) mine[R * width] = v;
        if (!is_last(tickets + block / R, R)) return;
        if (is_mine)
            in_batches(
                0, R, 1,
                [&](unsigned part) {
                    size_t at = part * width + column;
                    return Values{__ldcg(parts + at), TWO ? __ldcg(others + at) : 0.0f};
                },
                [&](Values of, unsigned part) { add(u, v, of.u, of.v, part); });
    }
    if (is_mine) store(column, u, v);
}

/* Adds up u and v of all rows by take(u, v, values, at), with values = load(at, i, column) of element
   `at` in row i, and gives the sums to store(column, u, v). */
template <bool TWO = true, class Load, class Take, class Store>
DEVICE void sum_columns(float *parts, unsigned *tickets, unsigned N, unsigned P, unsigned C,
                        unsigned R, Load load, Take take, Store store) {
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
        if (LANE == 0)
            for (unsigned k = t + COLUMNS; k < THREADS; k += COLUMNS) u += us[k], v += vs[k];
        join_parts<TWO>(
            u, v, parts, tickets, block, N, C, R,
            [](float &u, float &v, float of_part, float other, unsigned part) {
                u = part ? u + of_part : of_part, v = part ? v + other : other;
            },
            store);
        __syncthreads();
    }
}

/* Column sums in `out`, or rounded in `rounded`; the other is NULL. */
REDUCTION column_sums(const T *g, float *parts, unsigned *tickets, float *out, T *rounded,
                      unsigned N, unsigned P, unsigned C, unsigned R) {
    sum_columns<false>(
        parts, tickets, N, P, C, R, [&](size_t at, unsigned, size_t) { return LOAD(g[at]); },
        [&](float &u, float &, float value, size_t) { u += value; },
        [&](size_t column, float u, float) {
            if (out) out[column] = u;
            else rounded[column] = ROUND(u);
        });
}

#define STORE_SUMS                                                                                 \
    [&](size_t column, float u, float v) {                                                         \
        first[column] = u;                                                                         \
        if (second) second[column] = v;                                                            \
    }

/* Sums of g and of g (x - mean). */
template <class Store>
DEVICE void sum_gradients(const T *g, const T *x, const float *mean, float *parts,
                          unsigned *tickets, unsigned N, unsigned P, unsigned C, unsigned R,
                          Store store) {
    struct Values { float g, x; };
    sum_columns(
        parts, tickets, N, P, C, R,
        [&](size_t at, unsigned, size_t column) {
            return Values{LOAD(g[at]), LOAD(x[at]) - mean[column]};
        },
        [&](float &u, float &v, Values of, size_t) { u += of.g, v += of.g * of.x; }, store);
}

REDUCTION norm_sums(const T *g, const T *x, const float *mean, float *parts, unsigned *tickets,
                    float *first, float *second, unsigned N, unsigned P, unsigned C, unsigned R) {
    sum_gradients(g, x, mean, parts, tickets, N, P, C, R, STORE_SUMS);
}

/* Sums (2, C) of g and of g (x - mean); where y is there, `masked` takes the place of g: g where y > 0,
   as relu_gradient computes it. Also dw, the second sum times r, and db, the first one, of float or, if
   `rounded`, of T. */
REDUCTION batch_norm_sums(const T *g, const T *x, const T *y, T *__restrict__ masked,
                          const float *__restrict__ mean, const float *__restrict__ r, float *parts,
                          unsigned *tickets, float *sums, void *dw, void *db, unsigned N,
                          unsigned P, unsigned C, unsigned R, int rounded) {
    struct Values { float g, x; };
    auto store = [&](size_t c, float u, float v) {
        sums[c] = u, sums[C + c] = v, v *= r[c];
        if (rounded) ((T *)db)[c] = ROUND(u), ((T *)dw)[c] = ROUND(v);
        else ((float *)db)[c] = u, ((float *)dw)[c] = v;
    };
    if (!y) return sum_gradients(g, x, mean, parts, tickets, N, P, C, R, store);
    sum_columns(
        parts, tickets, N, P, C, R,
        [&](size_t at, unsigned, size_t column) {
            float open = LOAD(y[at]) > 0.0f ? 1.0f : 0.0f;
            return Values{LOAD(g[at]) * open, LOAD(x[at]) - mean[column]};
        },
        [&](float &u, float &v, Values of, size_t at) {
            T open = ROUND(of.g);
            masked[at] = open;
            u += LOAD(open), v += LOAD(open) * of.x;
        },
        store);
}

/* The gradients of LayerNorm's weights; without means, of RMSNorm's. */
REDUCTION row_norm_sums(const T *g, const T *x, const float *mean, const float *r, float *parts,
                        unsigned *tickets, float *first, float *second, unsigned N, unsigned P,
                        unsigned C, unsigned R) {
    struct Values { float g, x; };
    sum_columns(
        parts, tickets, N, P, C, R,
        [&](size_t at, unsigned i, size_t) {
            return Values{LOAD(g[at]), (mean ? LOAD(x[at]) - mean[i] : LOAD(x[at])) * r[i]};
        },
        [&](float &u, float &v, Values of, size_t) { u += of.g * of.x, v += of.g; }, STORE_SUMS);
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

/* A channel's running statistics move by `share` to those of a batch, with variance m2 / others. */
DEVICE void track_one(float *mean, float *var, long long *batches, unsigned i, float now, float m2,
                      float others, float share, float rest) {
    if (i == 0) ++*batches;
    mean[i] = mean[i] * rest + now * share;
    var[i] = var[i] * rest + m2 / others * share;
}

/* The moments of each column, by which the running ones, unless they are NULL, move as in `track`. */
REDUCTION moments(const T *x, float *parts, unsigned *tickets, float *mean, float *m2,
                  float *running, float *var, long long *batches, unsigned N, unsigned P, unsigned C,
                  unsigned R, float others, float share, float rest) {
    __shared__ float means[THREADS], squares[THREADS];
    EACH_BLOCK(block, N * GROUPS * R) {
        unsigned c = COLUMN, t = threadIdx.x, n = ROWS_OF(block % R, LANE), rows = 0;
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
        if (LANE == 0)
            for (unsigned k = 1; k < LANES; k++) {
                unsigned others = ROWS_OF(block % R, k);
                JOIN(n, m, s, others, means[t + k * COLUMNS], squares[t + k * COLUMNS])
            }
        join_parts<true>(
            m, s, parts, tickets, block, N, C, R,
            [&](float &m, float &s, float their_mean, float their_m2, unsigned part) {
                unsigned others = 0;
                if (part == 0) m = s = 0.0f;
                for (unsigned k = 0; k < LANES; k++) others += ROWS_OF(part, k);
                JOIN(rows, m, s, others, their_mean, their_m2)
            },
            [&](size_t i, float m, float s) {
                mean[i] = m, m2[i] = s;
                if (running) track_one(running, var, batches, i, m, s, others, share, rest);
            });
        __syncthreads();
    }
}

/* y = (x - mean) scale + shift, then y sigmoid(y) if `silu`, rounded; S = P C elements of a sample */
KERNEL normalise(const T *x, const float *mean, const float *scale, const T *shift, T *y, unsigned n,
                 unsigned S, unsigned C, int silu) {
    EACH(i, n) {
        unsigned c = i % C, at = i / S * C + c;
        float v = (LOAD(x[i]) - mean[at]) * scale[at];
        if (shift) v += LOAD(shift[c]);
        y[i] = ROUND(silu ? v * sigmoid(v) : v);
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

/* ---- BatchNorm */

/* y = (x - mean) scale + b, then max(y, 0) if `cuts`, rounded; also scales (2, C), r and scale = r w,
   where m2 is the sum of squared deviations of `numbers` elements from their mean. A thread computes
   them once, if its elements have one channel. */
KERNEL batch_norm(const T *x, const float *mean, const float *m2, const T *w, const T *b,
                  float *scales, T *y, unsigned n, unsigned C, float numbers, float eps, int cuts) {
    unsigned channel = C;
    float m, s, by, shift;
    EACH(i, n) {
        unsigned c = i % C;
        if (c != channel) {
            m = mean[c], s = 1.0f / sqrtf(m2[c] / numbers + eps);
            by = w ? s * LOAD(w[c]) : s, shift = b ? LOAD(b[c]) : 0.0f;
            channel = c;
        }
        if (i < C) scales[i] = s, scales[C + i] = by;
        float v = (LOAD(x[i]) - m) * by;
        if (b) v += shift;
        y[i] = ROUND(cuts ? LARGER(v, 0.0f) : v);
    }
}

KERNEL track(float *mean, float *var, long long *batches, const float *now, const float *m2,
             unsigned C, float others, float share, float rest) {
    EACH(i, C) track_one(mean, var, batches, i, now[i], m2[i], others, share, rest);
}
