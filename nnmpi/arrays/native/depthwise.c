/* Convolution of each channel alone, in float32, channels last.

   x (n, H, W, C) padded     w (kh, kw, C)     z (n, h, w, C)

       z[n, h, w, c] = sum over i, j of x[n, h down + i dh, w right + j dw, c] w[i, j, c]

   depthwise_outputs(x, w, z, down, right, dh, dw)    z
   depthwise_images(z, w, x, down, right, dh, dw)     adds the gradient of x to x, from that of z
   depthwise_weights(x, z, w, down, right, dh, dw)    adds the gradient of w to w, from that of z

   The terms of an element are added in the order of i and j. */
#include "native.h"

typedef struct {
    npy_intp n, H, W, C, h, w, kh, kw, down, right, dh, dw;
    npy_intp x[3], z[3]; /* elements from one image, row and pixel to the next */
} Shape;

/* For each of `pixels` pixels, to += from * weights. */
static void add_products(npy_intp pixels, npy_intp C, const float *restrict weights, float *to,
                         npy_intp to_step, const float *from, npy_intp from_step) {
    for (npy_intp p = 0; p < pixels; p++, to += to_step, from += from_step)
#pragma GCC ivdep
        for (npy_intp c = 0; c < C; c++) to[c] += from[c] * weights[c];
}

#define BLOCK 16 /* channels whose weights and sums stay in registers */

/* Channels c to c + many of row h of image n; for 3x3 kernels the sizes are compile-time
   constants. */
ALWAYS_INLINE void output_row(const Shape *s, const float *x, const float *w, float *z, npy_intp c,
                              npy_intp many, npy_intp kh, npy_intp kw) {
    float k[9][BLOCK];
    int small = kh * kw <= 9;
    for (npy_intp i = 0; i < kh * kw && small; i++)
        for (npy_intp o = 0; o < many; o++) k[i][o] = w[i * s->C + c + o];
    for (npy_intp p = 0; p < s->w; p++, x += s->right * s->x[2], z += s->z[2]) {
        float total[BLOCK] = {0};
        UNROLL for (npy_intp i = 0; i < kh; i++)
            UNROLL for (npy_intp j = 0; j < kw; j++) {
                const float *from = x + i * s->dh * s->x[1] + j * s->dw * s->x[2] + c;
                const float *weight = small ? k[i * kw + j] : w + (i * kw + j) * s->C + c;
                for (npy_intp o = 0; o < many; o++) total[o] += from[o] * weight[o];
            }
        for (npy_intp o = 0; o < many; o++) z[c + o] = total[o];
    }
}

static void outputs(const Shape *s, const float *x, const float *w, float *z) {
    for (npy_intp n = 0; n < s->n; n++)
        for (npy_intp h = 0; h < s->h; h++) {
            const float *from = x + n * s->x[0] + h * s->down * s->x[1];
            float *to = z + n * s->z[0] + h * s->z[1];
            for (npy_intp c = 0; c < s->C; c += BLOCK)
                if (c + BLOCK <= s->C && s->kh == 3 && s->kw == 3)
                    output_row(s, from, w, to, c, BLOCK, 3, 3);
                else
                    output_row(s, from, w, to, c, s->C - c < BLOCK ? s->C - c : BLOCK, s->kh, s->kw);
        }
}

static void images(const Shape *s, const float *z, const float *w, float *x) {
    for (npy_intp n = 0; n < s->n; n++)
        for (npy_intp r = 0; r < s->H; r++)
            for (npy_intp i = 0; i < s->kh; i++) {
                npy_intp above = r - i * s->dh, h = above / s->down;
                if (above < 0 || above % s->down || h >= s->h) continue;
                for (npy_intp j = 0; j < s->kw; j++)
                    add_products(s->w, s->C, w + (i * s->kw + j) * s->C,
                                 x + n * s->x[0] + r * s->x[1] + j * s->dw * s->x[2],
                                 s->right * s->x[2], z + n * s->z[0] + h * s->z[1], s->z[2]);
            }
}

/* dw[0 .. many) += the sums over a row of pixels of x * z. */
ALWAYS_INLINE void row_sums(npy_intp pixels, npy_intp many, const float *x, npy_intp x_step,
                            const float *z, npy_intp z_step, float *dw) {
    float total[BLOCK] = {0};
    for (npy_intp p = 0; p < pixels; p++, x += x_step, z += z_step)
        for (npy_intp c = 0; c < many; c++) total[c] += x[c] * z[c];
    for (npy_intp c = 0; c < many; c++) dw[c] += total[c];
}

static void weights(const Shape *s, const float *x, const float *z, float *w) {
    for (npy_intp n = 0; n < s->n; n++)
        for (npy_intp h = 0; h < s->h; h++)
            for (npy_intp i = 0; i < s->kh; i++)
                for (npy_intp j = 0; j < s->kw; j++) {
                    const float *from = x + n * s->x[0] + (h * s->down + i * s->dh) * s->x[1] +
                                        j * s->dw * s->x[2];
                    const float *g = z + n * s->z[0] + h * s->z[1];
                    float *to = w + (i * s->kw + j) * s->C;
                    npy_intp c = 0, step = s->right * s->x[2];
                    for (; c + BLOCK <= s->C; c += BLOCK)
                        row_sums(s->w, BLOCK, from + c, step, g + c, s->z[2], to + c);
                    row_sums(s->w, s->C - c, from + c, step, g + c, s->z[2], to + c);
                }
}

/* The shape of images and results, which are the arguments with these numbers. */
static int shape_of(const Arguments *a, int image, int result, Shape *s) {
    const double *c = a->number;
    *s = (Shape){SIZE(a, 'n'), SIZE(a, 'H'), SIZE(a, 'W'), SIZE(a, 'C'), SIZE(a, 'h'), SIZE(a, 'w'),
                 SIZE(a, 'i'), SIZE(a, 'j'), c[0], c[1], c[2], c[3]};
    for (int i = 0; i < 3; i++) s->x[i] = step(a, image, i), s->z[i] = step(a, result, i);
    return s->down > 0 && s->right > 0 && s->dh > 0 && s->dw > 0 &&
           (s->h - 1) * s->down + (s->kh - 1) * s->dh < s->H &&
           (s->w - 1) * s->right + (s->kw - 1) * s->dw < s->W;
}

#define DEPTHWISE(name, loop, image, result)                                                       \
    static int name(Arguments *a) {                                                                \
        Shape s;                                                                                   \
        if (!shape_of(a, image, result, &s)) return NOT_MADE_FOR;                          \
        loop(&s, a->at[0], a->at[1], a->at[2]);                                                    \
        return DONE;                                                                               \
    }

DEPTHWISE(depthwise_outputs, outputs, 0, 2)
DEPTHWISE(depthwise_images, images, 2, 0)
DEPTHWISE(depthwise_weights, weights, 0, 1)

Kernel depthwise_kernels[] = {
    PARTS("n", depthwise_outputs, "f-nHWC fijC ~f-nhwC % % % %"),
    PARTS("n", depthwise_images, "f-nhwC fijC =f-nHWC % % % %"),
    PARTS("n", depthwise_weights, "f-nHWC f-nhwC =fijC % % % %"),
    END_OF_KERNELS,
};
