/* What all files of the extension share.

   Each kernel computes what its NumPy twin in nnmpi/kernels computes, on arrays that it gets. It
   returns None when it has done so, and NotImplemented, having written nothing, for arrays that it
   is not made for: the caller then takes the twin.

   A kernel sees no object of Python. A line of a table describes its arguments, and arguments.c
   takes them apart, alike for all kernels:

       KERNEL(moments_loop, "fNPC =fNC =fNC")

       f i u b   an array of float32, int64, uint32, uint8      r  of float32 or float64, all alike
                 f and r of float32 may have 16 bits, too: halves.c
       h         an f whose 16 bits the kernel sees as they are
       =         it is written: nothing else that the kernel gets has a number in common with it
       ~         it is written, each of its numbers, and not read
       ?         or None
       NPC       its axes: a letter has one size everywhere; 2 is a size, 4.H a product, _ any size,
                 * any axes, the same ones everywhere
                 contiguous in C's order, unless this is before them:
       -         axes but the last one in any strides          <  the same, and windows overlap
       :         all axes in any strides
       @         one shape and one order in memory, without gaps, for all arrays that have this mark
       # % &     a number, an integer of 31 bits, one of 53 bits        !  a bool      0  None
       o         anything         (...) a tuple of such         +  and all arguments that follow

   No array is empty, and no stride is negative. */
#ifndef NNMPI_NATIVE_H
#define NNMPI_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL nnmpi_native_array_api
#ifndef NNMPI_NATIVE_MODULE
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#define MAX_ARRAYS 257 /* parts of an array of 256 ranks, and their sum */
#define MAX_NUMBERS 16
#define MOST_ARGUMENTS 14
#define ROOM 520 /* for the counts of 256 ranks too */

/* An axis: factor times the sizes of two letters, or of one, or of none. */
typedef struct {
    npy_uint8 factor, letter, other, is_first;
} Axis;

typedef struct {
    char kind, layout;
    npy_int8 type, axes, rest; /* rest: which axis is *, or -1 */
    npy_int8 is_written, is_read, may_be_none, is_tuple, goes_on;
    int flags; /* of NumPy */
    Axis axis[6];
} Argument;

typedef struct {
    npy_int16 sizes; /* where in `room` the sizes of its axes are, and then their steps */
    npy_int8 axes, itemsize;
    npy_uint8 is_written : 1, half : 2; /* as halves.h names it, 0 of other types */
    npy_uint8 argument;                 /* which one of the kernel's it is */
} Array;

typedef struct {
    int arrays, numbers, tuples, used, type; /* type: of arrays r, NPY_FLOAT or NPY_DOUBLE */
    int items[MOST_ARGUMENTS]; /* of each tuple */
    int halves;                /* how many arrays have 16 bits */
    const Argument *first;     /* of the kernel */
    int alike, rests;          /* the first array @, and how many axes * is; -1 before */
    const npy_intp *rest;
    npy_intp n, bytes;            /* numbers of an array @; bytes of the largest array */
    PyThreadState *thread;        /* whose GIL was given back, or NULL */
    npy_intp size['z' - '@' + 1]; /* of each letter */
    double number[MAX_NUMBERS];
    npy_intp room[ROOM];
    void *at[MAX_ARRAYS];     /* in the order of arguments; NULL for None */
    npy_intp end[MAX_ARRAYS]; /* the addresses behind them; 0 for None */
    Array array[MAX_ARRAYS];
} Arguments;

/* What a kernel returns. */
enum { DONE, NOT_MADE_FOR, NO_MEMORY };

typedef struct {
    PyMethodDef method;
    int (*compute)(Arguments *);
    int decides; /* 1: it gives the GIL back itself; 2: and takes arrays in 16 bits itself */
    const char *along; /* the axis along which parts are computed alike: the first of these letters
                          with a size; "@" of arrays @, "*" of *; "" if there is none. Of arrays
                          in which another axis is before it the kernel reads steps, not sizes */
    Argument arguments[MOST_ARGUMENTS + 1];
} Kernel;

void describe(Kernel *kernel);
PyObject *call_kernel(PyObject *self, PyObject *const *args, Py_ssize_t count);

#define ENTRY(name, arguments, decides, along)                                                     \
    {{#name, (PyCFunction)(void (*)(void))call_kernel, METH_FASTCALL, arguments},                  \
     name, decides, along, {}}
#define KERNEL(name, arguments) ENTRY(name, arguments, 0, "")
#define PARTS(axis, name, arguments) ENTRY(name, arguments, 0, axis)
#define DECIDES(name, arguments) ENTRY(name, arguments, 1, "")
#define HALVES(name, arguments) ENTRY(name, arguments, 2, "")
#define END_OF_KERNELS {{NULL, NULL, 0, NULL}, NULL, 0, "", {}}

/* Whether these numbers are one stretch of memory, with its axes in any order. */
int is_dense(const npy_intp *sizes, int axes, const npy_intp *steps, npy_intp whole);

/* Computes a kernel of float32 on arrays of which some have 16 bits. */
int in_float32(const Kernel *kernel, Arguments *a);

#define SIZE(a, letter) ((a)->size[(letter) - '@'])

static inline npy_intp size(const Arguments *a, int array, int axis) {
    return a->room[a->array[array].sizes + axis];
}

/* How many numbers lie between two neighbours along an axis. */
static inline npy_intp step(const Arguments *a, int array, int axis) {
    return a->room[a->array[array].sizes + a->array[array].axes + axis];
}

static inline npy_intp numbers(const Arguments *a, int array) {
    npy_intp n = 1;
    for (int i = 0; i < a->array[array].axes; i++) n *= size(a, array, i);
    return n;
}

/* Below so many bytes of its largest array a kernel keeps the GIL: to give it back takes as long.
   One that DECIDES does this itself, when it knows whether it computes. */
#define KEEP_GIL_BELOW (1 << 14)

static inline void without_gil(Arguments *a, npy_intp work) {
    if (!a->thread && work >= KEEP_GIL_BELOW) a->thread = PyEval_SaveThread();
}

/* Whether n integers are from 0 to below `end`. */
static inline int are_below(npy_intp end, const npy_int64 *x, npy_intp n) {
    int wrong = 0;
    for (npy_intp i = 0; i < n; i++) wrong |= (npy_uint64)x[i] >= (npy_uint64)end;
    return !wrong;
}

/* One of them later; 0 if another thread has changed it meanwhile. */
static inline npy_intp index_below(npy_intp end, const npy_int64 *x) {
    npy_int64 found = __atomic_load_n(x, __ATOMIC_RELAXED);
    return (npy_uint64)found < (npy_uint64)end ? found : 0;
}

/* Before a loop of a few constant turns, which is to become straight code before the loop around it
   is vectorised. */
#define UNROLL _Pragma("GCC unroll 36")
#define ALWAYS_INLINE static inline __attribute__((always_inline))

#define CACHE_LINE 64 /* bytes of a line of the cache */

/* The least multiple that is not below n. */
static inline npy_intp whole_of(npy_intp n, npy_intp of) { return (n + of - 1) / of * of; }

extern Kernel activation_kernels[], attention_kernels[], column_kernels[], depthwise_kernels[],
    direct_kernels[], epilogue_kernels[], gate_kernels[], half_kernels[], linear_kernels[],
    norm_kernels[], optimizer_kernels[], product_kernels[], row_kernels[], row_norm_kernels[],
    shared_kernels[], softmax_kernels[], winograd_kernels[];

extern PyMethodDef arena_functions[], shared_functions[];

#endif
