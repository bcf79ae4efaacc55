/* Convolutions of images with few channels, without columns, in float32, channels last.

   n images of H x W pixels with C channels, padded     h x w outputs (before pooling) with O
   K kernel rows and columns, `stride` apart             channels, a multiple of PER_VECTOR

   direct_outputs(x, w, y, left, upper, bias, zero, stride)
       y (n, h, w, O), after pooling, bias and ReLU, of x (n, H, W, C) and w (K, K, C, O)
   direct_gradients(x, g, y, left, upper, db, dw, stride)
       dw and db += those of the gradient g of y

   The numbers of x that an output reads are K runs of K * C, so a row of outputs is a product of
   matrices whose left one lies in x already. With pooling, the even and the odd columns of two
   rows are computed apart: then a window is the same place in four rows. */
#include "epilogue.h"
#include "products.h"

#ifdef FUSED

typedef struct {
    npy_intp n, image, row, C, rows, columns, O, stride;
} Images;

/* Every `every`-th output of row h from column `first` on, into y, so many. */
static void output_row(const Images *s, const float *x, const float *w, npy_intp h, npy_intp first,
                       npy_intp every, npy_intp many, float *y) {
    Terms t = {s->rows, s->columns * s->C, s->row, 1};
    const float *a = x + h * s->stride * s->row + first * s->stride * s->C;
    for (npy_intp o = 0; o < s->O; o += WIDTH)
        strip(many, s->O - o > PER_VECTOR ? 2 : 1, 0, t, a, every * s->stride * s->C, w + o, s->O,
              y + o, s->O);
}

/* The transpose of it for w: dw += what comes from the gradient dz of these outputs. */
static void weight_gradient(const Images *s, const float *x, const float *dz, npy_intp h,
                            npy_intp first, npy_intp every, npy_intp many, float *dw) {
    Terms t = {1, many, 0, every * s->stride * s->C};
    npy_intp run = s->columns * s->C;
    const float *a = x + h * s->stride * s->row + first * s->stride * s->C;
    for (npy_intp r = 0; r < s->rows; r++, a += s->row, dw += run * s->O)
        for (npy_intp o = 0; o < s->O; o += WIDTH)
            strip(run, s->O - o > PER_VECTOR ? 2 : 1, 1, t, a, 1, dz + o, s->O, dw + o, s->O);
}

static void outputs(const Images *s, const Outputs *q, const float *x, const float *w, float *room) {
    npy_intp width = q->w * q->O, S = q->n * q->h * width;
    float *y = q->y;
    for (npy_intp n = 0; n < q->n; n++, x += s->image)
        for (npy_intp h = 0; h < q->h; h++, y += width) {
            npy_intp at = y - q->y;
            if (q->left) {
                for (int k = 0; k < 4; k++)
                    output_row(s, x, w, 2 * h + k / 2, k % 2, 2, q->w, room + k * width);
                pool_row(width, room, room + width, room + 2 * width, room + 3 * width, y,
                         q->left + at, q->left + S + at, q->upper + at);
            } else {
                output_row(s, x, w, h, 0, 1, q->w, y);
            }
            for (npy_intp i = 0; i < width; i += q->O)
                finish_row(q->O, y + i, y + i, q->bias, q->cuts);
        }
}

static void gradients(const Images *s, const Gradient *q, const float *x, float *dw, float *room) {
    npy_intp width = q->w * q->O, S = q->n * q->h * width, at = 0;
    float *g = room, *z = room + width;
    for (npy_intp n = 0; n < q->n; n++, x += s->image)
        for (npy_intp h = 0; h < q->h; h++, at += width) {
            for (npy_intp i = 0; i < q->w; i++) masked_gradient(q, n, h, i, g + i * q->O);
            if (q->left) {
                unpool_row(width, g, q->left + at, q->left + S + at, q->upper + at, z, z + width,
                           z + 2 * width, z + 3 * width);
                for (int k = 0; k < 4; k++)
                    weight_gradient(s, x, z + k * width, 2 * h + k / 2, k % 2, 2, q->w, dw);
            } else {
                weight_gradient(s, x, g, h, 0, 1, q->w, dw);
            }
        }
}

/* Whether x and w are those of an `n` x `h` x `w` x `O` result, pooled or not. */
static int images(PyObject *images, PyObject *kernels, int writes, double stride, npy_intp n,
                  npy_intp h, npy_intp w, npy_intp O, int pools, Images *s) {
    if (!has_rows(images, 4, 0) || !has_rows(kernels, 4, writes)) return 0;
    PyArrayObject *x = (PyArrayObject *)images, *k = (PyArrayObject *)kernels;
    npy_intp *size = PyArray_DIMS(k), many = pools ? 2 : 1;
    *s = (Images){n, step(x, 0), step(x, 1), size[2], size[0], size[1], O, stride};
    return PyArray_IS_C_CONTIGUOUS(x) && PyArray_IS_C_CONTIGUOUS(k) && O % PER_VECTOR == 0 &&
           stride >= 1 && PyArray_DIM(x, 0) == n && PyArray_DIM(x, 3) == s->C && size[3] == O &&
           PyArray_DIM(x, 1) >= (h * many - 1) * s->stride + s->rows &&
           PyArray_DIM(x, 2) >= (w * many - 1) * s->stride + s->columns;
}

static PyObject *direct_outputs(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    double stride;
    Images s;
    Outputs q;
    if (count != 8 || !outputs_of(args + 2, &q) || !numbers(args + 7, 1, &stride) ||
        !images(args[0], args[1], 0, stride, q.n, q.h, q.w, q.O, q.left != NULL, &s))
        Py_RETURN_NOTIMPLEMENTED;
    float *room = PyMem_Malloc(4 * q.w * q.O * sizeof *room + 1);
    if (!room) return PyErr_NoMemory();
    const float *x = PyArray_DATA((PyArrayObject *)args[0]);
    const float *w = PyArray_DATA((PyArrayObject *)args[1]);
    WITHOUT_GIL(q.n * q.h * q.w * q.O * 4, outputs(&s, &q, x, w, room));
    PyMem_Free(room);
    Py_RETURN_NONE;
}

static PyObject *direct_gradients(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    double stride;
    Images s;
    Gradient q;
    if (count != 8 || !gradient_of(args + 1, &q) || !numbers(args + 7, 1, &stride) ||
        !images(args[0], args[6], 1, stride, q.n, q.h, q.w, q.O, q.left != NULL, &s))
        Py_RETURN_NOTIMPLEMENTED;
    float *room = PyMem_Malloc(5 * q.w * q.O * sizeof *room + 1);
    if (!room) return PyErr_NoMemory();
    const float *x = PyArray_DATA((PyArrayObject *)args[0]);
    float *dw = PyArray_DATA((PyArrayObject *)args[6]);
    WITHOUT_GIL(q.n * q.h * q.w * q.O * 4, gradients(&s, &q, x, dw, room));
    PyMem_Free(room);
    Py_RETURN_NONE;
}

#endif

PyMethodDef direct_methods[] = {
#ifdef FUSED
    KERNEL(direct_outputs),
    KERNEL(direct_gradients),
#endif
    END_OF_KERNELS,
};
