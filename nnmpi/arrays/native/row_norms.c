/* LayerNorm and RMSNorm, as kernels/norm.py describes them, in float32.

   M rows of K elements; w, b, dw, db (K), mean, r (M)

   layer_norm_loop(x, w or None, b or None, eps, mean, r, y)    r = 1 / sqrt(var + eps)
   layer_norm_gradient_loop(g, x, w or None, mean, r, dx)
   layer_norm_sums_loop(g, x, mean, r, dw, db)
   rms_norm_loop(x, w or None, eps, r, y)                       r = 1 / sqrt(mean(x^2) + eps)
   rms_norm_gradient_loop(g, x, w or None, r, dx)
   rms_norm_sum_loop(g, x, r, dw)

   Elements of a row are added in lanes; those of a column 64 at a time in float32, and these blocks
   in float64. */
#include "halves.h"
#include "lanes.h"
#include <math.h>

#define LINE 128
#define BLOCK 64

static int layer_norm_loop(Arguments *a) {
    const float *w = a->at[1], *b = a->at[2];
    npy_intp K = SIZE(a, 'K');
    for (npy_intp j = 0; j < SIZE(a, 'M'); j++) {
        const float *x = (float *)a->at[0] + j * K;
        float sum[LANES] = {0}, squares[LANES] = {0}, *restrict y = (float *)a->at[5] + j * K;
        EACH_LANE(K, sum[l] += x[i])
        float m = ((float *)a->at[3])[j] = sum_of_lanes(sum) / K;
        EACH_LANE(K, squares[l] += (x[i] - m) * (x[i] - m))
        float variance = sum_of_lanes(squares) / K;
        float r = ((float *)a->at[4])[j] = 1 / sqrtf(variance + (float)a->number[0]);
#pragma GCC ivdep
        for (npy_intp i = 0; i < K; i++)
            y[i] = (x[i] - m) * r * (w ? w[i] : 1) + (b ? b[i] : 0);
    }
    return DONE;
}

static int layer_norm_gradient_loop(Arguments *a) {
    const float *w = a->at[2];
    npy_intp K = SIZE(a, 'K');
    for (npy_intp j = 0; j < SIZE(a, 'M'); j++) {
        const float *g = (float *)a->at[0] + j * K, *x = (float *)a->at[1] + j * K;
        const float m = ((float *)a->at[3])[j], r = ((float *)a->at[4])[j];
        float sum[LANES] = {0}, dot[LANES] = {0}, *restrict dx = (float *)a->at[5] + j * K;
        if (w) EACH_LANE(K, sum[l] += g[i] * w[i]; dot[l] += g[i] * w[i] * ((x[i] - m) * r))
        else EACH_LANE(K, sum[l] += g[i]; dot[l] += g[i] * ((x[i] - m) * r))
        float e = sum_of_lanes(sum) / K, d = sum_of_lanes(dot) / K;
#pragma GCC ivdep
        for (npy_intp i = 0; i < K; i++)
            dx[i] = ((w ? g[i] * w[i] : g[i]) - e - (x[i] - m) * r * d) * r;
    }
    return DONE;
}

/* Writes dw and, unless it is NULL, db; without means, a mean is 0. */
static int column_sums(const Arguments *a, const float *mean, const float *r, float *dw, float *db) {
    npy_intp M = SIZE(a, 'M'), K = SIZE(a, 'K');
    for (npy_intp k = 0; k < K; k += LINE) {
        npy_intp width = K - k < LINE ? K - k : LINE;
        double totals[LINE] = {0}, dots[LINE] = {0};
        float room[2][LINE];
        for (npy_intp first = 0; first < M; first += BLOCK) {
            npy_intp end = M - first < BLOCK ? M : first + BLOCK;
            float sum[LINE] = {0}, dot[LINE] = {0};
            for (npy_intp j = first; j < end; j++) {
                const float *g = floats_of(numbers_of(a, 0), j * K + k, width, room[0]);
                const float *x = floats_of(numbers_of(a, 1), j * K + k, width, room[1]);
                float m = mean ? mean[j] : 0;
                for (npy_intp i = 0; i < width; i++)
                    sum[i] += g[i], dot[i] += g[i] * ((x[i] - m) * r[j]);
            }
            for (npy_intp i = 0; i < width; i++) totals[i] += sum[i], dots[i] += dot[i];
        }
        for (npy_intp i = 0; i < width; i++) dw[k + i] = dots[i];
        for (npy_intp i = 0; db && i < width; i++) db[k + i] = totals[i];
    }
    return DONE;
}

static int layer_norm_sums_loop(Arguments *a) {
    return column_sums(a, a->at[2], a->at[3], a->at[4], a->at[5]);
}

static int rms_norm_sum_loop(Arguments *a) {
    return column_sums(a, NULL, a->at[2], a->at[3], NULL);
}

static int rms_norm_loop(Arguments *a) {
    const float *w = a->at[1];
    npy_intp K = SIZE(a, 'K');
    for (npy_intp j = 0; j < SIZE(a, 'M'); j++) {
        const float *x = (float *)a->at[0] + j * K;
        float squares[LANES] = {0}, *restrict y = (float *)a->at[3] + j * K;
        EACH_LANE(K, squares[l] += x[i] * x[i])
        float mean = sum_of_lanes(squares) / K;
        float r = ((float *)a->at[2])[j] = 1 / sqrtf(mean + (float)a->number[0]);
#pragma GCC ivdep
        for (npy_intp i = 0; i < K; i++) y[i] = x[i] * r * (w ? w[i] : 1);
    }
    return DONE;
}

static int rms_norm_gradient_loop(Arguments *a) {
    const float *w = a->at[2];
    npy_intp K = SIZE(a, 'K');
    for (npy_intp j = 0; j < SIZE(a, 'M'); j++) {
        const float *g = (float *)a->at[0] + j * K, *x = (float *)a->at[1] + j * K;
        const float r = ((float *)a->at[3])[j];
        float dot[LANES] = {0}, *restrict dx = (float *)a->at[4] + j * K;
        if (w) EACH_LANE(K, dot[l] += g[i] * w[i] * x[i])
        else EACH_LANE(K, dot[l] += g[i] * x[i])
        float shift = sum_of_lanes(dot) / K * r * r * r;
#pragma GCC ivdep
        for (npy_intp i = 0; i < K; i++) dx[i] = (w ? g[i] * w[i] : g[i]) * r - x[i] * shift;
    }
    return DONE;
}

Kernel row_norm_kernels[] = {
    PARTS("M", layer_norm_loop, "fMK ?fK ?fK # ~fM ~fM ~fMK"),
    PARTS("M", layer_norm_gradient_loop, "fMK fMK ?fK fM fM ~fMK"),
    KERNEL(layer_norm_sums_loop, "hMK hMK fM fM ~fK ~fK"),
    PARTS("M", rms_norm_loop, "fMK ?fK # ~fM ~fMK"),
    PARTS("M", rms_norm_gradient_loop, "fMK fMK ?fK fM ~fMK"),
    KERNEL(rms_norm_sum_loop, "hMK hMK fM ~fK"),
    END_OF_KERNELS,
};
