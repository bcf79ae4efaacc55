/* Linear layers, with ReLU or without, one, or some small ones in one call, in float32.

   n  rows of x      K  their length      O  outputs

   linear_outputs(x, w, b, y, relu, large)          y (n, O) from x (n, K), w (O, K), b (O) or None
   linear_gradients(g, x, w, dx, dw, db, large)     from the gradient g of y before ReLU
   mlp_outputs(x, ws, bs, ys, relus)                layer by layer
   mlp_gradients(g, x, ws, ys, relus, dx, dws, dbs) and back, from the last one

   Gradients that are None are not needed. Layers with more than LARGEST products are left to BLAS
   unless they may be `large`. */
#include "epilogue.h"
#include "products.h"

#ifdef FUSED
#define LARGEST (1 << 18) /* n K O */
#define MOST_LAYERS 16

typedef struct {
    npy_intp n, K, O;
    const float *x, *w, *b, *y;
    int cuts;
} Layer;

static float *data(PyObject *o) { return o == Py_None ? NULL : PyArray_DATA((PyArrayObject *)o); }

static int is_matrix(PyObject *o, npy_intp rows, npy_intp columns, int writes) {
    return PyArray_Check(o) && PyArray_NDIM((PyArrayObject *)o) == 2 &&
           PyArray_DIM((PyArrayObject *)o, 0) == rows &&
           PyArray_DIM((PyArrayObject *)o, 1) == columns &&
           is_flat_of(o, NPY_FLOAT, rows * columns, writes);
}

static int is_none_or(PyObject *o, npy_intp rows, npy_intp columns, int writes) {
    if (o == Py_None) return 1;
    return rows ? is_matrix(o, rows, columns, writes) : is_flat_of(o, NPY_FLOAT, columns, writes);
}

/* A layer that gets n rows of K numbers, with its weights; it may be `large`, a bool. */
static int layer_of(npy_intp n, npy_intp K, PyObject *w, PyObject *large, Layer *q) {
    if (!PyArray_Check(w) || PyArray_NDIM((PyArrayObject *)w) != 2) return 0;
    *q = (Layer){n, K, PyArray_DIM((PyArrayObject *)w, 0)};
    q->w = data(w);
    int is_small = n * K <= LARGEST && n * K * q->O <= LARGEST;
    return is_matrix(w, q->O, K, 0) && n && K && q->O && (is_small || large == Py_True);
}

/* y = x w^T; where O > n its transpose, w x^T, of which less is copied. */
static int forward(const Layer *q, float *y) {
    Sizes s = {q->n, q->O, q->K, q->K, 1, 1, q->K, q->O, 1};
    Sizes turned = {q->O, q->n, q->K, q->K, 1, 1, q->K, 1, q->O};
    if (q->O > q->n ? !product(&turned, q->w, q->x, y, 0) : !product(&s, q->x, q->w, y, 0))
        return 0;
    for (npy_intp i = 0; i < q->n * q->O; i += q->O) finish_row(q->O, y + i, y + i, q->b, q->cuts);
    return 1;
}

static int backward(const Layer *q, const float *g, float *dx, float *dw, float *db) {
    Sizes of_x = {q->n, q->K, q->O, q->O, 1, q->K, 1, q->K, 1};
    Sizes of_w = {q->O, q->K, q->n, 1, q->O, q->K, 1, q->K, 1};
    if (dx && !product(&of_x, g, q->w, dx, 0)) return 0;
    if (dw && !product(&of_w, g, q->x, dw, 0)) return 0;
    if (db) {
        memcpy(db, g, q->O * sizeof *db);
        for (npy_intp i = 1; i < q->n; i++)
            for (npy_intp o = 0; o < q->O; o++) db[o] += g[i * q->O + o];
    }
    return 1;
}

static PyObject *linear_outputs(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Layer q;
    if (count != 6 || !has_rows(args[0], 2, 0) || !PyBool_Check(args[4])) Py_RETURN_NOTIMPLEMENTED;
    npy_intp *size = PyArray_DIMS((PyArrayObject *)args[0]);
    if (!layer_of(size[0], size[1], args[1], args[5], &q) || !is_matrix(args[0], q.n, q.K, 0) ||
        !is_none_or(args[2], 0, q.O, 0) || !is_matrix(args[3], q.n, q.O, 1))
        Py_RETURN_NOTIMPLEMENTED;
    int done;
    q.x = data(args[0]), q.b = data(args[2]), q.cuts = args[4] == Py_True;
    WITHOUT_GIL(q.n * q.K * q.O, done = forward(&q, data(args[3])));
    return done ? Py_NewRef(Py_None) : PyErr_NoMemory();
}

static PyObject *linear_gradients(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Layer q;
    if (count != 7 || !has_rows(args[1], 2, 0)) Py_RETURN_NOTIMPLEMENTED;
    npy_intp *size = PyArray_DIMS((PyArrayObject *)args[1]);
    if (!layer_of(size[0], size[1], args[2], args[6], &q) || !is_matrix(args[0], q.n, q.O, 0) ||
        !is_matrix(args[1], q.n, q.K, 0) || !is_none_or(args[3], q.n, q.K, 1) ||
        !is_none_or(args[4], q.O, q.K, 1) || !is_none_or(args[5], 0, q.O, 1))
        Py_RETURN_NOTIMPLEMENTED;
    int done;
    q.x = data(args[1]);
    WITHOUT_GIL(q.n * q.K * q.O, done = backward(&q, data(args[0]), data(args[3]), data(args[4]),
                                                 data(args[5])));
    return done ? Py_NewRef(Py_None) : PyErr_NoMemory();
}

/* The layers of tuples ws, ys and relus; their number, 0 if they do not fit. */
static npy_intp layers_of(PyObject *x, PyObject *ws, PyObject *ys, PyObject *relus, int writes,
                          Layer *layers) {
    if (!has_rows(x, 2, 0) || !PyTuple_Check(ws) || !PyTuple_Check(ys) || !PyTuple_Check(relus))
        return 0;
    npy_intp many = PyTuple_GET_SIZE(ws), *size = PyArray_DIMS((PyArrayObject *)x), K = size[1];
    if (many > MOST_LAYERS || PyTuple_GET_SIZE(ys) != many || PyTuple_GET_SIZE(relus) != many ||
        !is_matrix(x, size[0], K, 0))
        return 0;
    const float *rows = data(x);
    for (npy_intp i = 0; i < many; i++) {
        Layer *q = layers + i;
        PyObject *y = PyTuple_GET_ITEM(ys, i);
        if (!layer_of(size[0], K, PyTuple_GET_ITEM(ws, i), Py_False, q) ||
            !is_matrix(y, q->n, q->O, writes))
            return 0;
        q->x = rows, q->y = rows = data(y), q->cuts = PyTuple_GET_ITEM(relus, i) == Py_True;
        K = q->O;
    }
    return many;
}

/* Whether each of them is None or an array (O), or (O, K), for a layer. */
static int fit(PyObject *parts, npy_intp many, const Layer *layers, int matrices, int writes) {
    if (!PyTuple_Check(parts) || PyTuple_GET_SIZE(parts) != many) return 0;
    for (npy_intp i = 0; i < many; i++) {
        const Layer *q = layers + i;
        PyObject *part = PyTuple_GET_ITEM(parts, i);
        if (!is_none_or(part, matrices ? q->O : 0, matrices ? q->K : q->O, writes)) return 0;
    }
    return 1;
}

static PyObject *mlp_outputs(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Layer layers[MOST_LAYERS];
    if (count != 5) Py_RETURN_NOTIMPLEMENTED;
    npy_intp many = layers_of(args[0], args[1], args[3], args[4], 1, layers);
    if (!many || !fit(args[2], many, layers, 0, 0)) Py_RETURN_NOTIMPLEMENTED;
    for (npy_intp i = 0; i < many; i++) {
        layers[i].b = data(PyTuple_GET_ITEM(args[2], i));
        if (!forward(layers + i, data(PyTuple_GET_ITEM(args[3], i)))) return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

static PyObject *mlp_gradients(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Layer layers[MOST_LAYERS];
    if (count != 8) Py_RETURN_NOTIMPLEMENTED;
    npy_intp many = layers_of(args[1], args[2], args[3], args[4], 0, layers);
    if (!many || !fit(args[6], many, layers, 1, 1) || !fit(args[7], many, layers, 0, 1) ||
        !is_matrix(args[0], layers[0].n, layers[many - 1].O, 0) ||
        !is_none_or(args[5], layers[0].n, layers[0].K, 1))
        Py_RETURN_NOTIMPLEMENTED;
    npy_intp widest = 0;
    for (npy_intp i = 0; i < many; i++) widest = layers[i].O > widest ? layers[i].O : widest;
    widest *= layers[0].n;
    float *room = PyMem_Malloc(2 * widest * sizeof *room);
    if (!room) return PyErr_NoMemory();
    const float *g = data(args[0]);
    int done = 1;
    for (npy_intp i = many - 1; i >= 0 && done; i--) {
        const Layer *q = layers + i;
        float *here = room + (i % 2) * widest;
        if (q->cuts) {
            relu_gradient_row(q->n * q->O, g, q->y, here);
            g = here;
        }
        float *dx = i ? room + (i + 1) % 2 * widest : data(args[5]);
        done = backward(q, g, dx, data(PyTuple_GET_ITEM(args[6], i)),
                        data(PyTuple_GET_ITEM(args[7], i)));
        g = dx;
    }
    PyMem_Free(room);
    return done ? Py_NewRef(Py_None) : PyErr_NoMemory();
}
#endif

PyMethodDef linear_methods[] = {
#ifdef FUSED
    KERNEL(linear_outputs),
    KERNEL(linear_gradients),
    KERNEL(mlp_outputs),
    KERNEL(mlp_gradients),
#endif
    END_OF_KERNELS,
};
