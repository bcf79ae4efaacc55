/* Softmax and cross-entropy, as kernels/softmax.py describes them, in float32.

   n rows of C classes; rows are taken in blocks of 16, numbers of a row are added in 16 lanes

   softmax_loop(x, y, axis)                        y = e^(x - top) / total
   log_softmax_loop(x, y, axis)                    y = x - top - log(total)
   softmax_gradient_loop(g, y, dx, axis)           dx = y (g - sum(g y))
   log_softmax_gradient_loop(g, y, dx, axis)       dx = g - e^y sum(g)
   cross_entropy_loop(z, labels, scale, loss, p, at)       loss of each row, or of no axes: the sum
                                                           times scale; at: labels in memory of p
   cross_entropy_gradient_loop(p, at, g, scale, dz)    dz = (p - 1 at the label) (g scale) */
#include "lanes.h"
#include <string.h>

#define NARROW 32 /* up to so many classes, rows are side by side: p and dz are (C, n) in memory */

/* s = e^(x - top) and its total, of 16 rows, the first m of which are there */
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

/* `at` has the labels, and gets where in p they are. */
static float cross_entropy(const float *z, float *loss, float *p, npy_int64 *at, npy_intp n,
                           npy_intp C) {
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
            npy_int64 label = at[i + l];
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
    npy_intp by_row = C <= NARROW ? 1 : C, by_class = C <= NARROW ? n : 1;
    if (!each)
        for (npy_intp i = 0; i < n * C; i++) dz[i] = p[i] * (g[0] * factor);
    else
        for (npy_intp i = 0; i < n; i++)
            for (npy_intp c = 0, k = i * by_row; c < C; c++, k += by_class)
                dz[k] = p[k] * (g[i] * factor);
    for (npy_intp i = 0; i < n; i++) dz[at[i]] = (p[at[i]] - 1) * (g[each ? i : 0] * factor);
}

/* Rows of arrays, the last of which is written, along an axis whose neighbours are neighbours in
   memory. */
static PyObject *along(PyObject *const *args, Py_ssize_t count, int arrays, int logs) {
    Flat x;
    double axis;
    if (count != arrays + 1 || !flat_arrays(args, arrays, 1u << (arrays - 1), &x) ||
        x.type != NPY_FLOAT || !numbers(args + arrays, 1, &axis) || x.n == 0)
        Py_RETURN_NOTIMPLEMENTED;
    PyArrayObject *a = (PyArrayObject *)args[0];
    int i = axis < 0 ? (int)axis + PyArray_NDIM(a) : (int)axis;
    if (i < 0 || i >= PyArray_NDIM(a) || PyArray_STRIDE(a, i) != sizeof(float))
        Py_RETURN_NOTIMPLEMENTED;
    for (int k = 0; k < arrays; k++)
        if (!x.at[k]) Py_RETURN_NOTIMPLEMENTED;
    npy_intp C = PyArray_DIM(a, i), n = x.n / C;
    WITHOUT_GIL(4 * x.bytes, if (arrays == 2) softmax(x.at[0], x.at[1], n, C, logs);
                else softmax_gradient(x.at[0], x.at[1], x.at[2], n, C, logs));
    Py_RETURN_NONE;
}

#define ALONG(name, arrays, logs)                                                                  \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t count) {               \
        return along(args, count, arrays, logs);                                                   \
    }

ALONG(softmax_loop, 2, 0)
ALONG(log_softmax_loop, 2, 1)
ALONG(softmax_gradient_loop, 3, 0)
ALONG(log_softmax_gradient_loop, 3, 1)

/* float32 scores of at least one row and class, in rows, or `turned` if they are narrow */
static float *scores(PyObject *o, int turned, int writes, npy_intp *n, npy_intp *C) {
    if (!is_of_numbers(o, writes)) return NULL;
    PyArrayObject *a = (PyArrayObject *)o;
    if (PyArray_TYPE(a) != NPY_FLOAT || PyArray_NDIM(a) != 2 || PyArray_SIZE(a) == 0) return NULL;
    *n = PyArray_DIM(a, 0), *C = PyArray_DIM(a, 1);
    int fits = turned && *C <= NARROW ? PyArray_IS_F_CONTIGUOUS(a) : PyArray_IS_C_CONTIGUOUS(a);
    return fits ? PyArray_DATA(a) : NULL;
}

/* One number, or one for each of n rows; `each` says which. */
static float *one_or_each(PyObject *o, npy_intp n, int writes, int *each) {
    *each = PyArray_CheckExact(o) && PyArray_NDIM((PyArrayObject *)o) > 0;
    return floats(o, *each ? n : 1, writes);
}

static PyObject *cross_entropy_loop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    npy_intp n = 0, C = 0, rows = 0, classes = 0;
    double factor;
    int each;
    if (count != 6 || !numbers(args + 2, 1, &factor)) Py_RETURN_NOTIMPLEMENTED;
    float *z = scores(args[0], 0, 0, &n, &C), *p = scores(args[4], 1, 1, &rows, &classes), sum;
    float *loss = one_or_each(args[3], n, 1, &each);
    if (!z || !p || rows != n || classes != C || !loss || !is_flat_of(args[5], NPY_INT64, n, 1) ||
        !integers(args[1], n, C))
        Py_RETURN_NOTIMPLEMENTED;
    /* a copy, since without the GIL a thread may change the caller's labels */
    npy_int64 *at = PyArray_DATA((PyArrayObject *)args[5]);
    memcpy(at, PyArray_DATA((PyArrayObject *)args[1]), n * sizeof *at);
    WITHOUT_GIL(16 * n * C, sum = cross_entropy(z, each ? loss : NULL, p, at, n, C));
    if (!each) *loss = sum * (float)factor;
    Py_RETURN_NONE;
}

static PyObject *cross_entropy_gradient_loop(PyObject *self, PyObject *const *args,
                                             Py_ssize_t count) {
    npy_intp n = 0, C = 0, rows = 0, classes = 0;
    double factor;
    int each;
    if (count != 5 || !numbers(args + 3, 1, &factor)) Py_RETURN_NOTIMPLEMENTED;
    float *p = scores(args[0], 1, 0, &n, &C), *dz = scores(args[4], 1, 1, &rows, &classes);
    npy_int64 *at = integers(args[1], n, n * C);
    float *g = one_or_each(args[2], n, 0, &each);
    if (!p || !dz || rows != n || classes != C || !at || !g) Py_RETURN_NOTIMPLEMENTED;
    WITHOUT_GIL(4 * n * C, cross_entropy_gradient(p, at, g, each, factor, dz, n, C));
    Py_RETURN_NONE;
}

PyMethodDef softmax_methods[] = {
    KERNEL(softmax_loop), KERNEL(softmax_gradient_loop),
    KERNEL(log_softmax_loop), KERNEL(log_softmax_gradient_loop),
    KERNEL(cross_entropy_loop), KERNEL(cross_entropy_gradient_loop),
    END_OF_KERNELS,
};
