/* Winograd's transforms of 3x3 convolutions, in float32, channels last.

   n images of H x W pixels with C channels, padded by `pad`, in th x tw tiles each

   winograd_tiles(x, V, side, pad, th, tw)     V (tile^2, n th tw C) from x (n, H, W, C)
   winograd_images(V, x, side, pad, th, tw)    and back, added up where tiles overlap

   winograd_outputs(M, y, left, upper, bias, zero, side, th, tw)
       y (n, h, w, O) from M (tile^2, n th tw O), after pooling, bias and ReLU
   winograd_gradients(g, y, left, upper, db, M, side, th, tw)
       and back: M from the gradient g of y, and the sums of what passes ReLU added to db */
#include "epilogue.h"

typedef struct {
    npy_intp n, H, W, C, pad, th, tw;
    npy_intp image, row, column; /* numbers from one to the next */
    npy_intp plane;              /* the same of V */
} Grid;

/* The channels of a pixel of the padded image; NULL in the padding. */
static inline float *pixel(const Grid *q, float *images, npy_intp n, npy_intp h, npy_intp w) {
    h -= q->pad, w -= q->pad;
    if (h < 0 || h >= q->H || w < 0 || w >= q->W) return NULL;
    return images + n * q->image + h * q->row + w * q->column;
}

/* The side x side raw outputs z of tile (i, j) of image n, to their place. */
static void put_tile(const Outputs *q, npy_intp n, npy_intp i, npy_intp j, int side, const float *z) {
    int step = q->left ? 2 : 1, many = side / step;
    npy_intp O = q->O, S = q->n * q->h * q->w * O;
    for (int a = 0; a < many; a++)
        for (int b = 0; b < many; b++) {
            npy_intp h = i * many + a, w = j * many + b;
            if (h >= q->h || w >= q->w) continue;
            npy_intp at = ((n * q->h + h) * q->w + w) * O;
            const float *from = z + (a * side + b) * step * O;
            if (q->left) {
                pool_row(O, from, from + O, from + side * O, from + (side + 1) * O, q->y + at,
                         q->left + at, q->left + S + at, q->upper + at);
                from = q->y + at;
            }
            finish_row(O, from, q->y + at, q->bias, q->cuts);
        }
}

/* And back: the gradients z of its raw outputs; `row` has room for O numbers. */
static void take_tile(const Gradient *q, npy_intp n, npy_intp i, npy_intp j, int side, float *z,
                      float *row) {
    int step = q->left ? 2 : 1, many = side / step;
    npy_intp O = q->O, S = q->n * q->h * q->w * O;
    if ((i + 1) * many > q->h || (j + 1) * many > q->w) memset(z, 0, side * side * O * sizeof *z);
    for (int a = 0; a < many; a++)
        for (int b = 0; b < many; b++) {
            npy_intp h = i * many + a, w = j * many + b;
            if (h >= q->h || w >= q->w) continue;
            npy_intp at = ((n * q->h + h) * q->w + w) * O;
            float *to = z + (a * side + b) * step * O;
            masked_gradient(q, n, h, w, q->left ? row : to);
            if (q->left)
                unpool_row(O, row, q->left + at, q->left + S + at, q->upper + at, to, to + O,
                           to + side * O, to + (side + 1) * O);
        }
}

#define SIDE 2
#define OF(name) name##_2
#include "winograd.h"
#undef SIDE
#undef OF

#define SIDE 4
#define OF(name) name##_4
#include "winograd.h"
#undef SIDE
#undef OF

static PyObject *between(PyObject *images, PyObject *planes, PyObject *const *rest, int back) {
    double c[4];
    if (!has_rows(images, 4, back) || !has_rows(planes, 2, !back) || !numbers(rest, 4, c))
        Py_RETURN_NOTIMPLEMENTED;
    PyArrayObject *x = (PyArrayObject *)images, *V = (PyArrayObject *)planes;
    npy_intp *size = PyArray_DIMS(x), tile = c[0] + 2;
    Grid q = {size[0], size[1], size[2], size[3], c[1], c[2], c[3]};
    q.image = step(x, 0), q.row = step(x, 1), q.column = step(x, 2), q.plane = step(V, 0);
    if ((tile != 4 && tile != 6) || PyArray_DIM(V, 0) != tile * tile || q.pad < 0 ||
        PyArray_DIM(V, 1) != q.n * q.th * q.tw * q.C)
        Py_RETURN_NOTIMPLEMENTED;
    float *outside = PyMem_Calloc(q.C, sizeof(float));
    if (!outside) return PyErr_NoMemory();
    float *pixels = PyArray_DATA(x), *v = PyArray_DATA(V);
    WITHOUT_GIL(PyArray_NBYTES(V),
                if (back) (tile == 4 ? images_2 : images_4)(&q, v, pixels, outside);
                else (tile == 4 ? tiles_2 : tiles_4)(&q, pixels, v, outside));
    PyMem_Free(outside);
    Py_RETURN_NONE;
}

static PyObject *winograd_tiles(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 6) Py_RETURN_NOTIMPLEMENTED;
    return between(args[0], args[1], args + 2, 0);
}

static PyObject *winograd_images(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 6) Py_RETURN_NOTIMPLEMENTED;
    return between(args[1], args[0], args + 2, 1);
}

/* Whether M is (tile^2, n th tw O), of th x tw tiles that cover h x w outputs, pooled or not. */
static int is_product(PyObject *M, int writes, const double *c, npy_intp n, npy_intp h, npy_intp w,
                      npy_intp O, int pools) {
    npy_intp tile = c[0] + 2, th = c[1], tw = c[2], many = c[0] / (pools ? 2 : 1);
    return (tile == 4 || tile == 6) && has_rows(M, 2, writes) && h <= th * many && w <= tw * many &&
           PyArray_DIM((PyArrayObject *)M, 0) == tile * tile &&
           PyArray_DIM((PyArrayObject *)M, 1) == n * th * tw * O;
}

static PyObject *winograd_outputs(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    double c[3];
    Outputs q;
    if (count != 9 || !outputs_of(args + 1, &q) || !numbers(args + 6, 3, c) ||
        !is_product(args[0], 0, c, q.n, q.h, q.w, q.O, q.left != NULL))
        Py_RETURN_NOTIMPLEMENTED;
    PyArrayObject *M = (PyArrayObject *)args[0];
    npy_intp th = c[1], tw = c[2];
    float *room = PyMem_Malloc(16 * q.O * sizeof *room + 1);
    if (!room) return PyErr_NoMemory();
    WITHOUT_GIL(PyArray_NBYTES(M), (c[0] == 2 ? outputs_2 : outputs_4)(PyArray_DATA(M), step(M, 0),
                                                                        &q, th, tw, room));
    PyMem_Free(room);
    Py_RETURN_NONE;
}

static PyObject *winograd_gradients(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    double c[3];
    Gradient q;
    if (count != 9 || !gradient_of(args, &q) || !numbers(args + 6, 3, c) ||
        !is_product(args[5], 1, c, q.n, q.h, q.w, q.O, q.left != NULL))
        Py_RETURN_NOTIMPLEMENTED;
    PyArrayObject *M = (PyArrayObject *)args[5];
    npy_intp th = c[1], tw = c[2];
    float *room = PyMem_Malloc(17 * q.O * sizeof *room + 1);
    if (!room) return PyErr_NoMemory();
    WITHOUT_GIL(PyArray_NBYTES(M), (c[0] == 2 ? gradients_2 : gradients_4)(
                                       &q, PyArray_DATA(M), step(M, 0), th, tw, room));
    PyMem_Free(room);
    Py_RETURN_NONE;
}

PyMethodDef winograd_methods[] = {
    KERNEL(winograd_tiles),
    KERNEL(winograd_images),
    KERNEL(winograd_outputs),
    KERNEL(winograd_gradients),
    END_OF_KERNELS,
};
