/* What all files of the extension share.

   Each kernel is a function of Python that computes what its NumPy twin in nnmpi/kernels computes,
   on arrays that it gets. It returns None when it has done so, and NotImplemented, having written
   nothing, for arrays that it is not made for: the caller then takes the twin. */
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

/* Below so many bytes the GIL is kept: to give it back takes as long as the work. */
#define KEEP_GIL_BELOW (1 << 14)

#define WITHOUT_GIL(bytes, ...)                                                                    \
    do {                                                                                           \
        PyThreadState *nnmpi_thread = (bytes) < KEEP_GIL_BELOW ? NULL : PyEval_SaveThread();       \
        __VA_ARGS__;                                                                               \
        if (nnmpi_thread) PyEval_RestoreThread(nnmpi_thread);                                      \
    } while (0)

/* Dense arrays of one type, one shape and one order in memory, none of which overlaps another. */
#define MAX_FLAT 8

typedef struct {
    int type; /* NPY_FLOAT or NPY_DOUBLE */
    npy_intp n, bytes;
    void *at[MAX_FLAT]; /* NULL where the argument is None */
} Flat;

/* Whether the arguments are such arrays, or None, and the first is not; those from the bits of
   `written` on are written. */
int flat_arrays(PyObject *const *args, int count, unsigned written, Flat *out);

/* Whether it is an array of the C library's numbers, aligned, and may be written if it is to be. */
int is_of_numbers(PyObject *o, int writes);

/* Whether it is a float32 array of so many axes (any, if -1), in any strides. */
int has_strides(PyObject *o, int axes, int writes);

/* Whether its last axis is contiguous besides. */
int has_rows(PyObject *o, int axes, int writes);

/* Whether it is a contiguous array of this type and of so many numbers. */
int is_flat_of(PyObject *o, int type, npy_intp n, int writes);

/* Where a contiguous float32 array of so many numbers lies, or NULL if it is not one. */
float *floats(PyObject *o, npy_intp n, int writes);

/* The same of n int64 integers from 0 to below `end`. */
npy_int64 *integers(PyObject *o, npy_intp n, npy_intp end);

/* How many float32 numbers lie between two neighbours along an axis. */
static inline npy_intp step(PyArrayObject *a, int axis) {
    return PyArray_STRIDE(a, axis) / (npy_intp)sizeof(float);
}

/* The numbers of arguments; whether all are numbers. An error of Python is cleared. */
int numbers(PyObject *const *args, int count, double *out);

/* Before a loop of a few constant turns, which is to become straight code before the loop around it
   is vectorised. */
#define UNROLL _Pragma("GCC unroll 36")
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* A line of a table of functions that Python calls. */
#define KERNEL(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
#define END_OF_KERNELS {NULL, NULL, 0, NULL}

extern PyMethodDef activation_methods[], attention_methods[], column_methods[],
    depthwise_methods[], direct_methods[], epilogue_methods[], gate_methods[], linear_methods[],
    norm_methods[], optimizer_methods[], products_methods[], row_methods[], shared_methods[],
    softmax_methods[], winograd_methods[];

#endif
