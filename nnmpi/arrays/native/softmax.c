/* Softmax and cross-entropy, as kernels/softmax.py describes them, in float32.

   n rows of C classes; 16 rows at a time are computed, and elements of a row are added in 16 lanes

   softmax_loop(x, y, axis)                        y = e^(x - top) / total
   log_softmax_loop(x, y, axis)                    y = x - top - log(total)
   softmax_gradient_loop(g, y, dx, axis)           dx = y (g - sum(g y))
   log_softmax_gradient_loop(g, y, dx, axis)       dx = g - e^y sum(g)
   cross_entropy_loop(z, labels, scale, loss, p, at)       loss (n), or (): the sum times scale;
                                                           at: where in p's memory the labels are
   cross_entropy_gradient_loop(p, at, g, scale, dz)    dz = (p - 1 at the label) (g scale) */
#include "lanes.h"

#define NARROW 32 /* up to this many classes p and dz are (C, n) in memory: rows side by side */

/* s = e^(x - top) and its total for up to 16 rows: m of them */
static void side_by_side(const float *x, int m, npy_intp C, float (*restrict s)[LANES],
                         float *restrict top, float *restrict total) {
    for (int l = 0; l < LANES; l++)
        for (npy_intp c = 0; c < C; c++) s[c][l] = x[(l < m ? l : 0) * C + c];
    for (int l = 0; l < LANES; l++) top[l] = s[0][l], total[l] = 0;
    for (npy_intp c = 1; c < C; c++)
        for (int l = 0; l < LANES; l++) top[l] = top[l] < s[c][l] ? s[c][l] : top[l];
    for (npy_intp c = 0; c < C; c++)
        for (int l = 0; l < LANES; l++) total[l] += s[c][l] = exp_of(s[c][l] - top[l]);
}

static void softmax(const float *x, float *y, npy_intp n, npy_intp C, int logs) {
    float s[NARROW][LANES], top[LANES], total[LANES];
    for (npy_intp i = 0; i < n; i += LANES, x += LANES * C, y += LANES * C) {
        int m = n - i < LANES ? n - i : LANES;
        if (C <= NARROW) side_by_side(x, m, C, s, top, total);
        for (int l = 0; l < m; l++) {
            float *row = y + l * C;
            if (C > NARROW) total[l] = exponentials(x + l * C, row, C, top + l);
            else
                for (npy_intp c = 0; c < C; c++) row[c] = s[c][l];
            if (!logs) times(row, C, 1 / total[l]);
            else {
                float log_total = log_of(total[l]), largest = top[l];
                for (npy_intp c = 0; c < C; c++) row[c] = x[l * C + c] - largest - log_total;
            }
        }
    }
}

static void softmax_gradient(const float *restrict g, const float *restrict y, float *restrict dx,
                             npy_intp n, npy_intp C, int logs) {
    for (npy_intp r = 0; r < n; r++, g += C, y += C, dx += C) {
        float lanes[LANES] = {0};
        if (logs) EACH_LANE(C, lanes[l] += g[i])
        else EACH_LANE(C, lanes[l] += g[i] * y[i])
        float sum = sum_of_lanes(lanes);
        if (logs) for (npy_intp c = 0; c < C; c++) dx[c] = g[c] - exp_of(y[c]) * sum;
        else for (npy_intp c = 0; c < C; c++) dx[c] = y[c] * (g[c] - sum);
    }
}

/* Stores in `at` where in p the labels are. */
static float cross_entropy(const float *z, const npy_int64 *labels, float *loss, float *p,
                           npy_int64 *at, npy_intp n, npy_intp C) {
    float s[NARROW][LANES], top[LANES], total[LANES], log_total[LANES], sum[LANES] = {0};
    for (npy_intp i = 0; i < n; i += LANES, z += LANES * C) {
        int m = n - i < LANES ? n - i : LANES;
        if (C <= NARROW) {
            side_by_side(z, m, C, s, top, total);
            for (npy_intp c = 0; c < C; c++)
                for (int l = 0; l < m; l++) p[c * n + i + l] = s[c][l] * (1 / total[l]);
        } else
            for (int l = 0; l < LANES; l++) {
                float *row = p + (i + l) * C;
                total[l] = l < m ? exponentials(z + l * C, row, C, top + l) : 1;
                if (l < m) times(row, C, 1 / total[l]);
            }
        for (int l = 0; l < LANES; l++) log_total[l] = log_of(total[l]);
        for (int l = 0; l < m; l++) {
            npy_intp label = index_below(C, labels + i + l);
            float found = log_total[l] - (z[l * C + label] - top[l]);
            sum[l] += found;
            if (loss) loss[i + l] = found;
            at[i + l] = C <= NARROW ? label * n + i + l : (i + l) * C + label;
        }
    }
    return sum_of_lanes(sum);
}

static void cross_entropy_gradient(const float *restrict p, const npy_int64 *at,
                                   const float *restrict g, int each, float factor,
                                   float *restrict dz, npy_intp n, npy_intp C) {
    for (npy_intp i = 0; i < n; i++, dz += C) {
        float scale = g[each ? i : 0] * factor;
        npy_intp label = index_below(n * C, at + i);
        if (C <= NARROW)
            for (npy_intp c = 0, k = i; c < C; c++, k += n) dz[c] = (p[k] - (k == label)) * scale;
        else {
            for (npy_intp c = 0; c < C; c++) dz[c] = p[i * C + c] * scale;
            npy_uintp own = (npy_uintp)(label - i * C); /* unless another thread changed it */
            if (own < (npy_uintp)C) dz[own] = (p[label] - 1) * scale;
        }
    }
}

/* The length of rows along an axis that is contiguous in memory; 0 if it is not. */
static npy_intp length(const Arguments *a) {
    int axes = a->array[0].axes, axis = (int)a->number[0];
    axis += axis < 0 ? axes : 0;
    return axis >= 0 && axis < axes && step(a, 0, axis) == 1 ? size(a, 0, axis) : 0;
}

#define ALONG(name, ...)                                                                           \
    static int name(Arguments *a) {                                                                \
        npy_intp C = length(a);                                                                    \
        if (!C) return NOT_MADE_FOR;                                                               \
        __VA_ARGS__;                                                                               \
        return DONE;                                                                               \
    }

ALONG(softmax_loop, softmax(a->at[0], a->at[1], a->n / C, C, 0))
ALONG(log_softmax_loop, softmax(a->at[0], a->at[1], a->n / C, C, 1))
ALONG(softmax_gradient_loop, softmax_gradient(a->at[0], a->at[1], a->at[2], a->n / C, C, 0))
ALONG(log_softmax_gradient_loop, softmax_gradient(a->at[0], a->at[1], a->at[2], a->n / C, C, 1))

/* 1 if narrow scores are stored side by side, 0 if they are stored in rows. */
static int is_turned(const Arguments *a, int array) {
    npy_intp n = SIZE(a, 'n'), C = SIZE(a, 'C');
    return (n == 1 || step(a, array, 0) == (C <= NARROW ? 1 : C)) &&
           (C == 1 || step(a, array, 1) == (C <= NARROW ? n : 1));
}

/* 1 if the array has one element, or one for each of n rows. */
static int is_one_or_each(const Arguments *a, int array) {
    int axes = a->array[array].axes;
    return !axes || (axes == 1 && size(a, array, 0) == SIZE(a, 'n'));
}

static int cross_entropy_loop(Arguments *a) {
    npy_intp n = SIZE(a, 'n'), C = SIZE(a, 'C');
    int each = a->array[2].axes;
    float *loss = a->at[2];
    if (!is_turned(a, 3) || !is_one_or_each(a, 2) || !are_below(C, a->at[1], n))
        return NOT_MADE_FOR;
    float sum = cross_entropy(a->at[0], a->at[1], each ? loss : NULL, a->at[3], a->at[4], n, C);
    if (!each) *loss = sum * (float)a->number[0];
    return DONE;
}

static int cross_entropy_gradient_loop(Arguments *a) {
    npy_intp n = SIZE(a, 'n'), C = SIZE(a, 'C');
    if (!is_turned(a, 0) || !is_one_or_each(a, 2) || !are_below(n * C, a->at[1], n))
        return NOT_MADE_FOR;
    cross_entropy_gradient(a->at[0], a->at[1], a->at[2], a->array[2].axes, a->number[0], a->at[3],
                           n, C);
    return DONE;
}

Kernel softmax_kernels[] = {
    KERNEL(softmax_loop, "f@ ~f@ %"),
    KERNEL(softmax_gradient_loop, "f@ f@ ~f@ %"),
    KERNEL(log_softmax_loop, "f@ ~f@ %"),
    KERNEL(log_softmax_gradient_loop, "f@ f@ ~f@ %"),
    KERNEL(cross_entropy_loop, "fnC in # ~f* ~f:nC ~in"),
    KERNEL(cross_entropy_gradient_loop, "f:nC in f* # ~fnC"),
    END_OF_KERNELS,
};
