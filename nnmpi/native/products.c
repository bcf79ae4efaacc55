/* products_loop(A, B, C, adds): C[g] = A[g] @ B[g], or += if it adds, of float32.

   g  matrices     A (g, m, k) in any strides     B (g, k, n), C (g, m, n) with contiguous rows

   B is packed in strips of WIDTH columns, one behind the other:

       | 0 1 | 2 3 | 4 |    ─►    0 1 0 1    2 3 2 3    4 . 4 .
       | 0 1 | 2 3 | 4 |

   DEPTH terms at a time are added in their order, then their sum, whatever the other sizes are. */
#include "products.h"
#include <stdlib.h>
#include <string.h>

#ifdef FUSED
#define DEPTH 1024     /* terms at a time: a strip stays in the second cache, */
#define NEAR (1 << 16) /* and so do these numbers of A; */
#define PACKED 512     /* such columns stay in the third one */
#define MANY 256       /* columns for which rows of A are packed too */
#define LINE 64        /* bytes of a line of the cache, which loads should not cross */

/* One strip, with n columns of B; the others of WIDTH are zeros. */
static void pack_one(const Sizes *s, const float *B, npy_intp n, float *strip) {
    npy_intp k = s->k;
    if (n < WIDTH) memset(strip, 0, k * WIDTH * sizeof *strip);
    if (s->b_column != 1)
        for (npy_intp t = 0; t < k; t += 8) /* of one column: they are neighbours in memory */
            for (npy_intp c = 0; c < n; c++)
                for (npy_intp i = t; i < k && i < t + 8; i++)
                    strip[i * WIDTH + c] = B[i * s->b_term + c * s->b_column];
    else
        for (npy_intp i = 0; i < k; i++, strip += WIDTH, B += s->b_term)
            if (n == WIDTH) /* a constant size */
                memcpy(strip, B, WIDTH * sizeof *strip);
            else
                memcpy(strip, B, n * sizeof *strip);
}

/* Some rows of C and `columns` of one strip; where they are not whole vectors in a row, or not
   neighbours, through a block of their own. */
static void tile(const Sizes *s, npy_intp rows, npy_intp columns, int adds, Terms t, const float *A,
                 npy_intp a_row, const float *strip, float *C) {
    int vectors = columns <= PER_VECTOR ? 1 : 2;
    if (columns == vectors * PER_VECTOR && s->c_column == 1) {
        some_rows(rows, vectors, adds, t, A, a_row, strip, WIDTH, C, s->c_row);
        return;
    }
    float block[ROWS * WIDTH];
    some_rows(rows, vectors, 0, t, A, a_row, strip, WIDTH, block, WIDTH);
    for (npy_intp c = 0; c < columns; c++)
        for (npy_intp r = 0; r < rows; r++) {
            float *to = C + r * s->c_row + c * s->c_column, found = block[r * WIDTH + c];
            *to = adds ? *to + found : found;
        }
}

void pack(const Sizes *s, const float *B, float *strips) {
    for (npy_intp j = 0; j < s->n; j += WIDTH)
        pack_one(s, B + j * s->b_column, s->n - j < WIDTH ? s->n - j : WIDTH, strips + j * s->k);
}

void packed_product(const Sizes *s, const float *A, const float *strips, npy_intp terms, float *C,
                    int adds, float *room) {
    for (npy_intp i = 0; i < s->m; i += ROWS, A += ROWS * s->a_row, C += ROWS * s->c_row) {
        npy_intp rows = s->m - i < ROWS ? s->m - i : ROWS, a_row = s->a_row;
        const float *a = A;
        Terms t = {1, s->k, 0, s->a_term};
        if (room) {
            for (npy_intp k = 0; k < s->k; k++)
                for (npy_intp r = 0; r < rows; r++) room[k * ROWS + r] = A[r * a_row + k * t.at];
            a = room, a_row = 1, t.at = ROWS;
        }
        for (npy_intp j = 0; j < s->n; j += WIDTH)
            tile(s, rows, s->n - j < WIDTH ? s->n - j : WIDTH, adds, t, a, a_row,
                 strips + j * terms, C + j * s->c_column);
    }
}

int product(const Sizes *s, const float *A, const float *B, float *C, int adds) {
    /* A is read once for many columns if it is large, or if its terms lie apart */
    int apart = s->a_term != 1, once = apart ? s->n >= MANY : s->m * s->k > NEAR;
    npy_intp deepest = s->k < DEPTH ? s->k : DEPTH, columns = (s->n + WIDTH - 1) / WIDTH * WIDTH;
    if (!once || columns > PACKED) columns = once ? PACKED : WIDTH;
    npy_intp bytes = deepest * (columns + ROWS) * sizeof *A;
    float small[DEPTH * (WIDTH + ROWS)] __attribute__((aligned(LINE))), *room = small;
    if (once && !(room = aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE))) return 0;
    for (npy_intp k = 0; k < s->k; k += DEPTH, adds = 1)
        for (npy_intp j = 0; j < s->n; j += columns) {
            Sizes some = *s;
            some.n = s->n - j < columns ? s->n - j : columns;
            some.k = s->k - k < DEPTH ? s->k - k : DEPTH;
            pack(&some, B + k * s->b_term + j * s->b_column, room);
            packed_product(&some, A + k * s->a_term, room, some.k, C + j * s->c_column, adds,
                           apart && once ? room + deepest * columns : NULL);
        }
    if (once) free(room);
    return 1;
}

static PyObject *products_loop(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 4 || !has_strides(args[0], 3, 0) || !has_rows(args[1], 3, 0) ||
        !has_rows(args[2], 3, 1) || !PyBool_Check(args[3]))
        Py_RETURN_NOTIMPLEMENTED;
    PyArrayObject *a = (PyArrayObject *)args[0], *b = (PyArrayObject *)args[1];
    PyArrayObject *c = (PyArrayObject *)args[2];
    npy_intp groups = PyArray_DIM(c, 0);
    Sizes s = {PyArray_DIM(c, 1), PyArray_DIM(c, 2), PyArray_DIM(a, 2), step(a, 1), step(a, 2),
               step(b, 1),        1,                 step(c, 1),        1};
    if (PyArray_DIM(a, 0) != groups || PyArray_DIM(b, 0) != groups || PyArray_DIM(a, 1) != s.m ||
        PyArray_DIM(b, 1) != s.k || PyArray_DIM(b, 2) != s.n || s.k == 0)
        Py_RETURN_NOTIMPLEMENTED;
    const float *A = PyArray_DATA(a), *B = PyArray_DATA(b);
    float *C = PyArray_DATA(c);
    int adds = args[3] == Py_True, done = 1;
    WITHOUT_GIL(PyArray_NBYTES(c),
                for (npy_intp g = 0; g < groups && done; g++) done = product(
                    &s, A + g * step(a, 0), B + g * step(b, 0), C + g * step(c, 0), adds));
    return done ? Py_NewRef(Py_None) : PyErr_NoMemory();
}
#endif

PyMethodDef products_methods[] = {
#ifdef FUSED
    KERNEL(products_loop),
#endif
    END_OF_KERNELS,
};
