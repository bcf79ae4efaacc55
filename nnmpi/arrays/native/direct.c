/* Convolutions of images with few channels, without columns, in float32, channels last.

   n images of H x W pixels with C channels, padded     h x w outputs (before pooling) with O
   K kernel rows and columns, `stride` apart             channels, a multiple of PER_VECTOR

   direct_outputs(x, w, y, largest, bias, zero, stride)
       y (n, h, w, O), after pooling, bias and ReLU, of x (n, H, W, C) and w (K, K, C, O)
   direct_gradients(x, g, y, largest, db, dw, stride)
       dw and db += those of the gradient g of y

   The elements of x that an output reads are K runs of K * C. So a row of outputs is a product of
   matrices, and the left one is in x already. With pooling, even and odd columns of two rows are
   computed separately: then a window is the same place in four rows. */
#include "epilogue.h"
#include "products.h"

#ifdef FUSED

typedef struct {
    npy_intp n, image, row, C, rows, columns, O, stride;
} Images;

/* Writes `many` outputs of row h to y: every `every`-th column, from column `first` on. */
static void output_row(const Images *s, const float *x, const float *w, npy_intp h, npy_intp first,
                       npy_intp every, npy_intp many, float *y) {
    Terms t = {s->rows, s->columns * s->C, s->row, 1};
    const float *a = x + h * s->stride * s->row + first * s->stride * s->C;
    for (npy_intp o = 0; o < s->O; o += WIDTH)
        strip(many, s->O - o > PER_VECTOR ? 2 : 1, 0, t, a, every * s->stride * s->C, w + o, s->O,
              y + o, s->O);
}

/* Adds the gradient of w to dw, from the gradient dz of these outputs. */
static void weight_gradient(const Images *s, const float *x, const float *dz, npy_intp h,
                            npy_intp first, npy_intp every, npy_intp many, float *dw) {
    Terms t = {1, many, 0, every * s->stride * s->C};
    npy_intp run = s->columns * s->C;
    const float *a = x + h * s->stride * s->row + first * s->stride * s->C;
    for (npy_intp r = 0; r < s->rows; r++, a += s->row, dw += run * s->O)
        for (npy_intp o = 0; o < s->O; o += WIDTH)
            strip(run, s->O - o > PER_VECTOR ? 2 : 1, 1, t, a, 1, dz + o, s->O, dw + o, s->O);
}

static void outputs(const Images *s, const Outputs *q, const float *x, const float *w, float *room) {
    npy_intp width = q->w * q->O;
    float *y = q->y;
    for (npy_intp n = 0; n < q->n; n++, x += s->image)
        for (npy_intp h = 0; h < q->h; h++, y += width) {
            npy_intp at = y - q->y;
            if (q->largest) {
                for (int k = 0; k < 4; k++)
                    output_row(s, x, w, 2 * h + k / 2, k % 2, 2, q->w, room + k * width);
                pool_row(width, room, room + width, room + 2 * width, room + 3 * width, y,
                         q->largest + at);
            } else {
                output_row(s, x, w, h, 0, 1, q->w, y);
            }
            for (npy_intp i = 0; i < width; i += q->O)
                finish_row(q->O, y + i, y + i, q->bias, q->cuts);
        }
}

static void gradients(const Images *s, const Gradient *q, const float *x, float *dw, float *room) {
    npy_intp width = q->w * q->O, at = 0;
    float *g = room, *z = room + width;
    for (npy_intp n = 0; n < q->n; n++, x += s->image)
        for (npy_intp h = 0; h < q->h; h++, at += width) {
            for (npy_intp i = 0; i < q->w; i++) masked_gradient(q, n, h, i, g + i * q->O);
            if (q->largest) {
                unpool_row(width, g, q->largest + at, z, z + width, z + 2 * width, z + 3 * width);
                for (int k = 0; k < 4; k++)
                    weight_gradient(s, x, z + k * width, 2 * h + k / 2, k % 2, 2, q->w, dw);
            } else {
                weight_gradient(s, x, g, h, 0, 1, q->w, dw);
            }
        }
}

/* Reads the images x, the first argument; 0 if they are too small for the outputs. */
static int images_of(const Arguments *a, int pools, Images *s) {
    npy_intp many = pools ? 2 : 1, stride = a->number[0];
    *s = (Images){SIZE(a, 'n'), step(a, 0, 0), step(a, 0, 1), SIZE(a, 'C'),
                  SIZE(a, 'i'), SIZE(a, 'j'),  SIZE(a, 'O'),  stride};
    return s->O % PER_VECTOR == 0 && stride >= 1 &&
           SIZE(a, 'H') >= (SIZE(a, 'h') * many - 1) * stride + s->rows &&
           SIZE(a, 'W') >= (SIZE(a, 'w') * many - 1) * stride + s->columns;
}

static int direct_outputs(Arguments *a) {
    Images s;
    Outputs q = outputs_of(a, 2);
    if (!images_of(a, q.largest != NULL, &s)) return NOT_MADE_FOR;
    float *room = malloc(4 * q.w * q.O * sizeof *room);
    if (!room) return NO_MEMORY;
    outputs(&s, &q, a->at[0], a->at[1], room);
    free(room);
    return DONE;
}

static int direct_gradients(Arguments *a) {
    Images s;
    Gradient q = gradient_of(a, 1);
    if (!images_of(a, q.largest != NULL, &s)) return NOT_MADE_FOR;
    float *room = malloc(5 * q.w * q.O * sizeof *room);
    if (!room) return NO_MEMORY;
    gradients(&s, &q, a->at[0], a->at[5], room);
    free(room);
    return DONE;
}

#endif

Kernel direct_kernels[] = {
#ifdef FUSED
    PARTS("n", direct_outputs, "fnHWC fijCO " OUTPUTS " %"),
    PARTS("n", direct_gradients, "fnHWC " GRADIENT " =fijCO %"),
#endif
    END_OF_KERNELS,
};
