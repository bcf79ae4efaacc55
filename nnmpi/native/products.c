/* products_loop(A, B, C, adds): C[g] = A[g] @ B[g], or += if it adds, of float32.

   g  matrices     A (g, m, k) in any strides     B (g, k, n), C (g, m, n) with contiguous rows

   DEPTH terms at a time, so that a strip of B stays in the first level of the cache. */
#include "products.h"
#include <string.h>

#ifdef FUSED
#define DEPTH 256

/* A strip of B, its columns filled up with zeros. */
static void pack(const float *B, npy_intp b_row, npy_intp k, npy_intp n, float *strip) {
    for (npy_intp i = 0; i < k; i++, B += b_row, strip += WIDTH) {
        if (n >= WIDTH) {
            memcpy(strip, B, WIDTH * sizeof *strip);
            continue;
        }
        memset(strip, 0, WIDTH * sizeof *strip);
        memcpy(strip, B, n * sizeof *strip);
    }
}

void product(const Sizes *s, const float *A, const float *B, float *C, int adds) {
    float packed[DEPTH * WIDTH] __attribute__((aligned(64)));
    for (npy_intp k = 0; k < s->k; k += DEPTH, adds = 1) {
        npy_intp some = s->k - k < DEPTH ? s->k - k : DEPTH;
        Terms t = {1, some, 0, s->a_term};
        for (npy_intp j = 0; j < s->n; j += WIDTH) {
            npy_intp left = s->n - j;
            const float *a = A + k * s->a_term;
            float *c = C + j;
            int vectors = left <= LANES ? 1 : 2;
            pack(B + k * s->b_row + j, s->b_row, some, left, packed);
            if (left >= WIDTH || left == LANES) {
                strip(s->m, vectors, adds, t, a, s->a_row, packed, WIDTH, c, s->c_row);
                continue;
            }
            for (npy_intp i = 0; i < s->m; i += ROWS) { /* the last columns, through a block */
                float whole[ROWS * WIDTH] = {0};
                npy_intp rows = s->m - i < ROWS ? s->m - i : ROWS;
                for (npy_intp r = 0; r < rows && adds; r++)
                    memcpy(whole + r * WIDTH, c + (i + r) * s->c_row, left * sizeof *c);
                some_rows(rows, vectors, 1, t, a + i * s->a_row, s->a_row, packed, WIDTH, whole, WIDTH);
                for (npy_intp r = 0; r < rows; r++)
                    memcpy(c + (i + r) * s->c_row, whole + r * WIDTH, left * sizeof *c);
            }
        }
    }
}

static PyObject *products_loop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4 || !has_strides(args[0], 3, 0) || !has_rows(args[1], 3, 0) ||
        !has_rows(args[2], 3, 1) || !PyBool_Check(args[3]))
        Py_RETURN_NOTIMPLEMENTED;
    PyArrayObject *a = (PyArrayObject *)args[0], *b = (PyArrayObject *)args[1];
    PyArrayObject *c = (PyArrayObject *)args[2];
    npy_intp groups = PyArray_DIM(c, 0);
    Sizes s = {PyArray_DIM(c, 1), PyArray_DIM(c, 2), PyArray_DIM(a, 2), step(a, 1), step(a, 2),
               step(b, 1), step(c, 1)};
    if (PyArray_DIM(a, 0) != groups || PyArray_DIM(b, 0) != groups || PyArray_DIM(a, 1) != s.m ||
        PyArray_DIM(b, 1) != s.k || PyArray_DIM(b, 2) != s.n || s.k == 0)
        Py_RETURN_NOTIMPLEMENTED;
    const float *A = PyArray_DATA(a), *B = PyArray_DATA(b);
    float *C = PyArray_DATA(c);
    int adds = args[3] == Py_True;
    WITHOUT_GIL(PyArray_NBYTES(c),
                for (npy_intp g = 0; g < groups; g++)
                    product(&s, A + g * step(a, 0), B + g * step(b, 0), C + g * step(c, 0), adds));
    Py_RETURN_NONE;
}
#endif

PyMethodDef products_methods[] = {
#ifdef FUSED
    KERNEL(products_loop),
#endif
    END_OF_KERNELS,
};
