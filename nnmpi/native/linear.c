/* Small linear layers, with ReLU or without, one or some of them in one call, in float32.

   n  rows of x      K  their length      O  outputs

   linear_outputs(x, w, b, y, relu)                 y (n, O) from x (n, K), w (O, K), b (O) or None
   linear_gradients(g, x, w, dx, dw, db)            from the gradient g of y before ReLU
   mlp_outputs(x, ws, bs, ys, relus)                layer by layer
   mlp_gradients(g, x, ws, ys, relus, dx, dws, dbs) and back, from the last one

   Gradients that are None are not needed. Of larger layers products take most of the time, and
   OpenBLAS is as fast. */
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

static float *data(PyObject *o) {
    return o == Py_None ? NULL : PyArray_DATA((PyArrayObject *)o);
}

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

/* A layer that gets n rows of K numbers, with its weights. */
static int layer_of(npy_intp n, npy_intp K, PyObject *w, Layer *q) {
    if (!PyArray_Check(w) || PyArray_NDIM((PyArrayObject *)w) != 2) return 0;
    *q = (Layer){n, K, PyArray_DIM((PyArrayObject *)w, 0)};
    if (!is_matrix(w, q->O, K, 0) || !n || !K || !q->O || n * K > LARGEST || n * K * q->O > LARGEST)
        return 0;
    q->w = data(w);
    return 1;
}

/* `room` is for K O numbers. */
static void forward(const Layer *q, float *y, float *room) {
    for (npy_intp o = 0; o < q->O; o++)
        for (npy_intp k = 0; k < q->K; k++) room[k * q->O + o] = q->w[o * q->K + k];
    Sizes s = {q->n, q->O, q->K, q->K, 1, q->O, q->O};
    product(&s, q->x, room, y, 0);
    for (npy_intp i = 0; i < q->n * q->O; i += q->O) finish_row(q->O, y + i, y + i, q->b, q->cuts);
}

static void backward(const Layer *q, const float *g, float *dx, float *dw, float *db) {
    Sizes of_x = {q->n, q->K, q->O, q->O, 1, q->K, q->K};
    Sizes of_w = {q->O, q->K, q->n, 1, q->O, q->K, q->K};
    if (dx) product(&of_x, g, q->w, dx, 0);
    if (dw) product(&of_w, g, q->x, dw, 0);
    if (db) {
        memcpy(db, g, q->O * sizeof *db);
        for (npy_intp i = 1; i < q->n; i++)
            for (npy_intp o = 0; o < q->O; o++) db[o] += g[i * q->O + o];
    }
}

static PyObject *linear_outputs(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Layer q;
    if (count != 5 || !has_rows(args[0], 2, 0) || !PyBool_Check(args[4])) Py_RETURN_NOTIMPLEMENTED;
    npy_intp *size = PyArray_DIMS((PyArrayObject *)args[0]);
    if (!layer_of(size[0], size[1], args[1], &q) || !is_matrix(args[0], q.n, q.K, 0) ||
        !is_none_or(args[2], 0, q.O, 0) || !is_matrix(args[3], q.n, q.O, 1))
        Py_RETURN_NOTIMPLEMENTED;
    float *room = PyMem_Malloc(q.K * q.O * sizeof *room);
    if (!room) return PyErr_NoMemory();
    q.x = data(args[0]), q.b = data(args[2]), q.cuts = args[4] == Py_True;
    forward(&q, data(args[3]), room);
    PyMem_Free(room);
    Py_RETURN_NONE;
}

static PyObject *linear_gradients(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Layer q;
    if (count != 6 || !has_rows(args[1], 2, 0)) Py_RETURN_NOTIMPLEMENTED;
    npy_intp *size = PyArray_DIMS((PyArrayObject *)args[1]);
    if (!layer_of(size[0], size[1], args[2], &q) || !is_matrix(args[0], q.n, q.O, 0) ||
        !is_matrix(args[1], q.n, q.K, 0) || !is_none_or(args[3], q.n, q.K, 1) ||
        !is_none_or(args[4], q.O, q.K, 1) || !is_none_or(args[5], 0, q.O, 1))
        Py_RETURN_NOTIMPLEMENTED;
    q.x = data(args[1]);
    backward(&q, data(args[0]), data(args[3]), data(args[4]), data(args[5]));
    Py_RETURN_NONE;
}

/* The layers of tuples ws, ys and relus; their number, 0 if they do not fit. `widest` is the
   largest number of weights, or of outputs of all rows. */
static npy_intp layers_of(PyObject *x, PyObject *ws, PyObject *ys, PyObject *relus, int writes,
                          Layer *layers, npy_intp *widest) {
    if (!has_rows(x, 2, 0) || !PyTuple_Check(ws) || !PyTuple_Check(ys) || !PyTuple_Check(relus))
        return 0;
    npy_intp many = PyTuple_GET_SIZE(ws), *size = PyArray_DIMS((PyArrayObject *)x), K = size[1];
    if (many > MOST_LAYERS || PyTuple_GET_SIZE(ys) != many || PyTuple_GET_SIZE(relus) != many ||
        !is_matrix(x, size[0], K, 0))
        return 0;
    const float *rows = data(x);
    *widest = 0;
    for (npy_intp i = 0; i < many; i++) {
        Layer *q = layers + i;
        PyObject *y = PyTuple_GET_ITEM(ys, i);
        if (!layer_of(size[0], K, PyTuple_GET_ITEM(ws, i), q) || !is_matrix(y, q->n, q->O, writes))
            return 0;
        q->x = rows, q->y = rows = data(y), q->cuts = PyTuple_GET_ITEM(relus, i) == Py_True;
        npy_intp most = q->n > q->K ? q->n * q->O : q->K * q->O;
        *widest = most > *widest ? most : *widest;
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
    npy_intp widest;
    if (count != 5) Py_RETURN_NOTIMPLEMENTED;
    npy_intp many = layers_of(args[0], args[1], args[3], args[4], 1, layers, &widest);
    if (!many || !fit(args[2], many, layers, 0, 0)) Py_RETURN_NOTIMPLEMENTED;
    float *room = PyMem_Malloc(widest * sizeof *room);
    if (!room) return PyErr_NoMemory();
    for (npy_intp i = 0; i < many; i++) {
        layers[i].b = data(PyTuple_GET_ITEM(args[2], i));
        forward(layers + i, data(PyTuple_GET_ITEM(args[3], i)), room);
    }
    PyMem_Free(room);
    Py_RETURN_NONE;
}

static PyObject *mlp_gradients(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Layer layers[MOST_LAYERS];
    npy_intp widest;
    if (count != 8) Py_RETURN_NOTIMPLEMENTED;
    npy_intp many = layers_of(args[1], args[2], args[3], args[4], 0, layers, &widest);
    if (!many || !fit(args[6], many, layers, 1, 1) || !fit(args[7], many, layers, 0, 1) ||
        !is_matrix(args[0], layers[0].n, layers[many - 1].O, 0) ||
        !is_none_or(args[5], layers[0].n, layers[0].K, 1))
        Py_RETURN_NOTIMPLEMENTED;
    float *room = PyMem_Malloc(2 * widest * sizeof *room);
    if (!room) return PyErr_NoMemory();
    const float *g = data(args[0]);
    for (npy_intp i = many - 1; i >= 0; i--) {
        const Layer *q = layers + i;
        float *here = room + (i % 2) * widest;
        if (q->cuts) {
            relu_gradient_row(q->n * q->O, g, q->y, here);
            g = here;
        }
        float *dx = i ? room + (i + 1) % 2 * widest : data(args[5]);
        backward(q, g, dx, data(PyTuple_GET_ITEM(args[6], i)), data(PyTuple_GET_ITEM(args[7], i)));
        g = dx;
    }
    PyMem_Free(room);
    Py_RETURN_NONE;
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
