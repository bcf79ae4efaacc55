/* Linear layers, with or without ReLU, in float32: one, or several small ones in one call.

   n  rows of x      K  their length      O  outputs

   linear_outputs(x, w, b, y, relu, large)          y (n, O) from x (n, K), w (O, K), b (O) or None
   linear_gradients(g, w, x, dx, dw, db, large)     from the gradient g of y before ReLU
   mlp_outputs(x, ws, bs, ys, relus)                layer by layer
   mlp_gradients(g, x, ws, ys, relus, dx, dws, dbs) from the last layer to the first

   Gradients that are None are not computed; without dw, x may be None. Layers with more than
   LARGEST multiplications are left to BLAS unless `large` is set; gradients also not if there are
   few rows. */
#include "epilogue.h"
#include "few_rows.h"
#include "half_products.h"
#include "near_products.h"

#ifdef FUSED
#define LARGEST (1 << 18) /* n K O */
#define SHORT 64          /* with FEW_ROWS rows w is not packed, from this K on, */
#define MOST (1 << 20)    /* and up to this K O: threads of BLAS would divide more */
#define TURNED 512        /* weights that are turned element by element */
#define SOME 512          /* columns that are summed at a time */

typedef struct {
    npy_intp n, K, O;
    const float *x, *w, *b, *y;
    int cuts;
} Layer;

static int is_small(const Layer *q) {
    return q->n * q->K <= LARGEST && q->n * q->K * q->O <= LARGEST;
}

static int has_few_rows(const Layer *q) {
    return q->n > 1 && q->n <= FEW_ROWS && q->K >= SHORT && q->O <= TERMS_AT_ONCE &&
           q->K * q->O <= MOST;
}

/* y for a layer with so few weights that it takes no time to turn them. */
static int near_forward(const Layer *q, float *y) {
    float turned[TURNED];
    if (q->K * q->O > TURNED) return 0;
    for (npy_intp o = 0; o < q->O; o++)
        for (npy_intp k = 0; k < q->K; k++) turned[k * q->O + o] = q->w[o * q->K + k];
    Sizes s = {q->n, q->O, q->K, q->K, 1, q->O, 1, q->O, 1};
    return near_product(&s, q->x, turned, y, (Ending){q->b, q->cuts});
}

/* y = x w^T; if O > n by its transpose, w x^T, which copies less. */
static int forward(const Layer *q, float *y) {
    Sizes s = {q->n, q->O, q->K, q->K, 1, 1, q->K, q->O, 1};
    Sizes turned = {q->O, q->n, q->K, q->K, 1, 1, q->K, 1, q->O};
    if (near_forward(q, y)) return 1;
    int done = has_few_rows(q) && few_outputs(q->n, q->K, q->O, q->x, q->w, y);
    if (!done && q->O > q->n) done = product(&turned, q->w, q->x, y, 0);
    else if (!done) done = product(&s, q->x, q->w, y, 0);
    if (!done) return 0;
    for (npy_intp i = 0; i < q->n * q->O; i += q->O) finish_row(q->O, y + i, y + i, q->b, q->cuts);
    return 1;
}

static int backward(const Layer *q, const float *g, float *dx, float *dw, float *db) {
    Sizes of_x = {q->n, q->K, q->O, q->O, 1, q->K, 1, q->K, 1};
    Sizes of_w = {q->O, q->K, q->n, 1, q->O, q->K, 1, q->K, 1};
    Sizes turned = {q->K, q->O, q->n, 1, q->K, q->O, 1, 1, q->K}; /* dw^T = x^T g */
    if (has_few_rows(q)) {
        if (dx) few_inputs(q->n, q->K, q->O, g, q->w, dx);
        if (dw) few_weights(q->n, q->K, q->O, g, q->x, dw);
    } else {
        if (dx && !product(&of_x, g, q->w, dx, 0)) return 0;
        int done = dw && q->K < PER_VECTOR && near_product(&turned, q->x, g, dw, (Ending){NULL});
        if (dw && !done && !product(&of_w, g, q->x, dw, 0)) return 0;
    }
    if (db) {
        memcpy(db, g, q->O * sizeof *db);
        for (npy_intp i = 1; i < q->n; i++)
            for (npy_intp o = 0; o < q->O; o++) db[o] += g[i * q->O + o];
    }
    return 1;
}

/* The 16-bit type that all arrays share, or 0. */
static int half_of_all(const Arguments *a) {
    int half = a->array[0].half;
    for (int i = 0; i < a->arrays; i++)
        if (a->at[i] && a->array[i].half != half) return 0;
    return half;
}

static int half_outputs(const Arguments *a, const Layer *q, int half) {
    Sizes s = {q->n, q->O, q->K, q->K, 1, 1, q->K, q->O, 1};
    float *bias = NULL;
    if (q->b && !(bias = malloc(q->O * sizeof *bias))) return NO_MEMORY;
    if (q->b) widen(half, a->at[2], bias, q->O);
    Finish f = {.bias = bias, .cuts = q->cuts};
    int done = half_product(&s, half, a->at[0], a->at[1], a->at[3], f);
    free(bias);
    return done ? DONE : NO_MEMORY;
}

/* Sums the columns of 16-bit rows in float32. */
static void half_column_sum(const Layer *q, int half, const npy_uint16 *g, npy_uint16 *db) {
    float sum[SOME], row[SOME];
    for (npy_intp o = 0; o < q->O; o += SOME) {
        npy_intp n = q->O - o < SOME ? q->O - o : SOME;
        memset(sum, 0, sizeof sum);
        for (npy_intp i = 0; i < q->n; i++) {
            widen(half, g + i * q->O + o, row, n);
            for (npy_intp k = 0; k < n; k++) sum[k] += row[k];
        }
        round_to(half, sum, db + o, n);
    }
}

static int half_gradients(const Arguments *a, const Layer *q, int half) {
    Sizes of_x = {q->n, q->K, q->O, q->O, 1, q->K, 1, q->K, 1};
    Sizes of_w = {q->O, q->K, q->n, 1, q->O, q->K, 1, q->K, 1};
    Finish none = {NULL};
    if (a->at[3] && !half_product(&of_x, half, a->at[0], a->at[1], a->at[3], none))
        return NO_MEMORY;
    if (a->at[4] && !half_product(&of_w, half, a->at[0], a->at[2], a->at[4], none))
        return NO_MEMORY;
    if (a->at[5]) half_column_sum(q, half, a->at[0], a->at[5]);
    return DONE;
}

static int linear_outputs(Arguments *a) {
    Layer q = {SIZE(a, 'n'), SIZE(a, 'K'), SIZE(a, 'O'), a->at[0], a->at[1], a->at[2]};
    q.cuts = a->number[0] != 0;
    if (a->halves) {
        without_gil(a, q.n * q.K * q.O);
        return half_of_all(a) ? half_outputs(a, &q, half_of_all(a)) : NOT_MADE_FOR;
    }
    if (!a->number[1] && !is_small(&q)) return NOT_MADE_FOR;
    without_gil(a, q.n * q.K * q.O);
    return forward(&q, a->at[3]) ? DONE : NO_MEMORY;
}

static int linear_gradients(Arguments *a) {
    Layer q = {SIZE(a, 'n'), SIZE(a, 'K'), SIZE(a, 'O'), a->at[2], a->at[1]};
    if (a->at[4] && !q.x) return NOT_MADE_FOR;
    if (a->halves) {
        without_gil(a, q.n * q.K * q.O);
        return half_of_all(a) ? half_gradients(a, &q, half_of_all(a)) : NOT_MADE_FOR;
    }
    if (!a->number[0] && !is_small(&q) && !has_few_rows(&q)) return NOT_MADE_FOR;
    without_gil(a, q.n * q.K * q.O);
    return backward(&q, a->at[0], a->at[3], a->at[4], a->at[5]) ? DONE : NO_MEMORY;
}

/* 1 if array i has a layer's shape, or is None where that is allowed. */
static int is_row(const Arguments *a, int i, const Layer *q) {
    return !a->at[i] || size(a, i, 0) == q->O;
}

static int is_matrix(const Arguments *a, int i, const Layer *q) {
    return !a->at[i] || (size(a, i, 0) == q->O && size(a, i, 1) == q->K);
}

/* Reads the layers that follow x, with ws from array w and ys from array y on. Returns their
   number, 0 if the shapes do not fit. */
static int layers_of(const Arguments *a, int x, int w, int y, Layer *layers) {
    int many = a->items[0];
    npy_intp K = SIZE(a, 'K');
    const float *rows = a->at[x];
    for (int i = 0; i < a->tuples; i++)
        if (a->items[i] != many || !many) return 0;
    for (int i = 0; i == 0 || i < many; i++) {
        layers[i] = (Layer){SIZE(a, 'n'), K, size(a, w + i, 0), rows, a->at[w + i], NULL,
                            a->at[y + i], a->number[i] != 0};
        if (!is_matrix(a, w + i, layers + i) || size(a, y + i, 1) != layers[i].O ||
            !is_small(layers + i))
            return 0;
        rows = a->at[y + i], K = layers[i].O;
    }
    return many;
}

static int mlp_outputs(Arguments *a) {
    Layer layers[MAX_NUMBERS];
    int w = 1, b = w + a->items[0], y = b + a->items[0], many = layers_of(a, 0, w, y, layers);
    for (int i = 0; i < many; i++)
        if (!is_row(a, b + i, layers + i)) return NOT_MADE_FOR;
    for (int i = 0; i < many; i++) {
        layers[i].b = a->at[b + i];
        if (!forward(layers + i, a->at[y + i])) return NO_MEMORY;
    }
    return many ? DONE : NOT_MADE_FOR;
}

static int mlp_gradients(Arguments *a) {
    Layer layers[MAX_NUMBERS];
    int w = 2, y = w + a->items[0], dx = y + a->items[0], dw = dx + 1, db = dw + a->items[0];
    int many = layers_of(a, 1, w, y, layers);
    if (!many || size(a, 0, 1) != layers[many - 1].O) return NOT_MADE_FOR;
    npy_intp widest = 0;
    for (int i = 0; i < many; i++) {
        if (!is_matrix(a, dw + i, layers + i) || !is_row(a, db + i, layers + i))
            return NOT_MADE_FOR;
        widest = layers[i].O > widest ? layers[i].O : widest;
    }
    widest *= layers[0].n;
    float *room = malloc(2 * widest * sizeof *room);
    if (!room) return NO_MEMORY;
    const float *g = a->at[0];
    int done = 1;
    for (int i = many - 1; i >= 0 && done; i--) {
        const Layer *q = layers + i;
        float *here = room + (i % 2) * widest;
        if (q->cuts) {
            relu_gradient_row(q->n * q->O, g, q->y, here);
            g = here;
        }
        float *before = i ? room + (i + 1) % 2 * widest : a->at[dx];
        done = backward(q, g, before, a->at[dw + i], a->at[db + i]);
        g = before;
    }
    free(room);
    return done ? DONE : NO_MEMORY;
}
#endif

Kernel linear_kernels[] = {
#ifdef FUSED
    HALVES(linear_outputs, "fnK fOK ?fO ~fnO ! !"),
    HALVES(linear_gradients, "fnO fOK ?fnK ~?fnK ~?fOK ~?fO !"),
    DECIDES(mlp_outputs, "fnK (f__) (?f_) (~fn_) (!)"),
    DECIDES(mlp_gradients, "fn_ fnK (f__) (fn_) (!) ~?fnK (~?f__) (~?f_)"),
#endif
    END_OF_KERNELS,
};
