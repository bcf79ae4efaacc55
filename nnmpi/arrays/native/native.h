/* Declarations that all files of the extension share.

   Each kernel computes the same as its NumPy twin in nnmpi/arrays/kernels. It returns None, or, for
   arrays that it is not made for, NotImplemented before it has written anything: the caller then
   calls the twin.

   A kernel sees no Python objects. A line of a table describes its arguments, and arguments.c
   parses them for all kernels:

       KERNEL(moments_loop, "fNPC =fNC =fNC")

       f i u b   an array of float32, int64, uint32, uint8      r  float32 or float64, all alike
                 f, and r if it is float32, may have 16 bits as well: halves.c
       h         an f of which the kernel gets 16-bit arrays as they are
       =         the array is written: no other array of the call overlaps it
       ~         the array is written completely, and not read
       ?         or None
       NPC       the axes: a letter has one size everywhere; 2 is a size, 4.H a product, _ any size,
                 * any axes, the same ones everywhere
                 contiguous in C order, unless one of these marks is before them:
       -         any strides, except for the last axis         <  the same, and windows overlap
       :         any strides
       @         one shape and one memory layout, without gaps, for all arrays with this mark
       # % &     a number, an integer of 31 bits, one of 53 bits        !  a bool      0  None
       o         anything         (...) a tuple of these        +  and all arguments that follow

   Empty arrays and negative strides are refused. */
#ifndef NNMPI_NATIVE_H
#define NNMPI_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h> /* Python.h of the stable ABI includes neither */
#include <string.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL nnmpi_native_array_api
#ifndef NNMPI_NATIVE_MODULE
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#define MAX_ARRAYS 257 /* 256 ranks' parts of an array, and their sum */
#define MAX_NUMBERS 16
#define MOST_ARGUMENTS 14
#define ROOM 520 /* enough for the counts of 256 ranks */

/* The size of an axis: factor times the sizes of up to two letters. */
typedef struct {
    npy_uint8 factor, letter, other, is_first;
} Axis;

typedef struct {
    char kind, layout;
    npy_int8 type, axes, rest; /* rest: the index of the axis *, or -1 */
    npy_int8 is_written, is_read, may_be_none, is_tuple, goes_on;
    int flags; /* of NumPy */
    Axis axis[6];
} Argument;

typedef struct {
    npy_int16 sizes; /* where in `room` the sizes of its axes are, followed by their strides */
    npy_int8 axes, itemsize;
    npy_uint8 is_written : 1, half : 2; /* the 16-bit type of halves.h, 0 for other types */
    npy_uint8 argument;                 /* the index of the kernel's argument */
} Array;

typedef struct {
    int arrays, numbers, tuples, used, type; /* type: that of arrays r, NPY_FLOAT or NPY_DOUBLE */
    int items[MOST_ARGUMENTS]; /* the length of each tuple */
    int halves;                /* the number of arrays with 16 bits */
    const Argument *first;     /* of the kernel */
    int alike, rests;          /* the first array @, and the number of axes of *; -1 at first */
    const npy_intp *rest;
    npy_intp n, bytes;            /* elements of an array @; bytes of the largest array */
    PyThreadState *thread;        /* the thread that released the GIL, or NULL */
    npy_intp size['z' - '@' + 1]; /* the size of each letter */
    double number[MAX_NUMBERS];
    npy_intp room[ROOM];
    void *at[MAX_ARRAYS];     /* in the order of arguments; NULL for None */
    npy_intp end[MAX_ARRAYS]; /* the addresses of their ends; 0 for None */
    Array array[MAX_ARRAYS];
} Arguments;

/* What a kernel returns. */
enum { DONE, NOT_MADE_FOR, NO_MEMORY };

typedef struct {
    PyMethodDef method;
    int (*compute)(Arguments *);
    int decides; /* 1: the kernel releases the GIL itself; 2: and takes 16-bit arrays itself */
    const char *along; /* the axis along which a kernel may compute part by part: the first of these
                          letters with a size; "@" for arrays @, "*" for *; "" if there is none. If
                          an array has other axes before it, the kernel reads strides, not sizes */
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

/* 1 if these elements are contiguous, with the axes in any order. */
int is_dense(const npy_intp *sizes, int axes, const npy_intp *steps, npy_intp whole);

/* Runs a float32 kernel on arrays of which some have 16 bits. */
int in_float32(const Kernel *kernel, Arguments *a);

#define SIZE(a, letter) ((a)->size[(letter) - '@'])

static inline npy_intp size(const Arguments *a, int array, int axis) {
    return a->room[a->array[array].sizes + axis];
}

/* The stride of an axis in elements. */
static inline npy_intp step(const Arguments *a, int array, int axis) {
    return a->room[a->array[array].sizes + a->array[array].axes + axis];
}

static inline npy_intp numbers(const Arguments *a, int array) {
    npy_intp n = 1;
    for (int i = 0; i < a->array[array].axes; i++) n *= size(a, array, i);
    return n;
}

/* A kernel keeps the GIL if its largest array has fewer bytes: releasing it would take as long.
   A kernel that DECIDES releases it itself, once it knows that it computes. */
#define KEEP_GIL_BELOW (1 << 14)

static inline void without_gil(Arguments *a, npy_intp work) {
    if (!a->thread && work >= KEEP_GIL_BELOW) a->thread = PyEval_SaveThread();
}

/* 1 if n integers are in 0..end-1. */
static inline int are_below(npy_intp end, const npy_int64 *x, npy_intp n) {
    int wrong = 0;
    for (npy_intp i = 0; i < n; i++) wrong |= (npy_uint64)x[i] >= (npy_uint64)end;
    return !wrong;
}

/* Reads a checked index again; 0 if another thread has changed it to a bad one meanwhile. */
static inline npy_intp index_below(npy_intp end, const npy_int64 *x) {
    npy_int64 found = __atomic_load_n(x, __ATOMIC_RELAXED);
    return (npy_uint64)found < (npy_uint64)end ? found : 0;
}

/* Put it before a loop with a small constant count, so that it is unrolled before the loop
   around it is vectorised. */
#define UNROLL _Pragma("GCC unroll 36")
#define ALWAYS_INLINE static inline __attribute__((always_inline))

#define CACHE_LINE 64 /* bytes of a cache line */

/* n rounded up to a multiple. */
static inline npy_intp whole_of(npy_intp n, npy_intp of) { return (n + of - 1) / of * of; }

extern Kernel activation_kernels[], attention_kernels[], column_kernels[], depthwise_kernels[],
    direct_kernels[], epilogue_kernels[], gate_kernels[], half_kernels[], linear_kernels[],
    norm_kernels[], optimizer_kernels[], product_kernels[], row_kernels[], row_norm_kernels[],
    shared_kernels[], softmax_kernels[], winograd_kernels[];

extern PyMethodDef arena_functions[], shared_functions[];

#endif
