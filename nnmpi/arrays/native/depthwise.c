/* Convolution of each channel alone, in float32, channels last.

   x (n, H, W, C)     w (kh, kw, C)     z (n, h, w, C)

       z[n, h, w, c] = sum over i, j of
                       x[n, h down + i dh - top, w right + j dw - left, c] w[i, j, c]

   where pixels outside of an image are zero

   depthwise_outputs(x, w, z, top, left, down, right, dh, dw)         z
   depthwise_images(z, w, x, adds, top, left, down, right, dh, dw)    the gradient of x from that of
                                                                      z, or adds it to x
   depthwise_weights(x, z, w, top, left, down, right, dh, dw)    adds the gradient of w to w

   The terms of an element are added in the order of i and j. */
#include "native.h"

typedef struct {
    npy_intp n, H, W, C, h, w, kh, kw, top, left, down, right, dh, dw;
    npy_intp x[3], z[3]; /* elements from one image, row and pixel to the next */
} Shape;

/* One weight, at the offset of its first channel, and the pixels that it meets in a row: that of
   result p is `at` + p steps elements from the start of the image, for p from `first` to `end`; all
   others are outside of it. */
typedef struct {
    npy_intp weight, at, first, end;
} Tap;

typedef struct {
    npy_intp many, first, end, step; /* all taps meet results `first` to `end` */
    Tap *tap;
    float *room; /* for a sum of each weight */
} Taps;

/* a / b, rounded up; a division takes as long as some pixels. */
static npy_intp rounded_up(npy_intp a, npy_intp b) {
    return b == 1 ? a : a > 0 ? (a + b - 1) / b : -(-a / b);
}

static void add_tap(Taps *t, npy_intp weight, npy_intp at, npy_intp first, npy_intp end) {
    if (first >= end) return;
    t->tap[t->many++] = (Tap){weight, at, first, end};
    if (first > t->first) t->first = first;
    if (end < t->end) t->end = end;
}

/* Row h of z: the pixels of x that it reads. */
static void taps_of_outputs(const Shape *s, npy_intp h, Taps *t) {
    t->many = t->first = 0, t->end = s->w, t->step = s->right * s->x[2];
    for (npy_intp i = 0; i < s->kh; i++) {
        npy_intp row = h * s->down + i * s->dh - s->top;
        for (npy_intp j = 0; j < s->kw && row >= 0 && row < s->H; j++) {
            npy_intp left = j * s->dw - s->left, first = rounded_up(-left, s->right);
            npy_intp end = rounded_up(s->W - left, s->right);
            add_tap(t, (i * s->kw + j) * s->C, row * s->x[1] + left * s->x[2],
                    first < 0 ? 0 : first, end < s->w ? end : s->w);
        }
    }
}

/* Every `right`-th pixel of row r of x, from column c on: the pixels of z that read it. */
static void taps_of_images(const Shape *s, npy_intp r, npy_intp c, npy_intp count, Taps *t) {
    t->many = t->first = 0, t->end = count, t->step = s->z[2];
    for (npy_intp i = 0; i < s->kh; i++) {
        npy_intp down = r + s->top - i * s->dh, h = rounded_up(down, s->down);
        if (down < 0 || down != h * s->down || h >= s->h) continue;
        for (npy_intp j = 0; j < s->kw; j++) {
            npy_intp right = c + s->left - j * s->dw, w = rounded_up(right, s->right);
            if (right != w * s->right) continue;
            add_tap(t, (i * s->kw + j) * s->C, h * s->z[1] + w * s->z[2], w < 0 ? -w : 0,
                    s->w - w < count ? s->w - w : count);
        }
    }
}

#if defined(__AVX512F__)
#define PER_VECTOR 16
#elif defined(__AVX__)
#define PER_VECTOR 8
#else
#define PER_VECTOR 4
#endif
typedef float Vector __attribute__((vector_size(4 * PER_VECTOR), aligned(4), may_alias));
#define WIDTH (2 * PER_VECTOR) /* channels whose sums stay in registers, */
#define MANY 4                 /* of so many results: their weights are loaded once */

/* The results z of `pixels` pixels from the p-th on, for some vectors of channels: sums over the
   taps, or, if it `checks`, over those that meet result p. x is moved on by p steps. */
ALWAYS_INLINE void block(const int pixels, const int vectors, const int checks, const Taps *t,
                         npy_intp p, const float *x, const float *w, float *z, npy_intp z_step,
                         int adds) {
    npy_intp step = t->step;
    Vector total[MANY][2];
    UNROLL for (int i = 0; i < pixels; i++)
        UNROLL for (int v = 0; v < vectors; v++)
            total[i][v] = adds ? ((Vector *)(z + i * z_step))[v] : (Vector){0};
    for (const Tap *q = t->tap, *end = q + t->many; q < end; q++) {
        const float *from = x + q->at;
        const Vector *weight = (const Vector *)(w + q->weight);
        if (checks && (p < q->first || p >= q->end)) continue;
        UNROLL for (int i = 0; i < pixels; i++, from += step)
            UNROLL for (int v = 0; v < vectors; v++)
                total[i][v] += ((const Vector *)from)[v] * weight[v];
    }
    UNROLL for (int i = 0; i < pixels; i++)
        UNROLL for (int v = 0; v < vectors; v++)
            ((Vector *)(z + i * z_step))[v] = total[i][v];
}

/* Inlined into the loop over channels, GCC computes all addresses anew. */
#define BLOCK(pixels, vectors)                                                                     \
    static __attribute__((noinline)) void block_##pixels##_##vectors(                              \
        const Taps *t, npy_intp p, const float *x, const float *w, float *z, npy_intp z_step,      \
        int adds) {                                                                                \
        block(pixels, vectors, pixels == 1, t, p, x, w, z, z_step, adds);                          \
    }
BLOCK(1, 1)
BLOCK(1, 2)
BLOCK(2, 1)
BLOCK(2, 2)
BLOCK(4, 1)
BLOCK(4, 2)

/* How many results from p on to compute at once: 1, or some that all taps meet. */
static npy_intp next(const Taps *t, npy_intp p) {
    npy_intp met = p < t->first ? 0 : t->end - p;
    return met >= 4 ? 4 : met >= 2 ? 2 : 1;
}

/* Result p of one channel. */
static float one_sum(const Taps *t, npy_intp p, const float *x, const float *w, float total) {
    for (npy_intp k = 0; k < t->many; k++) {
        const Tap *q = t->tap + k;
        if (p >= q->first && p < q->end) total += x[q->at + p * t->step] * w[q->weight];
    }
    return total;
}

/* `many` results from p on: z = the sum over the taps of a row, or += if it adds. */
static void results(const Taps *t, npy_intp many, npy_intp p, const float *x, const float *w,
                    npy_intp C, float *z, npy_intp z_step, int adds) {
    npy_intp c = 0;
    const float *from = x + p * t->step;
    float *to = z + p * z_step;
    for (; c + WIDTH <= C; c += WIDTH)
        (many == 4 ? block_4_2 : many == 2 ? block_2_2 : block_1_2)(t, p, from + c, w + c, to + c,
                                                                    z_step, adds);
    for (; c + PER_VECTOR <= C; c += PER_VECTOR)
        (many == 4 ? block_4_1 : many == 2 ? block_2_1 : block_1_1)(t, p, from + c, w + c, to + c,
                                                                    z_step, adds);
    for (; c < C; c++)
        for (npy_intp i = 0; i < many; i++)
            to[i * z_step + c] = one_sum(t, p + i, x + c, w + c, adds ? to[i * z_step + c] : 0);
}

/* All results of a row. */
static void row_of_sums(const Taps *t, npy_intp count, const float *x, const float *w, npy_intp C,
                        float *z, npy_intp z_step, int adds) {
    for (npy_intp p = 0, many; p < count; p += many) {
        many = next(t, p);
        results(t, many, p, x, w, C, z, z_step, adds);
    }
}

static void outputs(const Shape *s, int adds, const float *x, const float *w, float *z, Taps *t) {
    for (npy_intp n = 0; n < s->n; n++)
        for (npy_intp h = 0; h < s->h; h++) {
            taps_of_outputs(s, h, t);
            row_of_sums(t, s->w, x + n * s->x[0], w, s->C, z + n * s->z[0] + h * s->z[1], s->z[2],
                        adds);
        }
}

static void images(const Shape *s, int adds, const float *z, const float *w, float *x, Taps *t) {
    for (npy_intp n = 0; n < s->n; n++)
        for (npy_intp r = 0; r < s->H; r++)
            for (npy_intp c = 0; c < s->right && c < s->W; c++) {
                npy_intp count = rounded_up(s->W - c, s->right);
                taps_of_images(s, r, c, count, t);
                row_of_sums(t, count, z + n * s->z[0], w, s->C,
                            x + n * s->x[0] + r * s->x[1] + c * s->x[2], s->right * s->x[2], adds);
            }
}

/* sum[weight] of each tap += its pixels of x times `pixels` results z, for a vector of channels. */
ALWAYS_INLINE void products(const int pixels, const int checks, const Taps *t, npy_intp p,
                            const float *x, const float *z, npy_intp z_step, float *sum) {
    npy_intp step = t->step;
    Vector g[MANY];
    UNROLL for (int i = 0; i < pixels; i++) g[i] = *(const Vector *)(z + i * z_step);
    for (const Tap *q = t->tap, *end = q + t->many; q < end; q++) {
        const float *from = x + q->at;
        Vector *to = (Vector *)(sum + q->weight), total = *to;
        if (checks && (p < q->first || p >= q->end)) continue;
        UNROLL for (int i = 0; i < pixels; i++, from += step) total += *(const Vector *)from * g[i];
        *to = total;
    }
}

#define PRODUCTS(pixels)                                                                           \
    static __attribute__((noinline)) void products_##pixels(                                       \
        const Taps *t, npy_intp p, const float *x, const float *z, npy_intp z_step, float *sum) {  \
        products(pixels, pixels == 1, t, p, x, z, z_step, sum);                                    \
    }
PRODUCTS(1)
PRODUCTS(2)
PRODUCTS(4)

/* The same for all channels, and `many` results from p on. */
static void all_products(const Taps *t, npy_intp many, npy_intp p, const float *x, const float *z,
                         npy_intp z_step, npy_intp C, float *sum) {
    npy_intp c = 0;
    for (; c + PER_VECTOR <= C; c += PER_VECTOR)
        (many == 4 ? products_4 : many == 2 ? products_2 : products_1)(
            t, p, x + p * t->step + c, z + p * z_step + c, z_step, sum + c);
    for (; c < C; c++)
        for (npy_intp k = 0; k < t->many; k++)
            for (npy_intp i = p; i < p + many; i++) {
                const Tap *q = t->tap + k;
                if (i >= q->first && i < q->end)
                    sum[q->weight + c] += x[q->at + i * t->step + c] * z[i * z_step + c];
            }
}

/* Adds row by row, so that rounding grows with the number of rows, not of pixels. */
static void weights(const Shape *s, int unused, const float *x, const float *z, float *w, Taps *t) {
    npy_intp size = s->kh * s->kw * s->C;
    (void)unused;
    for (npy_intp n = 0; n < s->n; n++)
        for (npy_intp h = 0; h < s->h; h++) {
            const float *from = x + n * s->x[0], *g = z + n * s->z[0] + h * s->z[1];
            taps_of_outputs(s, h, t);
            memset(t->room, 0, size * sizeof *t->room);
            for (npy_intp p = 0, many; p < s->w; p += many) {
                many = next(t, p);
                all_products(t, many, p, from, g, s->z[2], s->C, t->room);
            }
            for (npy_intp i = 0; i < size; i++) w[i] += t->room[i];
        }
}

/* Reads the shape of images and results, which are the arguments with these numbers, and runs the
   loop; the last six numbers are those of the shape. */
static int convolve(Arguments *a, int image, int result,
                    void (*loop)(const Shape *, int, const float *, const float *, float *,
                                 Taps *)) {
    const double *c = a->number + a->numbers - 6;
    Shape s = {SIZE(a, 'n'), SIZE(a, 'H'), SIZE(a, 'W'), SIZE(a, 'C'), SIZE(a, 'h'), SIZE(a, 'w'),
               SIZE(a, 'i'), SIZE(a, 'j'), c[0],         c[1],         c[2],         c[3],
               c[4],         c[5]};
    for (int i = 0; i < 3; i++) s.x[i] = step(a, image, i), s.z[i] = step(a, result, i);
    if (s.down < 1 || s.right < 1 || s.dh < 1 || s.dw < 1) return NOT_MADE_FOR;
    npy_intp taps = s.kh * s.kw;
    Taps t = {.tap = malloc(taps * (sizeof *t.tap + s.C * sizeof *t.room))};
    if (!t.tap) return NO_MEMORY;
    t.room = (float *)(t.tap + taps);
    loop(&s, a->numbers > 6 && a->number[0], a->at[0], a->at[1], a->at[2], &t);
    free(t.tap);
    return DONE;
}

static int depthwise_outputs(Arguments *a) { return convolve(a, 0, 2, outputs); }

static int depthwise_images(Arguments *a) { return convolve(a, 2, 0, images); }

static int depthwise_weights(Arguments *a) { return convolve(a, 0, 1, weights); }

Kernel depthwise_kernels[] = {
    PARTS("n", depthwise_outputs, "f-nHWC fijC ~f-nhwC % % % % % %"),
    PARTS("n", depthwise_images, "f-nhwC fijC =f-nHWC ! % % % % % %"),
    PARTS("n", depthwise_weights, "f-nHWC f-nhwC =fijC % % % % % %"),
    END_OF_KERNELS,
};
