/* Softmax, and cross-entropy of scores z (n, C), as kernels/softmax.py describes them. */

/* The loss of a row; NaN for a label that is not a class, without reading out of bounds. */
#define LOSS                                                                                       \
    (at[i] == ignored ? 0.0f : label < C ? logs[i] - (LOAD(row[label]) - tops[i]) : logf(-1.0f))

/* sum[0] = the sum of losses (n) times scale, or times factor[0] = 1 / the number of labels that
   are not ignored, by one block */
DEVICE void sum_of_losses(const float *losses, const long long *at, float *sum, float *factor,
                          long long ignored, unsigned n, float scale, float *all) {
    float v = SUM_OF_BLOCK(i, n, losses[i]);
    if (factor) {
        float count = SUM_OF_BLOCK(i, n, at[i] == ignored ? 0.0f : 1.0f);
        scale = count > 0.0f ? 1.0f / count : 0.0f;
        if (threadIdx.x == 0) factor[0] = scale;
    }
    if (threadIdx.x == 0) sum[0] = v * scale;
}

/* Few classes: one thread for each row. One block also adds up the losses, unless `sum` is NULL. */
REDUCTION narrow_losses(const T *z, const long long *labels, float *loss, float *tops,
                        long long *at, float *sum, float *factor, long long ignored, unsigned n,
                        unsigned C, float scale) {
    __shared__ float all[THREADS];
    float *logs = tops + n;
    EACH(i, n) {
        const T *row = z + AT(i, C);
        unsigned long long label = at[i] = labels[i];
        float top = largest_of(LOAD(row[0]), 1, C, 1, [&](unsigned c) { return LOAD(row[c]); });
        float total = sum_of(0, C, 1, [&](unsigned c) { return expf(LOAD(row[c]) - top); });
        tops[i] = top;
        logs[i] = logf(total);
        loss[i] = LOSS;
    }
    /* each thread adds up its rows */
    if (sum) sum_of_losses(loss, at, sum, factor, ignored, n, scale, all);
}

/* Many classes: one block for each row, which it reads once. A thread's `total` is the sum of
   e^(z - top), where `top` is the largest score that it has seen. */
REDUCTION wide_losses(const T *z, const long long *labels, float *loss, float *tops, long long *at,
                      float *sum, float *factor, long long ignored, unsigned n, unsigned C,
                      float scale) {
    __shared__ float all[THREADS];
    float *logs = tops + n;
    EACH_BLOCK(i, n) {
        const T *row = z + AT(i, C);
        float top = logf(0.0f), total = 0.0f;
        in_batches(
            threadIdx.x, C, THREADS, [&](unsigned c) { return LOAD(row[c]); },
            [&](float v, unsigned) {
                float larger = LARGER(v, top);
                if (larger != top) total *= expf(top - larger);
                total += v == larger ? 1.0f : expf(v - larger);
                top = larger;
            });
        float largest = largest_of_block(top, all);
        total = sum_of_block(total == 0.0f ? 0.0f : total * expf(top - largest), all);
        if (threadIdx.x == 0) {
            unsigned long long label = at[i] = labels[i];
            tops[i] = largest;
            logs[i] = logf(total);
            loss[i] = LOSS;
        }
    }
}

REDUCTION sum_losses(const float *losses, const long long *at, float *sum, float *factor,
                     long long ignored, unsigned n, float scale) {
    __shared__ float all[THREADS];
    sum_of_losses(losses, at, sum, factor, ignored, n, scale, all);
}

/* dz = (softmax(z) - 1 at the labels) (g scale), or g factor[0]; g of each row, or one for all */
KERNEL class_gradient(const T *z, const long long *at, const float *tops, const float *g,
                      const float *factor, T *dz, long long ignored, unsigned n, unsigned C,
                      int each, float scale) {
    if (factor) scale = factor[0];
    unsigned size = n * C;
    EACH(k, size) {
        unsigned i = k / C;
        float p = expf(LOAD(z[k]) - tops[i] - tops[n + i]);
        if (at[i] == (long long)(k % C)) p -= 1.0f;
        dz[k] = ROUND(at[i] == ignored ? 0.0f : p * (g[each ? i : 0] * scale));
    }
}

/* ---- rows x (M, K): one block for each row */

#define ROW(a) LOAD((a)[AT(i, K) + k])
#define EACH_OF_ROW(y, value) EACH_OF_BLOCK(k, K) (y)[AT(i, K) + k] = ROUND(value)

/* y = softmax(x), or its logarithm */
REDUCTION softmax(const T *x, T *y, unsigned M, unsigned K, int logarithm) {
    __shared__ float all[THREADS];
    EACH_BLOCK(i, M) {
        float top = LARGEST_OF_BLOCK(k, K, ROW(x));
        float total = SUM_OF_BLOCK(k, K, expf(ROW(x) - top));
        if (logarithm) EACH_OF_ROW(y, ROW(x) - top - logf(total));
        else EACH_OF_ROW(y, expf(ROW(x) - top) / total);
    }
}

/* s = softmax(scale s), in place, of scores (M, K), `rows` rows for each head, and the logarithm of
   the sum of e^score. Row i sees keys 0 to later + i, or all keys if later is -1. */
#define SEEN (later < 0 || later + i % rows + 1 > K ? K : later + i % rows + 1)

REDUCTION probabilities(float *s, float *lse, unsigned M, unsigned K, unsigned rows, float scale,
                        int later) {
    __shared__ float all[THREADS];
    EACH_BLOCK(i, M) {
        float *row = s + AT(i, K);
        unsigned seen = SEEN;
        float top = LARGEST_OF_BLOCK(k, seen, row[k] * scale);
        float total = SUM_OF_BLOCK(k, seen, expf(row[k] * scale - top));
        EACH_OF_BLOCK(k, K) row[k] = k < seen ? expf(row[k] * scale - top) / total : 0.0f;
        if (threadIdx.x == 0) lse[i] = top + logf(total);
    }
}

/* Replaces s by the probabilities of the scores scale s, and their gradients dp by those of s. */
KERNEL scores_gradient(float *s, float *dp, const float *lse, const float *of_rows, unsigned n,
                       unsigned K, unsigned rows, float scale, int later) {
    EACH(at, n) {
        unsigned i = at / K;
        float p = at % K < SEEN ? expf(s[at] * scale - lse[i]) : 0.0f;
        s[at] = p;
        dp[at] = (dp[at] - of_rows[i]) * p * scale;
    }
}

REDUCTION softmax_gradient(const T *g, const T *y, T *dx, unsigned M, unsigned K, int logarithm) {
    __shared__ float all[THREADS];
    EACH_BLOCK(i, M) {
        float sum = SUM_OF_BLOCK(k, K, logarithm ? ROW(g) : ROW(g) * ROW(y));
        if (logarithm) EACH_OF_ROW(dx, ROW(g) - expf(ROW(y)) * sum);
        else EACH_OF_ROW(dx, (ROW(g) - sum) * ROW(y));
    }
}
