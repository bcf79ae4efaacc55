/* Optimizer steps in one pass over memory. Each element is computed by the operations of
   kernels/steps.py in their order, so the bits are NumPy's.

   16-bit arrays, and gradients with a factor, are copied to float32 a block at a time, in the L1
   cache. If masters p have 16-bit values, a block of these is merged into p before its step, and is
   p rounded again after it.

   squares_loop(g, factor, sums)   sums of squares of factor * g, one for each BLOCK_OF_SQUARES */
#include "halves.h"
#include "lanes.h"
#include <math.h>

#define REAL float
#define OF(name) name##_float
#define ROOT sqrtf
#include "optimizers.h"
#undef REAL
#undef OF
#undef ROOT

#define REAL double
#define OF(name) name##_double
#define ROOT sqrt
#include "optimizers.h"

typedef void (*Step)(const Arguments *, const double *);

#define MOST_STEP_ARRAYS 5 /* apart from 16-bit values */
#define GRADIENT 1         /* the index of the gradient among the arrays */
#define NONE -1

/* A step on `count` arrays; `values` is the index of the array with the 16-bit values of the first
   one, or NONE; gradients are multiplied by `factor` first. */
typedef struct {
    Step of_float, of_double;
    int arrays, values;
    double factor;
} Rule;

/* Steps at a time on at most SOME elements, with float32 copies of 16-bit arrays. */
static void converted(Arguments *a, const Rule *r) {
    float copy[MOST_STEP_ARRAYS][SOME];
    void *at[MOST_STEP_ARRAYS + 1];
    memcpy(at, a->at, r->arrays * sizeof *at);
    for (int k = 0; k < r->arrays; k++) {
        int half = a->array[k].half, is_scaled = k == GRADIENT && r->factor != 1;
        if (!at[k] || k == r->values || !(half || is_scaled)) continue;
        convert(half, 0, at[k], copy[k], a->n);
        if (is_scaled) times(copy[k], a->n, (float)r->factor);
        a->at[k] = copy[k];
    }
    void *values = r->values == NONE ? NULL : at[r->values];
    if (values) merge(a->array[r->values].half, a->at[0], values, a->n);
    r->of_float(a, a->number);
    if (values) round_to(a->array[r->values].half, a->at[0], values, a->n);
    for (int k = 0; k < r->arrays; k++) {
        if (a->at[k] != at[k] && a->array[k].is_written)
            round_to(a->array[k].half, copy[k], at[k], a->n);
        a->at[k] = at[k];
    }
}

static int step_of(Arguments *a, const Rule *r) {
    int is_plain = !a->halves && r->factor == 1;
    int values = r->values != NONE && a->at[r->values];
    if (a->type != NPY_FLOAT && !is_plain) return NOT_MADE_FOR;
    if (values && (a->array[0].half || !a->array[r->values].half)) return NOT_MADE_FOR;
    without_gil(a, a->bytes);
    npy_intp whole = a->n, most = is_plain ? whole : SOME;
    for (npy_intp i = 0; i < whole; i += most) {
        a->n = whole - i < most ? whole - i : most;
        if (!is_plain) converted(a, r);
        else if (a->type == NPY_FLOAT) r->of_float(a, a->number);
        else r->of_double(a, a->number);
        for (int k = 0; k < r->arrays; k++)
            if (a->at[k]) a->at[k] = (char *)a->at[k] + a->n * a->array[k].itemsize;
    }
    return DONE;
}

/* Defines a kernel of `count` arrays, of which `values` is the index of the 16-bit values, or
   NONE. */
#define STEP(name, of, count, values, factor, fits)                                                \
    static int name(Arguments *a) {                                                                \
        Rule rule = {of##_float, of##_double, count, values, factor};                              \
        return fits ? step_of(a, &rule) : NOT_MADE_FOR;                                            \
    }

/* p, factor */
STEP(scale_loop, scale, 1, NONE, 1, 1)
/* p, g, m, v, largest or None, values or None, beta1, beta2, a, e, decay, shrink, factor of g */
STEP(adam_loop, adam, 6, 5, a->number[6], 1)
/* p, g, velocity or None, values or None, momentum, decay, lr, rate of the velocity, whether g
   moves p, as it does without a velocity, factor of g */
STEP(sgd_loop, sgd, 4, 3, a->number[5], a->at[2] || a->number[4])
/* p, g, squares, velocity or None, mean or None, values or None, lr, alpha, 1 - alpha, eps, decay,
   momentum, factor of g */
STEP(rmsprop_loop, rmsprop, 6, 5, a->number[6], 1)

#define BLOCK_OF_SQUARES 8192
#define SQUARES (4 * LANES) /* several vectors of sums: one alone would wait for itself */

/* The sum of squares of n elements; lane l adds up those with i % SQUARES = l. */
static float squares_of_float(const float *g, npy_intp n, float factor) {
    float lane[SQUARES] = {0}, sum[LANES];
    npy_intp i = 0;
    for (; i + SQUARES <= n; i += SQUARES)
        for (int l = 0; l < SQUARES; l++) lane[l] += g[i + l] * factor * (g[i + l] * factor);
    for (int l = 0; i < n; i++, l++) lane[l] += g[i] * factor * (g[i] * factor);
    for (int l = 0; l < LANES; l++)
        sum[l] = lane[l] + lane[l + LANES] + (lane[l + 2 * LANES] + lane[l + 3 * LANES]);
    return sum_of_lanes(sum);
}

static double squares_of_double(const double *g, npy_intp n, double factor) {
    double lane[LANES] = {0}, sum = 0;
    EACH_LANE(n, lane[l] += g[i] * factor * (g[i] * factor));
    for (int l = 0; l < LANES; l++) sum += lane[l];
    return sum;
}

/* The sum of squares of float32 or 16-bit elements, in parts that stay in cache. */
static float squares_of(int half, const char *g, npy_intp n, float factor) {
    float wide[SOME], sum = 0;
    int width = half ? sizeof(npy_uint16) : sizeof(float);
    for (npy_intp i = 0; i < n; i += SOME, g += SOME * width) {
        npy_intp some = n - i < SOME ? n - i : SOME;
        if (half) widen(half, (const npy_uint16 *)g, wide, some);
        sum += squares_of_float(half ? wide : (const float *)g, some, factor);
    }
    return sum;
}

static int squares_loop(Arguments *a) {
    npy_intp n = numbers(a, 0), sums = numbers(a, 1);
    int half = a->array[0].half, is_double = a->type == NPY_DOUBLE;
    if (a->array[1].half || (is_double && half)) return NOT_MADE_FOR;
    if (sums != (n + BLOCK_OF_SQUARES - 1) / BLOCK_OF_SQUARES) return NOT_MADE_FOR;
    without_gil(a, a->bytes);
    for (npy_intp k = 0; k < sums; k++) {
        npy_intp i = k * BLOCK_OF_SQUARES, some = k + 1 < sums ? BLOCK_OF_SQUARES : n - i;
        const char *g = (char *)a->at[0] + i * a->array[0].itemsize;
        double factor = a->number[0];
        if (is_double) ((double *)a->at[1])[k] = squares_of_double((double *)g, some, factor);
        else ((float *)a->at[1])[k] = squares_of(half, g, some, factor);
    }
    return DONE;
}

Kernel optimizer_kernels[] = {
    HALVES(scale_loop, "=r@ #"),
    HALVES(adam_loop, "=r@ r@ =r@ =r@ =?r@ =?r@ # # # # # # #"),
    HALVES(sgd_loop, "=r@ r@ =?r@ =?r@ # # # # ! #"),
    HALVES(rmsprop_loop, "=r@ r@ =r@ =?r@ =?r@ =?r@ # # # # # # #"),
    HALVES(squares_loop, "r_ # ~r_"),
    END_OF_KERNELS,
};
