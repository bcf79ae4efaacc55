/* Winograd's transforms of 3x3 convolutions, in float32, channels last.

   n images of H x W pixels with C channels, padded by `pad`, in i x j tiles of side x side outputs;
   T = (side + 2)^2, the pixels of a tile of inputs

   winograd_tiles(x, V, pad)     V (T, n, i, j, C) from x (n, H, W, C)
   winograd_images(V, x, pad)    the transpose: x from V, added up where tiles overlap

   winograd_outputs(M, y, largest, bias, zero)
       y (n, h, w, O) from M (T, n, i, j, O), after pooling, bias and ReLU
   winograd_gradients(g, y, largest, db, M)
       the transpose: M from the gradient g of y; adds the sums of the gradient before ReLU to db

   winograd_weights(w, U)        U (T, R, C) from w (3, 3, R, C) with any strides
   winograd_unweights(U, w)      the transpose: w (R, C, 9) from U (T, R, C)

   Tiles that are written are factors of products and may have 16 bits: each is rounded once. */
#include "epilogue.h"
#include "halves.h"

/* V or M: one plane for each pixel of a tile. */
typedef struct {
    npy_intp side, down, across, C;      /* tiles of an image */
    npy_intp plane, image, row, column; /* elements from one to the next */
    int half;
    char *at;
} Tiles;

static inline void *tile(const Tiles *t, npy_intp n, npy_intp i, npy_intp j) {
    npy_intp itemsize = t->half ? sizeof(npy_uint16) : sizeof(float);
    return t->at + (n * t->image + i * t->row + j * t->column) * itemsize;
}

/* Rounds the pixels of a tile from float32 to 16 bits. */
static void round_tile(const Tiles *t, npy_intp pixels, const float *from, npy_uint16 *to) {
    for (npy_intp k = 0; k < pixels; k++, from += t->C, to += t->plane)
        round_to(t->half, from, to, t->C);
}

typedef struct {
    npy_intp n, H, W, pad;
    npy_intp image, row, column; /* elements from one to the next */
} Grid;

/* The channels of a pixel of the padded image; NULL in the padding. */
static inline float *pixel(const Grid *q, float *images, npy_intp n, npy_intp h, npy_intp w) {
    h -= q->pad, w -= q->pad;
    if (h < 0 || h >= q->H || w < 0 || w >= q->W) return NULL;
    return images + n * q->image + h * q->row + w * q->column;
}

/* Pools and finishes the side x side raw outputs z of tile (i, j) of image n, and stores them. */
static void put_tile(const Outputs *q, npy_intp n, npy_intp i, npy_intp j, int side, const float *z) {
    int step = q->largest ? 2 : 1, many = side / step;
    npy_intp O = q->O;
    for (int a = 0; a < many; a++)
        for (int b = 0; b < many; b++) {
            npy_intp h = i * many + a, w = j * many + b;
            if (h >= q->h || w >= q->w) continue;
            npy_intp at = ((n * q->h + h) * q->w + w) * O;
            const float *from = z + (a * side + b) * step * O;
            if (q->largest) {
                pool_row(O, from, from + O, from + side * O, from + (side + 1) * O, q->y + at,
                         q->largest + at);
                from = q->y + at;
            }
            finish_row(O, from, q->y + at, q->bias, q->cuts);
        }
}

/* The transpose of put_tile: the gradients z of the raw outputs; `row` has room for O elements. */
static void take_tile(const Gradient *q, npy_intp n, npy_intp i, npy_intp j, int side, float *z,
                      float *row) {
    int step = q->largest ? 2 : 1, many = side / step;
    npy_intp O = q->O;
    if ((i + 1) * many > q->h || (j + 1) * many > q->w) memset(z, 0, side * side * O * sizeof *z);
    for (int a = 0; a < many; a++)
        for (int b = 0; b < many; b++) {
            npy_intp h = i * many + a, w = j * many + b;
            if (h >= q->h || w >= q->w) continue;
            npy_intp at = ((n * q->h + h) * q->w + w) * O;
            float *to = z + (a * side + b) * step * O;
            masked_gradient(q, n, h, w, q->largest ? row : to);
            if (q->largest)
                unpool_row(O, row, q->largest + at, to, to + O, to + side * O,
                           to + (side + 1) * O);
        }
}

/* w and U: R x C pairs of channels. */
typedef struct {
    npy_intp rows, C;
    npy_intp w[4], plane, row; /* elements from one to the next */
} Weights;

#define GROUP 16 /* channels at a time */

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

#define MOST_PIXELS 36 /* pixels of a tile */

/* Reads the tiles of argument x; 0 if there is no code for their size. */
static int tiles_of(const Arguments *a, int x, Tiles *t) {
    npy_intp T = SIZE(a, 'T');
    *t = (Tiles){T == 16 ? 2 : 4, SIZE(a, 'i'), SIZE(a, 'j'), size(a, x, 4), step(a, x, 0),
                 step(a, x, 1), step(a, x, 2), step(a, x, 3), a->array[x].half, a->at[x]};
    return T == 16 || T == 36;
}

/* Transforms images to planes V, the arguments with these numbers, or back. */
static int between(Arguments *a, int images, int planes, int back) {
    Tiles t;
    Grid q = {SIZE(a, 'n'), SIZE(a, 'H'), SIZE(a, 'W'), a->number[0]};
    q.image = step(a, images, 0), q.row = step(a, images, 1), q.column = step(a, images, 2);
    if (!tiles_of(a, planes, &t) || q.pad < 0) return NOT_MADE_FOR;
    float *room = calloc((1 + MOST_PIXELS) * t.C, sizeof *room);
    if (!room) return NO_MEMORY;
    if (back) (t.side == 2 ? images_2 : images_4)(&q, &t, a->at[images], room);
    else (t.side == 2 ? tiles_2 : tiles_4)(&q, &t, a->at[images], room, room + t.C);
    free(room);
    return DONE;
}

static int winograd_tiles(Arguments *a) { return between(a, 0, 1, 0); }

static int winograd_images(Arguments *a) { return between(a, 1, 0, 1); }

/* 1 if the tiles cover the h x w outputs, pooled or not. */
static int cover(const Arguments *a, int planes, int pools, Tiles *t) {
    if (!tiles_of(a, planes, t)) return 0;
    npy_intp many = pools ? t->side / 2 : t->side;
    return SIZE(a, 'h') <= t->down * many && SIZE(a, 'w') <= t->across * many;
}

static int winograd_outputs(Arguments *a) {
    Tiles t;
    Outputs q = outputs_of(a, 1);
    if (!cover(a, 0, q.largest != NULL, &t)) return NOT_MADE_FOR;
    float *room = malloc(16 * q.O * sizeof *room);
    if (!room) return NO_MEMORY;
    (t.side == 2 ? outputs_2 : outputs_4)(&t, &q, room);
    free(room);
    return DONE;
}

static int winograd_gradients(Arguments *a) {
    Tiles t;
    Gradient q = gradient_of(a, 0);
    if (!cover(a, 4, q.largest != NULL, &t)) return NOT_MADE_FOR;
    float *room = malloc((17 + MOST_PIXELS) * q.O * sizeof *room);
    if (!room) return NO_MEMORY;
    (t.side == 2 ? gradients_2 : gradients_4)(&q, &t, room);
    free(room);
    return DONE;
}

/* Reads the planes U, the argument with this number. */
static Weights weights_of(const Arguments *a, int U) {
    return (Weights){SIZE(a, 'R'), SIZE(a, 'C'), {0}, step(a, U, 0), step(a, U, 1)};
}

static int winograd_weights(Arguments *a) {
    npy_intp T = SIZE(a, 'T');
    Weights s = weights_of(a, 1);
    if (T != 16 && T != 36) return NOT_MADE_FOR;
    for (int i = 0; i < 4; i++) s.w[i] = step(a, 0, i);
    (T == 16 ? weights_2 : weights_4)(&s, a->at[0], a->at[1]);
    return DONE;
}

static int winograd_unweights(Arguments *a) {
    npy_intp T = SIZE(a, 'T');
    Weights s = weights_of(a, 0);
    if (T != 16 && T != 36) return NOT_MADE_FOR;
    (T == 16 ? unweights_2 : unweights_4)(&s, a->at[0], a->at[1]);
    return DONE;
}

Kernel winograd_kernels[] = {
    KERNEL(winograd_weights, "f:33RC ~f-TRC"),
    KERNEL(winograd_unweights, "f-TRC ~fRC9"),
    PARTS("n", winograd_tiles, "f-nHWC ~h-TnijC %"),
    PARTS("n", winograd_images, "f-TnijC ~f-nHWC %"),
    PARTS("n", winograd_outputs, "f-TnijO " OUTPUTS),
    PARTS("n", winograd_gradients, GRADIENT " ~h-TnijO"),
    END_OF_KERNELS,
};
