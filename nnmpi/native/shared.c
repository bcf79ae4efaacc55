/* Memory that ranks share: sums of what they have in it, and a barrier in which they meet. */
#include "native.h"
#include <sched.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define BLOCK 4096 /* bytes that are summed at a time: they stay in the first cache */
#define MAX_PARTS 256

/* out[i] = parts[0][at + i] + parts[1][at + i] + ..., from left to right. */
#define SUM(name, REAL)                                                                            \
    static void name(REAL *restrict out, void **parts, int count, npy_intp at, npy_intp n) {      \
        const REAL *restrict a = (const REAL *)parts[0] + at;                                      \
        const REAL *restrict b = (const REAL *)parts[1] + at;                                      \
        for (npy_intp i = 0; i < n; i++) out[i] = a[i] + b[i];                                     \
        for (int r = 2; r < count; r++) {                                                          \
            const REAL *restrict c = (const REAL *)parts[r] + at;                                  \
            for (npy_intp i = 0; i < n; i++) out[i] += c[i];                                       \
        }                                                                                          \
    }
SUM(sum_float, float)
SUM(sum_double, double)

static void sum_all(const Flat *out, void **parts, int count) {
    npy_intp size = out->type == NPY_FLOAT ? sizeof(float) : sizeof(double), step = BLOCK / size;
    for (npy_intp i = 0; i < out->n; i += step) {
        npy_intp n = out->n - i < step ? out->n - i : step;
        if (out->type == NPY_FLOAT)
            sum_float((float *)out->at[0] + i, parts, count, i, n);
        else
            sum_double((double *)out->at[0] + i, parts, count, i, n);
    }
}

/* The numbers of flat arrays of one type and length, none of which overlaps the first, `out`. */
static int parts_of(PyObject *const *args, Py_ssize_t given, void **parts, Flat *out) {
    if (given < 3 || given > MAX_PARTS + 1) return 0;
    for (Py_ssize_t i = 1; i < given; i++) {
        PyObject *pair[] = {args[0], args[i]};
        if (!flat_arrays(pair, 2, 1, out) || !out->at[1]) return 0;
        parts[i - 1] = out->at[1];
    }
    return 1;
}

/* sum_loop(out, part, part, ...) */
static PyObject *sum_loop(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    void *parts[MAX_PARTS];
    Flat out;
    if (!parts_of(args, given, parts, &out)) Py_RETURN_NOTIMPLEMENTED;
    WITHOUT_GIL(out.bytes, sum_all(&out, parts, given - 1));
    Py_RETURN_NONE;
}

#define SPINS 10 /* looks at the others' counts before the core is lent to another process */

static inline void pause_core(void) {
#ifdef __SSE2__
    _mm_pause();
#endif
}

/* Whether the counts of all others are at least this, after so many looks. */
static int all_came(npy_int64 count, npy_int64 **others, int n, long from, long looks) {
    int i = 0;
    for (long k = from; k < looks; k++) {
        while (i < n && __atomic_load_n(others[i], __ATOMIC_ACQUIRE) >= count) i++;
        if (i == n) return 1;
        if (k < SPINS)
            pause_core();
        else
            sched_yield();
    }
    return 0;
}

/* meet_loop(own, here, count, looks, rank, sync, others[, array, part, part, ...])

   own     how often this rank has come, and others, a tuple, those of other ranks, which they
           change meanwhile: int64 arrays of one number
   here    whether all have come as often
   array   copied to the part of this rank before it comes; then the sum of all parts
   sync    is for the twin */
static PyObject *meet_loop(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    npy_int64 *counts[MAX_PARTS];
    void *parts[MAX_PARTS];
    double c[3]; /* count, looks and rank */
    Flat array;
    if (given < 7 || !is_flat_of(args[0], NPY_INT64, 1, 1) ||
        !is_flat_of(args[1], NPY_INT64, 1, 1) || !numbers(args + 2, 3, c) ||
        !PyTuple_CheckExact(args[6]) || PyTuple_GET_SIZE(args[6]) > MAX_PARTS)
        Py_RETURN_NOTIMPLEMENTED;
    long count = (long)c[0], looks = (long)c[1], rank = (long)c[2];
    int n = (int)PyTuple_GET_SIZE(args[6]), sums = given > 7;
    for (int i = 0; i < n; i++) {
        PyObject *other = PyTuple_GET_ITEM(args[6], i);
        if (!is_flat_of(other, NPY_INT64, 1, 0)) Py_RETURN_NOTIMPLEMENTED;
        counts[i] = PyArray_DATA((PyArrayObject *)other);
    }
    if (sums) {
        if (!parts_of(args + 7, given - 7, parts, &array) || rank < 0 || rank >= given - 8 ||
            !PyArray_ISWRITEABLE((PyArrayObject *)args[8 + rank]))
            Py_RETURN_NOTIMPLEMENTED;
        memcpy(parts[rank], array.at[0], array.bytes);
    }
    npy_int64 *own = PyArray_DATA((PyArrayObject *)args[0]);
    if (*own != count) __atomic_store_n(own, count, __ATOMIC_RELEASE);
    int here = all_came(count, counts, n, 0, looks < SPINS ? looks : SPINS);
    if (!here && looks > SPINS)
        WITHOUT_GIL(KEEP_GIL_BELOW, here = all_came(count, counts, n, SPINS, looks));
    if (here && sums) sum_all(&array, parts, given - 8);
    *(npy_int64 *)PyArray_DATA((PyArrayObject *)args[1]) = here;
    Py_RETURN_NONE;
}

PyMethodDef shared_methods[] = {KERNEL(sum_loop), KERNEL(meet_loop), END_OF_KERNELS};
