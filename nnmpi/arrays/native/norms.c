/* Normalisation, as kernels/norm.py describes it, in float32.

   N samples of P positions with C channels; BatchNorm's are one sample
   mean, m2, total, dot, scale, a, b, e (N, C); shift (C)
   moments_loop(x, mean, m2)                 m2 = sum((x - mean)^2)
   normalise_loop(x, mean, scale, shift or None, y)    y = (x - mean) scale + shift
   norm_sums_loop(g, x, mean, total, dot)    total = sum(g), dot = sum(g (x - mean))
   norm_gradient_loop(g, x, mean, a, b, e, dx)         dx = g a - (x - mean) b - e

   Sums over positions: positions form lines of up to 128 elements, which are added element by
   element, 64 lines at a time in float32, and these blocks in float64. */
#include "halves.h"

#define MOST_ARRAYS 7
#define LINE 128
#define BLOCK 64

/* The sizes and arrays of one sample. */
typedef struct {
    npy_intp P, C;
    float *at[MOST_ARRAYS];
    Numbers from[2], to; /* the first arrays and the last one, which may have 16 bits */
} Norm;

/* The lines of a sample, with `per` positions and thus `stride` elements each; `rest` positions are
   left over. Long lines are summed in parts of 128 elements. */
typedef struct {
    npy_intp per, lines, stride, rest;
} Lines;

static Lines lines_of(const Norm *q) {
    npy_intp per = q->C < LINE ? LINE / q->C : 1;
    return (Lines){per, q->P / per, per * q->C, q->P % per};
}

/* Repeats values of channels for each position of a line. */
static const float *repeated(const float *x, const Norm *q, Lines v, float *line) {
    if (!x || v.per == 1) return x;
    for (npy_intp p = 0; p < v.per; p++) memcpy(line + p * q->C, x, q->C * sizeof *x);
    return line;
}

/* Joins the moments of n elements to those of n0 (Chan, Golub and LeVeque). */
static void join(double n0, double *mean0, double *m20, double n, double mean, double m2) {
    double d = mean - *mean0, whole = n0 + n;
    *mean0 += d * (n / whole);
    *m20 += m2 + d * d * (n0 * n / whole);
}

/* The moments of elements w < width of each line. */
static void line_moments(Numbers x, npy_intp at, npy_intp lines, npy_intp stride, npy_intp width,
                         double *mean, double *m2) {
    float room[LINE];
    for (npy_intp w = 0; w < width; w++) mean[w] = m2[w] = 0;
    for (npy_intp first = 0; first < lines; first += BLOCK, at += BLOCK * stride) {
        npy_intp n = lines - first < BLOCK ? lines - first : BLOCK;
        float sum[LINE] = {0}, off[LINE] = {0}, squares[LINE] = {0}, factor = 1 / (float)n;
        for (npy_intp i = 0; i < n; i++) {
            const float *line = floats_of(x, at + i * stride, width, room);
            for (npy_intp w = 0; w < width; w++) sum[w] += line[w];
        }
        for (npy_intp w = 0; w < width; w++) sum[w] *= factor;
        for (npy_intp i = 0; i < n; i++) {
            const float *line = floats_of(x, at + i * stride, width, room);
            for (npy_intp w = 0; w < width; w++) {
                float d = line[w] - sum[w];
                off[w] += d, squares[w] += d * d;
            }
        }
        for (npy_intp w = 0; w < width; w++)
            join(first, mean + w, m2 + w, n, sum[w] + (double)off[w] * factor,
                 squares[w] - (double)off[w] * off[w] * factor);
    }
}

static void moments(const Norm *q) {
    Lines v = lines_of(q);
    double means[LINE], m2s[LINE];
    for (npy_intp c = 0; c < q->C; c += LINE) {
        npy_intp width = v.stride - c < LINE ? v.stride - c : LINE, channels = width / v.per;
        npy_intp rest = v.lines * v.stride + c;
        float last;
        line_moments(q->from[0], c, v.lines, v.stride, width, means, m2s);
        for (npy_intp k = 0; k < channels; k++) {
            double n = v.lines, m = means[k], s = m2s[k];
            for (npy_intp p = 1; v.lines && p < v.per; p++, n += v.lines)
                join(n, &m, &s, v.lines, means[p * q->C + k], m2s[p * q->C + k]);
            for (npy_intp p = 0; p < v.rest; p++, n++)
                join(n, &m, &s, 1, *floats_of(q->from[0], rest + p * q->C + k, 1, &last), 0);
            q->at[1][c + k] = m, q->at[2][c + k] = s;
        }
    }
}

/* The sums of g and of g (x - mean), for elements w < width of all lines. */
static void line_sums(const Norm *q, npy_intp at, const float *mean, npy_intp lines,
                      npy_intp stride, npy_intp width, double *total, double *dot) {
    float room[2][LINE];
    for (npy_intp w = 0; w < width; w++) total[w] = dot[w] = 0;
    for (npy_intp first = 0; first < lines; first += BLOCK) {
        npy_intp n = lines - first < BLOCK ? lines - first : BLOCK;
        float sum[LINE] = {0}, products[LINE] = {0};
        for (npy_intp i = 0; i < n; i++, at += stride) {
            const float *g = floats_of(q->from[0], at, width, room[0]);
            const float *x = floats_of(q->from[1], at, width, room[1]);
            for (npy_intp w = 0; w < width; w++)
                sum[w] += g[w], products[w] += g[w] * (x[w] - mean[w]);
        }
        for (npy_intp w = 0; w < width; w++) total[w] += sum[w], dot[w] += products[w];
    }
}

static void norm_sums(const Norm *q) {
    Lines v = lines_of(q);
    double totals[LINE], dots[LINE];
    float line[LINE];
    for (npy_intp c = 0; c < q->C; c += LINE) {
        npy_intp width = v.stride - c < LINE ? v.stride - c : LINE, channels = width / v.per;
        npy_intp end = v.lines * v.stride;
        float last[2];
        const float *mean = repeated(q->at[2], q, v, line) + c;
        line_sums(q, c, mean, v.lines, v.stride, width, totals, dots);
        for (npy_intp k = 0; k < channels; k++) {
            double total = 0, dot = 0;
            for (npy_intp w = k; w < width; w += q->C) total += totals[w], dot += dots[w];
            for (npy_intp i = end + c + k; i < q->P * q->C; i += q->C) {
                float g = *floats_of(q->from[0], i, 1, last);
                total += g, dot += g * (*floats_of(q->from[1], i, 1, last + 1) - mean[k]);
            }
            q->at[3][c + k] = total, q->at[4][c + k] = dot;
        }
    }
}

/* How many elements to take next from element w of a line, which is element i of the sample. */
static npy_intp some_of(const Norm *q, Lines v, npy_intp i, npy_intp w) {
    npy_intp n = v.stride - w < LINE ? v.stride - w : LINE, rest = q->P * q->C - i;
    return n < rest ? n : rest;
}

static void normalise(const Norm *q) {
    Lines v = lines_of(q);
    float line[3][LINE], room[2][LINE];
    const float *m = repeated(q->at[1], q, v, line[0]), *s = repeated(q->at[2], q, v, line[1]);
    const float *b = repeated(q->at[3], q, v, line[2]);
    for (npy_intp i = 0, n, w = 0; i < q->P * q->C; i += n, w = w + n < v.stride ? w + n : 0) {
        n = some_of(q, v, i, w);
        const float *x = floats_of(q->from[0], i, n, room[0]);
        float *restrict y = floats_for(q->to, i, room[1]);
        if (b) for (npy_intp k = 0; k < n; k++) y[k] = (x[k] - m[w + k]) * s[w + k] + b[w + k];
        else for (npy_intp k = 0; k < n; k++) y[k] = (x[k] - m[w + k]) * s[w + k];
        stored(q->to, i, n, y);
    }
}

static void norm_gradient(const Norm *q) {
    Lines v = lines_of(q);
    float line[4][LINE], room[3][LINE];
    const float *m = repeated(q->at[2], q, v, line[0]), *a = repeated(q->at[3], q, v, line[1]);
    const float *b = repeated(q->at[4], q, v, line[2]), *e = repeated(q->at[5], q, v, line[3]);
    for (npy_intp i = 0, n, w = 0; i < q->P * q->C; i += n, w = w + n < v.stride ? w + n : 0) {
        n = some_of(q, v, i, w);
        const float *g = floats_of(q->from[0], i, n, room[0]);
        const float *x = floats_of(q->from[1], i, n, room[1]);
        float *restrict dx = floats_for(q->to, i, room[2]);
#pragma GCC ivdep
        for (npy_intp k = 0; k < n; k++)
            dx[k] = g[k] * a[w + k] - (x[k] - m[w + k]) * b[w + k] - e[w + k];
        stored(q->to, i, n, dx);
    }
}

/* Computes sample by sample, and moves the arrays on by one sample each time. */
static int of_samples(Arguments *a, void (*compute)(const Norm *)) {
    Norm q = {.P = SIZE(a, 'P'), .C = SIZE(a, 'C')};
    for (int i = 0; i < a->arrays; i++) q.at[i] = a->at[i];
    int last = a->arrays - 1;
    for (int i = 0; i < 2; i++) q.from[i] = numbers_of(a, i);
    q.to = numbers_of(a, last);
    for (npy_intp sample = 0; sample < SIZE(a, 'N'); sample++) {
        compute(&q);
        for (int i = 0; i < a->arrays; i++) {
            int axes = a->array[i].axes;
            npy_intp next = axes == 3 ? q.P * q.C : axes == 2 ? q.C : 0;
            if (q.at[i]) q.at[i] += next;
            if (i < 2) q.from[i].at = (char *)q.from[i].at + next * a->array[i].itemsize;
            if (i == last) q.to.at = (char *)q.to.at + next * a->array[i].itemsize;
        }
    }
    return DONE;
}

#define NORM(name, compute)                                                                        \
    static int name(Arguments *a) { return of_samples(a, compute); }

NORM(moments_loop, moments)
NORM(normalise_loop, normalise)
NORM(norm_sums_loop, norm_sums)
NORM(norm_gradient_loop, norm_gradient)

Kernel norm_kernels[] = {
    KERNEL(moments_loop, "hNPC ~fNC ~fNC"),
    KERNEL(normalise_loop, "hNPC fNC fNC ?fC ~hNPC"),
    KERNEL(norm_sums_loop, "hNPC hNPC fNC ~fNC ~fNC"),
    KERNEL(norm_gradient_loop, "hNPC hNPC fNC fNC fNC fNC ~hNPC"),
    END_OF_KERNELS,
};
