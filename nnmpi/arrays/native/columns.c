/* The columns of a convolution: the pixels of each output's window.

   `places` is a view (..., kw, C) of padded images, whose windows overlap, and `columns` an array
   of the same shape.

   gather_loop(places, columns)     columns = places, of float32 or 16 bits each
   overlap_loop(places, columns)    places += columns, window by window, in float32 */
#include "halves.h"

#define MOST_AXES 10

/* The contiguous runs of a view: its last axis, with the axis before it if that is contiguous,
   too. */
typedef struct {
    int axes;
    npy_intp runs, run, size[MOST_AXES], by[MOST_AXES], at[MOST_AXES];
} Runs;

static int runs_of(const Arguments *a, Runs *r) {
    int n = a->array[0].axes;
    if (n < 2 || n > MOST_AXES) return 0;
    *r = (Runs){n - 1, 1, size(a, 0, n - 1)};
    if (step(a, 0, n - 2) == r->run) r->run *= size(a, 0, n - 2), r->axes--;
    for (int i = 0; i < r->axes; i++) {
        r->size[i] = size(a, 0, i), r->by[i] = step(a, 0, i);
        r->runs *= r->size[i];
    }
    return 1;
}

/* The distance to the next run, in elements. */
static npy_intp next(Runs *r) {
    npy_intp by = 0;
    for (int i = r->axes - 1; i >= 0; i--) {
        by += r->by[i];
        if (++r->at[i] < r->size[i]) return by;
        by -= r->by[i] * r->size[i], r->at[i] = 0;
    }
    return by;
}

static int gather_loop(Arguments *a) {
    Runs r;
    const Array *x = a->array, *y = x + 1;
    if (!runs_of(a, &r) || (x->half && y->half && x->half != y->half)) return NOT_MADE_FOR;
    without_gil(a, a->bytes);
    const char *places = a->at[0];
    char *columns = a->at[1];
    for (npy_intp k = 0; k < r.runs; k++, columns += r.run * y->itemsize) {
        convert(x->half, y->half, places, columns, r.run);
        places += next(&r) * x->itemsize;
    }
    return DONE;
}

static int overlap_loop(Arguments *a) {
    Runs r;
    if (!runs_of(a, &r)) return NOT_MADE_FOR;
    float *places = a->at[0];
    const float *columns = a->at[1];
    for (npy_intp k = 0; k < r.runs; k++, columns += r.run, places += next(&r))
#pragma GCC ivdep
        for (npy_intp i = 0; i < r.run; i++) places[i] += columns[i];
    return DONE;
}

Kernel column_kernels[] = {
    HALVES(gather_loop, "f-* ~f*"),
    KERNEL(overlap_loop, "=f<* f*"),
    END_OF_KERNELS,
};
