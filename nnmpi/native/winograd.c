/* Winograd's transforms of 3x3 convolutions, in float32, channels last.

   n images of H x W pixels with C channels, padded by `pad`, in th x tw tiles each

   winograd_tiles(x, V, side, pad, th, tw)     V (tile^2, n th tw C) from x (n, H, W, C)
   winograd_images(V, x, side, pad, th, tw)    and back, added up where tiles overlap

   winograd_outputs(M, y, left, upper, bias, zero, side, th, tw)
       y (n, h, w, O) from M (tile^2, n th tw O), after pooling, bias and ReLU
   winograd_gradients(g, y, left, upper, db, M, side, th, tw)
       and back: M from the gradient g of y, and the sums of what passes ReLU added to db */
#include "epilogue.h"
#include <stdlib.h>

typedef struct {
    npy_intp n, H, W, C, pad, th, tw;
    npy_intp image, row, column; /* numbers from one to the next */
    npy_intp plane;              /* the same of V */
} Grid;

/* The channels of a pixel of the padded image; NULL in the padding. */
static inline float *pixel(const Grid *q, float *images, npy_intp n, npy_intp h, npy_intp w) {
    h -= q->pad, w -= q->pad;
    if (h < 0 || h >= q->H || w < 0 || w >= q->W) return NULL;
    return images + n * q->image + h * q->row + w * q->column;
}

/* The side x side raw outputs z of tile (i, j) of image n, to their place. */
static void put_tile(const Outputs *q, npy_intp n, npy_intp i, npy_intp j, int side, const float *z) {
    int step = q->left ? 2 : 1, many = side / step;
    npy_intp O = q->O, S = q->n * q->h * q->w * O;
    for (int a = 0; a < many; a++)
        for (int b = 0; b < many; b++) {
            npy_intp h = i * many + a, w = j * many + b;
            if (h >= q->h || w >= q->w) continue;
            npy_intp at = ((n * q->h + h) * q->w + w) * O;
            const float *from = z + (a * side + b) * step * O;
            if (q->left) {
                pool_row(O, from, from + O, from + side * O, from + (side + 1) * O, q->y + at,
                         q->left + at, q->left + S + at, q->upper + at);
                from = q->y + at;
            }
            finish_row(O, from, q->y + at, q->bias, q->cuts);
        }
}

/* And back: the gradients z of its raw outputs; `row` has room for O numbers. */
static void take_tile(const Gradient *q, npy_intp n, npy_intp i, npy_intp j, int side, float *z,
                      float *row) {
    int step = q->left ? 2 : 1, many = side / step;
    npy_intp O = q->O, S = q->n * q->h * q->w * O;
    if ((i + 1) * many > q->h || (j + 1) * many > q->w) memset(z, 0, side * side * O * sizeof *z);
    for (int a = 0; a < many; a++)
        for (int b = 0; b < many; b++) {
            npy_intp h = i * many + a, w = j * many + b;
            if (h >= q->h || w >= q->w) continue;
            npy_intp at = ((n * q->h + h) * q->w + w) * O;
            float *to = z + (a * side + b) * step * O;
            masked_gradient(q, n, h, w, q->left ? row : to);
            if (q->left)
                unpool_row(O, row, q->left + at, q->left + S + at, q->upper + at, to, to + O,
                           to + side * O, to + (side + 1) * O);
        }
}

#define SIDE 2
#define OF(name) name##_2
#include "winograd.h"
#undef SIDE
#undef OF

#define SIDE 4
#define OF(name) name##_4
#include "winograd.h"
#undef SIDE
#undef OF

/* Whether planes (T, M) have the numbers of n th tw tiles, for outputs of this side, of C channels. */
static int are_tiles(const Arguments *a, npy_intp side, npy_intp th, npy_intp tw, npy_intp C) {
    npy_intp M = SIZE(a, 'M'), of_tile = SIZE(a, 'n') * C;
    return (side == 2 || side == 4) && SIZE(a, 'T') == (side + 2) * (side + 2) && th > 0 &&
           tw > 0 && M % of_tile == 0 && M / of_tile == th * tw;
}

/* Of images and planes V, arrays of these numbers, or back. */
static int between(Arguments *a, int images, int planes, int back) {
    const double *c = a->number;
    npy_intp side = c[0];
    float *x = a->at[images], *V = a->at[planes];
    Grid q = {SIZE(a, 'n'), SIZE(a, 'H'), SIZE(a, 'W'), SIZE(a, 'C'), c[1], c[2], c[3]};
    q.image = step(a, images, 0), q.row = step(a, images, 1), q.column = step(a, images, 2);
    q.plane = step(a, planes, 0);
    if (q.pad < 0 || !are_tiles(a, side, q.th, q.tw, q.C)) return NOT_MADE_FOR;
    float *outside = calloc(q.C, sizeof(float));
    if (!outside) return NO_MEMORY;
    if (back) (side == 2 ? images_2 : images_4)(&q, V, x, outside);
    else (side == 2 ? tiles_2 : tiles_4)(&q, x, V, outside);
    free(outside);
    return DONE;
}

static int winograd_tiles(Arguments *a) { return between(a, 0, 1, 0); }

static int winograd_images(Arguments *a) { return between(a, 1, 0, 1); }

/* Whether so many tiles cover the h x w outputs, pooled or not. */
static int cover(const Arguments *a, int pools, npy_intp *th, npy_intp *tw) {
    npy_intp side = a->number[0], many = pools ? side / 2 : side;
    *th = a->number[1], *tw = a->number[2];
    return are_tiles(a, side, *th, *tw, SIZE(a, 'O')) && SIZE(a, 'h') <= *th * many &&
           SIZE(a, 'w') <= *tw * many;
}

static int winograd_outputs(Arguments *a) {
    npy_intp th, tw;
    Outputs q;
    if (!outputs_of(a, 1, &q) || !cover(a, q.left != NULL, &th, &tw)) return NOT_MADE_FOR;
    float *room = malloc(16 * q.O * sizeof *room);
    if (!room) return NO_MEMORY;
    (a->number[0] == 2 ? outputs_2 : outputs_4)(a->at[0], step(a, 0, 0), &q, th, tw, room);
    free(room);
    return DONE;
}

static int winograd_gradients(Arguments *a) {
    npy_intp th, tw;
    Gradient q;
    if (!gradient_of(a, 0, &q) || !cover(a, q.left != NULL, &th, &tw)) return NOT_MADE_FOR;
    float *room = malloc(17 * q.O * sizeof *room);
    if (!room) return NO_MEMORY;
    (a->number[0] == 2 ? gradients_2 : gradients_4)(&q, a->at[5], step(a, 5, 0), th, tw, room);
    free(room);
    return DONE;
}

Kernel winograd_kernels[] = {
    KERNEL(winograd_tiles, "f-nHWC =f-TM % % % %"),
    KERNEL(winograd_images, "f-TM =f-nHWC % % % %"),
    KERNEL(winograd_outputs, "f-TM " OUTPUTS " % % %"),
    KERNEL(winograd_gradients, GRADIENT " =f-TM % % %"),
    END_OF_KERNELS,
};
