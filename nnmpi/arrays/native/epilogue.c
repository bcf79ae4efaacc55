/* Pooling, bias and ReLU, as kernels/epilogue.py describes them, in float32 and with its bits.

   pool_loop(z, y, largest)              y (S) and largest (S) from z (2, 2, S)
   unpool_loop(g, largest, dz)           dz (2, 2, S) from g (S)
   bias_relu_loop(y, bias or None, zero or None)    y (rows, width), in place
   relu_gradient_loop(g, y, out)         out = g where y > 0 */
#include "epilogue.h"

#define MOST_AXES 8

/* Rows of z (2, 2, S): S without its last axis, in order. */
typedef struct {
    int axes;
    npy_intp rows, width, size[MOST_AXES], by[MOST_AXES], at[MOST_AXES], offset;
    npy_intp down, right; /* elements between neighbours in a window */
} Windows;

/* Reads the windows of argument z. */
static int windows(const Arguments *a, int z, Windows *w) {
    int n = a->array[z].axes;
    if (n < 3 || n - 3 > MOST_AXES) return 0;
    *w = (Windows){.axes = n - 3, .rows = 1, .width = size(a, z, n - 1)};
    w->down = step(a, z, 0), w->right = step(a, z, 1);
    for (int i = 0; i < w->axes; i++) {
        w->size[i] = size(a, z, i + 2), w->by[i] = step(a, z, i + 2);
        w->rows *= w->size[i];
    }
    return 1;
}

static void next(Windows *w) {
    for (int i = w->axes - 1; i >= 0; i--) {
        w->offset += w->by[i];
        if (++w->at[i] < w->size[i]) return;
        w->offset -= w->by[i] * w->size[i], w->at[i] = 0;
    }
}

static void pool(Windows w, const float *z, float *y, npy_uint8 *largest) {
    for (npy_intp r = 0; r < w.rows; r++, next(&w)) {
        const float *a = z + w.offset, *b = a + w.right, *c = a + w.down, *d = c + w.right;
        npy_intp s = r * w.width;
        pool_row(w.width, a, b, c, d, y + s, largest + s);
    }
}

static void unpool(Windows w, const float *g, const npy_uint8 *largest, float *dz) {
    for (npy_intp r = 0; r < w.rows; r++, next(&w)) {
        float *a = dz + w.offset, *b = a + w.right, *c = a + w.down, *d = c + w.right;
        npy_intp s = r * w.width;
        unpool_row(w.width, g + s, largest + s, a, b, c, d);
    }
}

static int pool_loop(Arguments *a) {
    Windows w;
    if (!windows(a, 0, &w)) return NOT_MADE_FOR;
    pool(w, a->at[0], a->at[1], a->at[2]);
    return DONE;
}

static int unpool_loop(Arguments *a) {
    Windows w;
    if (!windows(a, 2, &w)) return NOT_MADE_FOR;
    unpool(w, a->at[0], a->at[1], a->at[2]);
    return DONE;
}

static int bias_relu_loop(Arguments *a) {
    float *y = a->at[0];
    for (npy_intp r = 0, n = SIZE(a, 'W'); r < SIZE(a, 'R'); r++, y += n)
        finish_row(n, y, y, a->at[1], a->at[2] != NULL);
    return DONE;
}

static int relu_gradient_loop(Arguments *a) {
    relu_gradient_row(a->n, a->at[0], a->at[1], a->at[2]);
    return DONE;
}

Outputs outputs_of(const Arguments *a, int first) {
    void *const *at = a->at + first;
    return (Outputs){SIZE(a, 'n'), SIZE(a, 'h'), SIZE(a, 'w'), SIZE(a, 'O'),
                     at[0],        at[1],        at[2],        at[3] != NULL};
}

Gradient gradient_of(const Arguments *a, int first) {
    void *const *at = a->at + first;
    return (Gradient){SIZE(a, 'n'),      SIZE(a, 'h'),      SIZE(a, 'w'),      SIZE(a, 'O'),
                      step(a, first, 0), step(a, first, 1), step(a, first, 2), step(a, first, 3),
                      numbers_of(a, first), numbers_of(a, first + 1), at[2], at[3]};
}

Kernel epilogue_kernels[] = {
    PARTS("*", pool_loop, "f-22* ~f* ~b*"),
    PARTS("*", unpool_loop, "f* b* ~f-22*"),
    PARTS("R", bias_relu_loop, "=fRW ?fW ?fW"),
    PARTS("@", relu_gradient_loop, "f@ f@ ~f@"),
    END_OF_KERNELS,
};
