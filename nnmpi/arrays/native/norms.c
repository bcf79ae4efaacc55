/* Normalisation, as kernels/norm.py describes it, in float32.

   N samples of P positions with C channels; BatchNorm's are one sample
   mean, m2, total, dot, scale, a, b, e (N, C); shift (C)
   moments_loop(x, mean, m2)                 m2 = sum((x - mean)^2)
   normalise_loop(x, mean, scale, shift or None, y)    y = (x - mean) scale + shift
   norm_sums_loop(g, x, mean, total, dot)    total = sum(g), dot = sum(g (x - mean))
   norm_gradient_loop(g, x, mean, a, b, e, dx)         dx = g a - (x - mean) b - e

   GroupNorm as a whole, with SiLU behind it if `silu`. A sample stays in the cache from one pass
   over it to the next, and the value y of SiLU tells its slope.
   group_norm_loop(x, w or None, b or None, groups, eps, silu, mean, r, y)
   group_norm_gradient_loop(g, x, y or None, w or None, b or None, mean, r, groups, total, dot,
                            dx or None)    y: the value of SiLU

   Sums over positions: positions form lines of up to 128 elements, which are added element by
   element, 64 lines at a time in float32, and these blocks in float64. */
#include "elementary.h"
#include "halves.h"
#include <math.h>

#define MOST_ARRAYS 7
#define LINE 128
#define BLOCK 64
#define NEAR_0 0x1p-10f /* below it the sigmoid of z is 1/2 + z/4, to 2e-11 */

/* The sizes and arrays of one sample. */
typedef struct {
    npy_intp P, C;
    float *at[MOST_ARRAYS];
    Numbers from[2], to; /* the first arrays and the last one, which may have 16 bits */
    int silu;            /* whether SiLU follows */
    Numbers y;           /* the value of SiLU, if g is its gradient */
    float *h;            /* gets the gradient of the normalised values, which SiLU takes */
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

/* Values of each channel, repeated for each position of a line. */
typedef struct {
    const float *mean, *scale, *shift;
} OfChannels;

static OfChannels from_channel(OfChannels v, npy_intp c) {
    return (OfChannels){v.mean + c, v.scale ? v.scale + c : NULL, v.shift ? v.shift + c : NULL};
}

/* Returns n elements of the gradient of the normalised values z. With SiLU it is g times the slope
   there: its value y = z s tells s, the sigmoid of z, except near 0. */
ALWAYS_INLINE const float *gradient_of(const Norm *q, npy_intp at, npy_intp n, const float *x,
                                       OfChannels v, float *room) {
    const float *g = floats_of(q->from[0], at, n, room);
    if (!q->h) return g;
    float values[LINE], *h = q->h + at;
    const float *y = floats_of(q->y, at, n, values);
#pragma GCC ivdep
    for (npy_intp k = 0; k < n; k++) {
        float z = (x[k] - v.mean[k]) * v.scale[k] + (v.shift ? v.shift[k] : 0);
        float s = with_sign_of(z, 1) < NEAR_0 ? 0.5f + 0.25f * z : y[k] / z;
        h[k] = g[k] * (s + y[k] * (1 - s));
    }
    return h;
}

/* The sums of g and of g (x - mean), for elements w < width of all lines. */
static void line_sums(const Norm *q, npy_intp at, OfChannels v, npy_intp lines, npy_intp stride,
                      npy_intp width, double *total, double *dot) {
    float room[2][LINE];
    for (npy_intp w = 0; w < width; w++) total[w] = dot[w] = 0;
    for (npy_intp first = 0; first < lines; first += BLOCK) {
        npy_intp n = lines - first < BLOCK ? lines - first : BLOCK;
        float sum[LINE] = {0}, products[LINE] = {0};
        for (npy_intp i = 0; i < n; i++, at += stride) {
            const float *x = floats_of(q->from[1], at, width, room[1]);
            const float *g = gradient_of(q, at, width, x, v, room[0]);
            for (npy_intp w = 0; w < width; w++)
                sum[w] += g[w], products[w] += g[w] * (x[w] - v.mean[w]);
        }
        for (npy_intp w = 0; w < width; w++) total[w] += sum[w], dot[w] += products[w];
    }
}

static void norm_sums(const Norm *q) {
    Lines v = lines_of(q);
    double totals[LINE], dots[LINE];
    float line[3][LINE];
    OfChannels all = {repeated(q->at[2], q, v, line[0]), NULL, NULL};
    if (q->h)
        all = (OfChannels){all.mean, repeated(q->at[5], q, v, line[1]),
                           repeated(q->at[6], q, v, line[2])};
    for (npy_intp c = 0; c < q->C; c += LINE) {
        npy_intp width = v.stride - c < LINE ? v.stride - c : LINE, channels = width / v.per;
        npy_intp end = v.lines * v.stride;
        float last[2];
        OfChannels here = from_channel(all, c);
        line_sums(q, c, here, v.lines, v.stride, width, totals, dots);
        for (npy_intp k = 0; k < channels; k++) {
            double total = 0, dot = 0;
            for (npy_intp w = k; w < width; w += q->C) total += totals[w], dot += dots[w];
            for (npy_intp i = end + c + k; i < q->P * q->C; i += q->C) {
                float x = *floats_of(q->from[1], i, 1, last);
                float g = *gradient_of(q, i, 1, &x, from_channel(here, k), last + 1);
                total += g, dot += g * (x - here.mean[k]);
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

#define AHEAD 512 /* floats to be written a few lines later: exponentials leave the memory idle */

static inline void with_silu(float *y, npy_intp n) {
    for (npy_intp k = 0; k < n; k += 16) __builtin_prefetch(y + k + AHEAD, 1);
    for (npy_intp k = 0; k < n; k++) y[k] *= sigmoid_of(y[k]);
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
        if (q->silu) with_silu(y, n);
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
        float *dx = floats_for(q->to, i, room[2]); /* may be g */
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

/* The mean of the values of a group's channels, each times w, if there are weights. */
static double mean_of_group(const float *x, const float *w, npy_intp channels) {
    double sum = 0;
    for (npy_intp c = 0; c < channels; c++) sum += x[c] * (w ? w[c] : 1.0);
    return sum / channels;
}

/* Replaces the means and sums of squared deviations of channels by the mean of their group, and
   r = 1 / sqrt(its variance + eps). */
static void join_channels(const Norm *q, npy_intp channels, double eps) {
    for (npy_intp first = 0; first < q->C; first += channels) {
        float *means = q->at[1] + first, *m2 = q->at[2] + first;
        double mean = mean_of_group(means, NULL, channels), squares = 0;
        for (npy_intp c = 0; c < channels; c++)
            squares += m2[c] / (double)q->P + (means[c] - mean) * (means[c] - mean);
        double r = 1 / sqrt(squares / channels + eps);
        for (npy_intp c = 0; c < channels; c++) means[c] = mean, m2[c] = r;
    }
}

static void scaled_by(const float *w, const float *r, npy_intp C, float *scale) {
    for (npy_intp c = 0; c < C; c++) scale[c] = w ? r[c] * w[c] : r[c];
}

/* Sample n of an array whose samples have `each` elements. */
static Numbers sample_of(Numbers x, npy_intp n, npy_intp each) {
    npy_intp bytes = x.half ? sizeof(npy_uint16) : sizeof(float);
    return (Numbers){x.at ? (char *)x.at + n * each * bytes : NULL, x.half};
}

static int group_norm_loop(Arguments *a) {
    npy_intp P = SIZE(a, 'P'), C = SIZE(a, 'C'), groups = (npy_intp)a->number[0];
    if (groups < 1 || C % groups) return NOT_MADE_FOR;
    float *scale = malloc(C * sizeof *scale);
    if (!scale) return NO_MEMORY;
    for (npy_intp n = 0; n < SIZE(a, 'N'); n++) {
        float *mean = (float *)a->at[3] + n * C, *r = (float *)a->at[4] + n * C;
        Norm q = {P, C, {NULL, mean, r}, {sample_of(numbers_of(a, 0), n, P * C)}};
        moments(&q);
        join_channels(&q, C / groups, a->number[1]);
        scaled_by(a->at[1], r, C, scale);
        q.at[2] = scale, q.at[3] = a->at[2];
        q.to = sample_of(numbers_of(a, 5), n, P * C), q.silu = (int)a->number[2];
        normalise(&q);
    }
    free(scale);
    return DONE;
}

/* Prepares dx = g r w - (x - mean) r^3 m(dot w) - r m(total w), with m the mean over a group. */
static void group_gradient(Norm *q, const float *w, const float *r, npy_intp channels,
                           float *room) {
    float *b = room, *e = room + q->C;
    for (npy_intp first = 0; first < q->C; first += channels) {
        const float *of = w ? w + first : NULL;
        float shift = mean_of_group(q->at[3] + first, of, channels) / q->P * r[first];
        float slope = mean_of_group(q->at[4] + first, of, channels) / q->P * r[first] * r[first] *
                      r[first];
        for (npy_intp c = first; c < first + channels; c++) b[c] = slope, e[c] = shift;
    }
    q->at[4] = b, q->at[5] = e;
}

static int group_norm_gradient_loop(Arguments *a) {
    npy_intp P = SIZE(a, 'P'), C = SIZE(a, 'C'), groups = (npy_intp)a->number[0];
    if (groups < 1 || C % groups) return NOT_MADE_FOR;
    const float *w = a->at[3];
    Numbers of_x = numbers_of(a, 9);
    int needs_h = a->at[2] && (!of_x.at || of_x.half); /* else dx has room for it */
    float *scale = malloc((3 * C + (needs_h ? P * C : 0)) * sizeof *scale), *room = scale + C;
    if (!scale) return NO_MEMORY;
    for (npy_intp n = 0; n < SIZE(a, 'N'); n++) {
        float *mean = (float *)a->at[5] + n * C, *r = (float *)a->at[6] + n * C;
        Numbers g = sample_of(numbers_of(a, 0), n, P * C);
        Numbers x = sample_of(numbers_of(a, 1), n, P * C);
        Norm q = {P, C, {NULL, NULL, mean}, {g, x}, sample_of(of_x, n, P * C)};
        scaled_by(w, r, C, scale);
        q.at[3] = (float *)a->at[7] + n * C, q.at[4] = (float *)a->at[8] + n * C;
        if (a->at[2]) {
            q.at[5] = scale, q.at[6] = a->at[4], q.y = sample_of(numbers_of(a, 2), n, P * C);
            q.h = needs_h ? room + 2 * C : q.to.at;
        }
        norm_sums(&q);
        if (!of_x.at) continue;
        group_gradient(&q, w, r, C / groups, room);
        q.at[3] = scale;
        if (q.h) q.from[0] = (Numbers){q.h, 0};
        norm_gradient(&q);
    }
    free(scale);
    return DONE;
}

Kernel norm_kernels[] = {
    KERNEL(moments_loop, "hNPC ~fNC ~fNC"),
    KERNEL(normalise_loop, "hNPC fNC fNC ?fC ~hNPC"),
    KERNEL(norm_sums_loop, "hNPC hNPC fNC ~fNC ~fNC"),
    KERNEL(norm_gradient_loop, "hNPC hNPC fNC fNC fNC fNC ~hNPC"),
    KERNEL(group_norm_loop, "hNPC ?fC ?fC % # ! ~fNC ~fNC ~hNPC"),
    KERNEL(group_norm_gradient_loop, "hNPC hNPC ?hNPC ?fC ?fC fNC fNC % ~fNC ~fNC ~?hNPC"),
    END_OF_KERNELS,
};
