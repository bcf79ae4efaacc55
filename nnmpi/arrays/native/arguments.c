/* Parses the arguments of all kernels, as native.h describes them. */
#include "halves.h"

int is_dense(const npy_intp *sizes, int axes, const npy_intp *steps, npy_intp whole) {
    npy_intp next = 1;
    while (next < whole) {
        int i = 0;
        while (i < axes && (sizes[i] == 1 || steps[i] != next)) i++;
        if (i == axes) return 0;
        next *= sizes[i];
    }
    return 1;
}

static int is_alike(const npy_intp *sizes, const npy_intp *others, int axes) {
    for (int i = 0; i < axes; i++)
        if (sizes[i] != others[i] || (sizes[i] > 1 && sizes[axes + i] != others[axes + i]))
            return 0;
    return 1;
}

/* The number of elements that axes with steps below `period` span; 0 if a longer step is not a
   multiple of `period`. */
static npy_intp span(const npy_intp *sizes, int axes, npy_intp period) {
    const npy_intp *steps = sizes + axes;
    npy_intp numbers = 1;
    for (int i = 0; i < axes; i++)
        if (sizes[i] > 1 && steps[i] < period) numbers += (sizes[i] - 1) * steps[i];
        else if (sizes[i] > 1 && steps[i] % period) return 0;
    return numbers;
}

/* 1 if two indices may share an element, apart from the overlapping windows of axes -3 and -2. */
static int overlaps_itself(const npy_intp *sizes, int axes, int has_windows) {
    const npy_intp *steps = sizes + axes;
    for (int i = 0; i < axes; i++) {
        npy_intp reach = 0;
        for (int j = 0; j < axes; j++)
            if (j != i && sizes[j] > 1 && steps[j] <= steps[i] &&
                !(has_windows && (j == axes - 3 || j == axes - 2)))
                reach += (sizes[j] - 1) * steps[j];
        if (sizes[i] > 1 && reach >= steps[i] &&
            !(has_windows && (i == axes - 3 || i == axes - 2)))
            return 1;
    }
    return 0;
}

/* 1 if two arrays are interleaved in memory, as gradients of queries and keys are:  qqkkvv qqkkvv */
static int take_turns(const Arguments *a, int i, int j) {
    const Array *x = a->array + i, *y = a->array + j;
    if (x->itemsize != y->itemsize) return 0;
    for (int axis = 0; axis < x->axes; axis++) {
        npy_intp period = step(a, i, axis), bytes = period * x->itemsize;
        if (size(a, i, axis) == 1 || !period) continue;
        npy_intp own = span(a->room + x->sizes, x->axes, period) * x->itemsize;
        npy_intp other = span(a->room + y->sizes, y->axes, period) * y->itemsize;
        npy_intp apart = (npy_intp)((npy_uintp)a->at[j] - (npy_uintp)a->at[i]) % bytes;
        apart += apart < 0 ? bytes : 0;
        if (own && other && apart >= own && apart + other <= bytes) return 1;
    }
    return 0;
}

/* 1 if an array overlaps no other one; without branches, since there may be many arrays. */
static int is_alone(const Arguments *a, int i) {
    npy_intp start = (npy_intp)a->at[i], end = a->end[i];
    int meets = 0; /* counts itself too */
    for (int j = 0; j < a->arrays; j++)
        meets += (start < a->end[j]) & ((npy_intp)a->at[j] < end);
    return meets == 1;
}

#define MANY 12

static int are_apart(const Arguments *a) {
    for (int i = 0; i < a->arrays; i++) {
        if (!a->at[i] || !a->array[i].is_written) continue;
        if (a->arrays > MANY && is_alone(a, i)) continue;
        npy_intp start = (npy_intp)a->at[i], end = a->end[i];
        for (int j = 0; j < a->arrays; j++)
            if (start < a->end[j] && (npy_intp)a->at[j] < end && j != i && !take_turns(a, i, j))
                return 0;
    }
    return 1;
}

/* Stores the axes of an array in `room`; the first use of a letter defines its size. */
ALWAYS_INLINE int has_axes(Arguments *a, const Argument *q, const npy_intp *sizes, int axes) {
    int rests = axes - q->axes;
    if (q->rest < 0 ? rests : rests < 0) return 0;
    for (int i = 0; i < q->axes; i++) {
        const Axis *x = q->axis + i;
        npy_intp found = sizes[q->rest >= 0 && i >= q->rest ? i + rests : i];
        npy_intp *of_letter = a->size + x->letter, known = x->factor * a->size[x->other];
        if (x->is_first) *of_letter = x->factor < 2 ? found : found / x->factor;
        if (found != known * *of_letter) return 0;
    }
    if (q->rest < 0) return 1;
    if (a->rests < 0) a->rests = rests, a->rest = sizes + q->rest;
    for (int i = 0; i < rests; i++)
        if (rests != a->rests || sizes[q->rest + i] != a->rest[i]) return 0;
    return rests == a->rests;
}

/* The 16-bit type of an array of floats, or 0. ml_dtypes adds bfloat16 to NumPy. */
static int half_of(PyArrayObject *x) {
    if (PyArray_TYPE(x) == NPY_HALF) return FLOAT16;
    if (PyArray_TYPE(x) < NPY_USERDEF || PyArray_ITEMSIZE(x) != 2) return 0;
    return PyArray_DESCR(x)->kind == 'V' && PyArray_DESCR(x)->type == 'E' ? BFLOAT16 : 0;
}

ALWAYS_INLINE int array(Arguments *a, const Argument *q, PyObject *o) {
    if (!PyArray_CheckExact(o)) return 0;
    PyArrayObject *x = (PyArrayObject *)o;
    int i = a->arrays++, axes = PyArray_NDIM(x), flags = PyArray_FLAGS(x), type = PyArray_TYPE(x);
    if (q->type < 0 && a->type < 0 && (type == NPY_FLOAT || type == NPY_DOUBLE)) a->type = type;
    int half = 0, wanted = q->type < 0 ? a->type : q->type;
    if (type != wanted && strchr("fhr", q->kind)) a->halves += (half = half_of(x)) != 0;
    if ((type != wanted && !half) || !PyArray_ISNOTSWAPPED(x) ||
        (flags & q->flags) != q->flags || a->used + 2 * axes > ROOM)
        return 0;
    const npy_intp *dims = PyArray_DIMS(x), *strides = PyArray_STRIDES(x);
    npy_intp *sizes = a->room + a->used, *steps = sizes + axes, n = 1, last = 0;
    int itemsize = (int)PyArray_ITEMSIZE(x), shift = itemsize == 8 ? 3 : itemsize / 2;
    int is_nested = 1; /* each step is beyond the span of the axes after it */
    for (int k = axes - 1; k >= 0; k--) {
        sizes[k] = dims[k], steps[k] = strides[k] >> shift, n *= dims[k];
        is_nested &= dims[k] == 1 || strides[k] > last;
        last += (dims[k] - 1) * strides[k];
        if (dims[k] <= 0 || strides[k] < 0 || strides[k] & (itemsize - 1)) return 0;
        if (dims[k] > NPY_MAX_INT32 && q->layout != '@') return 0;
    }
    a->at[i] = PyArray_DATA(x);
    a->end[i] = (npy_intp)a->at[i] + last + itemsize;
    a->array[i] = (Array){a->used, axes, itemsize, q->is_written, half, q - a->first};
    if (n << shift > a->bytes) a->bytes = n << shift;
    if (q->layout == '@' && a->alike >= 0) {
        const Array *first = a->array + a->alike;
        a->array[i].sizes = first->sizes;
        return axes == first->axes && is_alike(sizes, a->room + first->sizes, axes);
    }
    a->used += 2 * axes;
    if (q->layout == '@') a->alike = i, a->n = n;
    if (q->layout == '@') return is_dense(sizes, axes, steps, n);
    int has_rows = !axes || sizes[axes - 1] == 1 || steps[axes - 1] == 1;
    int is_plain =
        is_nested || !q->is_written || !overlaps_itself(sizes, axes, q->layout == '<');
    return is_plain && (has_rows || q->layout == ':') && has_axes(a, q, sizes, axes);
}

/* Takes plain Python numbers and words of keys (arrays of one uint32) only: the code of other types
   might change arrays already checked. */
ALWAYS_INLINE int number(Arguments *a, char kind, PyObject *o) {
    double x, limit = kind == '%' ? NPY_MAX_INT32 : 1LL << 53;
    PyArrayObject *word = PyArray_CheckExact(o) ? (PyArrayObject *)o : NULL;
    if (a->numbers == MAX_NUMBERS || PyBool_Check(o) != (kind == '!')) return 0;
    if (word && kind == '&' && !PyArray_NDIM(word) && PyArray_TYPE(word) == NPY_UINT32)
        x = *(npy_uint32 *)PyArray_DATA(word);
    else if (PyFloat_Check(o) && kind == '#') x = PyFloat_AsDouble(o);
    else if (PyLong_CheckExact(o) || kind == '!') x = PyLong_AsDouble(o);
    else return 0;
    if (x == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    a->number[a->numbers++] = x;
    return kind == '#' || (x >= -limit && x <= limit);
}

ALWAYS_INLINE int argument(Arguments *a, const Argument *q, PyObject *o) {
    if (a->arrays == MAX_ARRAYS) return 0;
    switch (q->kind) {
    case '#': case '%': case '&': case '!': return number(a, q->kind, o);
    case '0': return o == Py_None;
    case 'o': return 1;
    }
    if (o != Py_None || !q->may_be_none) return array(a, q, o);
    a->at[a->arrays] = NULL, a->end[a->arrays++] = 0;
    return 1;
}

static __attribute__((noinline)) int items(Arguments *a, const Argument *q, PyObject *o) {
    if (!PyTuple_CheckExact(o)) return 0;
    int count = a->items[a->tuples++] = (int)PyTuple_Size(o);
    for (int i = 0; i < count; i++)
        if (!argument(a, q, PyTuple_GetItem(o, i))) return 0;
    return 1;
}

static int take(Arguments *a, const Argument *q, PyObject *const *args, Py_ssize_t count) {
    a->arrays = a->numbers = a->tuples = a->used = a->halves = 0, a->bytes = 0, a->first = q;
    a->type = a->alike = a->rests = -1, a->size[0] = 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!q->kind || !(q->is_tuple ? items(a, q, args[i]) : argument(a, q, args[i]))) return 0;
        q += !q->goes_on;
    }
    if (a->type < 0) a->type = NPY_FLOAT;
    return (!q->kind || q->goes_on) && are_apart(a);
}

/* Parses the description of one argument; returns its end. */
static const char *described(const char *s, Argument *q, npy_uint64 *letters) {
    *q = (Argument){.rest = -1};
    if ((q->goes_on = *s == '+')) s++;
    if ((q->is_tuple = *s == '(')) s++;
    q->is_read = *s != '~';
    if ((q->is_written = *s == '=' || *s == '~')) s++;
    if ((q->may_be_none = *s == '?')) s++;
    q->kind = *s++;
    q->type = q->kind == 'f' || q->kind == 'h' ? NPY_FLOAT : q->kind == 'i' ? NPY_INT64 : -1;
    q->type = q->kind == 'u' ? NPY_UINT32 : q->kind == 'b' ? NPY_UINT8 : q->type;
    if (*s && strchr("-<:@", *s)) q->layout = *s++;
    q->flags = NPY_ARRAY_ALIGNED | (q->is_written ? NPY_ARRAY_WRITEABLE : 0) |
               (q->layout ? 0 : NPY_ARRAY_C_CONTIGUOUS);
    for (; *s && *s != ' ' && *s != ')'; s++) {
        if (*s == '*') {
            q->rest = q->axes;
            continue;
        }
        Axis *x = q->axis + q->axes++;
        for (*x = (Axis){.factor = 1};; s += 2) {
            if (*s <= '9') x->factor = *s - '0';
            else x->other = x->letter, x->letter = *s - '@';
            if (s[1] != '.') break;
        }
        x->is_first = *s == '_' || !(*letters >> x->letter & 1);
        *letters |= 1ULL << x->letter;
    }
    return s;
}

void describe(Kernel *kernel) {
    npy_uint64 letters = 1;
    Argument *q = kernel->arguments;
    for (const char *s = kernel->method.ml_doc; *s; s += *s == ')', s += *s == ' ')
        s = described(s, q++, &letters);
}

PyObject *call_kernel(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    const Kernel *kernel = PyCapsule_GetPointer(self, NULL);
    Arguments a;
    if (!take(&a, kernel->arguments, args, count)) Py_RETURN_NOTIMPLEMENTED;
    a.thread = NULL;
    without_gil(&a, kernel->decides ? 0 : a.bytes);
    int result = !a.halves || kernel->decides == 2 ? kernel->compute(&a) : in_float32(kernel, &a);
    if (a.thread) PyEval_RestoreThread(a.thread);
    if (result == NOT_MADE_FOR) Py_RETURN_NOTIMPLEMENTED;
    return result == DONE ? Py_NewRef(Py_None) : PyErr_NoMemory();
}
