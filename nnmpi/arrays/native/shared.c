/* Memory that ranks share: sums of their parts of it, and a barrier. */
#include "native.h"
#include <sched.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define BLOCK 4096 /* bytes that are summed at a time: they stay in the L1 cache */

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

/* Writes the sum of `count` parts with n elements each to `out`. */
static void sum_parts(int type, void *out, void **parts, int count, npy_intp n) {
    npy_intp step = BLOCK / (type == NPY_FLOAT ? sizeof(float) : sizeof(double));
    for (npy_intp i = 0; i < n; i += step) {
        npy_intp length = n - i < step ? n - i : step;
        if (type == NPY_FLOAT) sum_float((float *)out + i, parts, count, i, length);
        else sum_double((double *)out + i, parts, count, i, length);
    }
}

/* sum_loop(out, part, part, ...) */
static int sum_loop(Arguments *a) {
    if (a->arrays < 3) return NOT_MADE_FOR;
    sum_parts(a->type, a->at[0], a->at + 1, a->arrays - 1, a->n);
    return DONE;
}

#define SPINS 10 /* looks at the others' counts before this process yields its core */

static inline void pause_core(void) {
#ifdef __SSE2__
    _mm_pause();
#endif
}

/* The mark of a rank in the barrier `count`. Two take turns: a rank may be in the next barrier. */
#define MARK(counts, count) (((npy_int64 *)(counts))[1 + ((count)&1)])

/* 1 if a rank has come to the barrier `count` with this mark. */
static inline int has_come(void *counts, npy_int64 count, npy_int64 mark) {
    return __atomic_load_n((npy_int64 *)counts, __ATOMIC_ACQUIRE) >= count &&
           MARK(counts, count) == mark;
}

/* Comes to the barrier `count`: what this rank has written before is then visible. */
static inline void come(npy_int64 *own, npy_int64 count, npy_int64 mark) {
    MARK(own, count) = mark;
    __atomic_store_n(own, count, __ATOMIC_RELEASE);
}

/* 1 if all others have come, after this many looks. */
static int all_came(npy_int64 count, npy_int64 mark, void *const *others, int n, long from,
                    long looks) {
    int i = 0;
    for (long k = from; k < looks; k++) {
        while (i < n && has_come(others[i], count, mark)) i++;
        if (i == n) return 1;
        if (k < SPINS)
            pause_core();
        else
            sched_yield();
    }
    return 0;
}

/* meet_loop(own, here, count, mark, looks, sync, others)

   own     counts how often this rank has come to the barrier, and has its marks; others, a tuple,
           those of the other ranks, which they change meanwhile: int64 arrays of three elements
   here    gets 1 if all ranks have come as often, with the same mark, else 0
   sync    is used by the NumPy twin only */
static int meet_loop(Arguments *a) {
    npy_int64 count = (npy_int64)a->number[0], mark = (npy_int64)a->number[1];
    npy_int64 *own = a->at[0], *here = a->at[1];
    long looks = (long)a->number[2];
    if (looks < 1) return NOT_MADE_FOR;
    if (*own != count) come(own, count, mark);
    *here = all_came(count, mark, a->at + 2, a->items[0], 0, looks < SPINS ? looks : SPINS);
    if (!*here && looks > SPINS) {
        without_gil(a, KEEP_GIL_BELOW);
        *here = all_came(count, mark, a->at + 2, a->items[0], SPINS, looks);
    }
    return DONE;
}

Kernel shared_kernels[] = {
    PARTS("@", sum_loop, "~r@ +r@"),
    DECIDES(meet_loop, "=i3 =i1 & & % o (i3)"),
    END_OF_KERNELS,
};

/* ---- short sums: meet_loop and sum_loop in one call, with arguments that were checked once

   marked_sum(looks, rank, mark, counts, parts, other_parts) -> sum(array) -> bool

   mark         that of these sums in the barrier
   counts       of this rank and of all others, as in meet_loop; between them a private one of this
                rank: whether the next sum uses `parts` (0) or `other_parts` (1), in the first element
   parts ...    where the ranks write, in turns: arrays of one type and length

   The sum copies an array to the part of this rank. If all others come within `looks` looks, the
   array becomes the sum of all parts, and the result is True. A rank that comes with another mark
   makes another call: it has not come.

   No rank writes to a part that another one still reads: a rank that writes has seen all ranks come
   to the previous sum, in the other parts, and each came there after it had read these parts. */

typedef struct {
    npy_intp n;
    npy_int64 mark;
    long looks;
    int ranks, rank, type, itemsize;
    PyObject *kept; /* keeps the arrays of these addresses alive */
    void *at[];     /* own count, turn, counts of others; the parts of both turns */
} ShortSum;

/* 1 if `arrays` are arrays like `one`; stores their addresses. */
static int are_like(PyArrayObject *one, PyObject *arrays, int count, void **at) {
    if (PyTuple_Size(arrays) != count) return 0;
    for (int i = 0; i < count; i++) {
        PyObject *o = PyTuple_GetItem(arrays, i);
        PyArrayObject *x = (PyArrayObject *)o;
        if (!PyArray_Check(o) || PyArray_TYPE(x) != PyArray_TYPE(one) ||
            PyArray_SIZE(x) != PyArray_SIZE(one) || !PyArray_ISCARRAY(x))
            return 0;
        at[i] = PyArray_DATA(x);
    }
    return 1;
}

static PyObject *add_up(PyObject *self, PyObject *array) {
    ShortSum *s = PyCapsule_GetPointer(self, NULL);
    PyArrayObject *x = (PyArrayObject *)array;
    if (!PyArray_Check(array) || PyArray_TYPE(x) != s->type || PyArray_SIZE(x) != s->n ||
        !PyArray_ISCARRAY(x)) {
        PyErr_SetString(PyExc_TypeError, "not an array as this sum was made for");
        return NULL;
    }
    npy_int64 *own = s->at[0], *turn = s->at[1], count = *own + 1;
    void **others = s->at + 2, **parts = others + s->ranks - 1 + (*turn & 1) * s->ranks;
    *turn ^= 1;
    memcpy(parts[s->rank], PyArray_DATA(x), (size_t)s->n * s->itemsize);
    come(own, count, s->mark);
    int came = all_came(count, s->mark, others, s->ranks - 1, 0, SPINS);
    if (!came) {
        Py_BEGIN_ALLOW_THREADS
        came = all_came(count, s->mark, others, s->ranks - 1, SPINS, s->looks);
        Py_END_ALLOW_THREADS
    }
    if (came) sum_parts(s->type, PyArray_DATA(x), parts, s->ranks, s->n);
    return PyBool_FromLong(came);
}

static void release(PyObject *capsule) {
    ShortSum *s = PyCapsule_GetPointer(capsule, NULL);
    Py_XDECREF(s->kept);
    PyMem_Free(s);
}

static PyMethodDef add_up_method = {"sum", add_up, METH_O, NULL};

/* Returns None for arrays that it is not made for. */
static PyObject *marked_sum(PyObject *self, PyObject *args) {
    PyObject *counts, *parts[2];
    long looks;
    long long mark;
    int rank;
    if (!PyArg_ParseTuple(args, "liLO!O!O!", &looks, &rank, &mark, &PyTuple_Type, &counts,
                          &PyTuple_Type, parts, &PyTuple_Type, parts + 1))
        return NULL;
    int ranks = (int)PyTuple_Size(parts[0]);
    if (ranks < 2 || rank < 0 || rank >= ranks || !PyTuple_Size(counts)) Py_RETURN_NONE;
    PyObject *count = PyTuple_GetItem(counts, 0), *part = PyTuple_GetItem(parts[0], 0);
    if (!PyArray_Check(count) || !PyArray_Check(part)) Py_RETURN_NONE;
    PyArrayObject *first = (PyArrayObject *)count, *x = (PyArrayObject *)part;
    ShortSum *s = PyMem_Calloc(1, sizeof *s + (3 * (size_t)ranks + 1) * sizeof(void *));
    PyObject *capsule = s ? PyCapsule_New(s, NULL, release) : PyErr_NoMemory();
    if (!capsule) {
        PyMem_Free(s);
        return NULL;
    }
    s->kept = Py_NewRef(args), s->looks = looks, s->rank = rank, s->ranks = ranks, s->mark = mark;
    s->n = PyArray_SIZE(x), s->type = PyArray_TYPE(x), s->itemsize = (int)PyArray_ITEMSIZE(x);
    int fits = (s->type == NPY_FLOAT || s->type == NPY_DOUBLE) &&
               PyArray_TYPE(first) == NPY_INT64 && PyArray_SIZE(first) == 3 &&
               are_like(first, counts, ranks + 1, s->at) &&
               are_like(x, parts[0], ranks, s->at + ranks + 1) &&
               are_like(x, parts[1], ranks, s->at + 2 * ranks + 1);
    PyObject *made = fits ? PyCFunction_NewEx(&add_up_method, capsule, NULL) : Py_NewRef(Py_None);
    Py_DECREF(capsule);
    return made;
}

PyMethodDef shared_functions[] = {
    {"marked_sum", marked_sum, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
