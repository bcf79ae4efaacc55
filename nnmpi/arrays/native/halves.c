/* Arrays in 16 bits: float32 kernels compute on copies, and what they write is rounded.

   A kernel that treats all indices of an axis in the same way gets some of them at a time, so that
   copies stay in the L1 and L2 caches:

       16 bits  ─ widened ─►  float32, up to PART elements  ─ kernel ─►  ─ rounded ─►  16 bits

   cast_loop(x, y)                    y = x, rounded if y has 16 bits
   round_loop(x, y)                   y in 16 bits, with rows apart in memory, = x rounded
   merge_loop(masters, values)        masters that do not round to their values become the values */
#include "halves.h"

#define MOST_AXES 10
#define PART 2048        /* elements of an array */
#define LANES_OF_PART 16 /* a part has a multiple of this many indices: sums have 16 lanes */

/* An array: where it is, its float32 copy if it has 16 bits, and how it is cut into parts. */
typedef struct {
    char *at;
    float *copy;
    int axis;                                  /* along which it is cut; -1: not at all, -2: as
                                                  neighbours in memory */
    npy_intp jump;                             /* bytes from one index to the next one */
    npy_intp numbers;                          /* of one index, or of all */
    npy_intp size[MOST_AXES], step[MOST_AXES]; /* in memory */
    int is_flat;                               /* copied in the order of memory */
    int half;
} Copied;

/* Copies 16-bit elements to or from float32, in the order of their axes; returns the end of y. */
static float *copied(int half, npy_uint16 *x, float *y, const npy_intp *size, const npy_intp *step,
                     int axes, int is_back) {
    npy_intp run = 1, i = axes;
    while (i > 0 && (size[i - 1] == 1 || step[i - 1] == run)) run *= size[--i];
    if (!i) {
        if (is_back) round_to(half, y, x, run);
        else widen(half, x, y, run);
        return y + run;
    }
    for (npy_intp k = 0; k < size[0]; k++)
        y = copied(half, x + k * step[0], y, size + 1, step + 1, axes - 1, is_back);
    return y;
}

/* The axis of an array with this letter, or -1; for *, the first of these axes with a size. */
static int axis_of(const Arguments *a, int i, char letter) {
    const Argument *q = a->first + a->array[i].argument;
    int rests = q->rest < 0 ? 0 : a->array[i].axes - q->axes;
    for (int k = 0; k < q->axes; k++)
        if (q->axis[k].letter == letter - '@' && q->axis[k].factor == 1 && !q->axis[k].other)
            return q->rest >= 0 && k >= q->rest ? k + rests : k;
    int axis = q->rest;
    if (letter != '*' || axis < 0 || !rests) return -1;
    while (axis + 1 < q->rest + rests && size(a, i, axis) == 1) axis++;
    return axis;
}

/* 1 if the kernel gets a copy of array i. */
static int is_copied(const Arguments *a, int i) {
    return a->at[i] && a->array[i].half && a->first[a->array[i].argument].kind != 'h';
}

/* 1 if the kernel reads elements of array i that it has not written. */
static int is_read(const Arguments *a, int i) { return a->first[a->array[i].argument].is_read; }

/* The length of the axis with this letter. */
static npy_intp length_of(const Arguments *a, char letter) {
    if (letter == '@') return a->n;
    if (letter != '*') return SIZE(a, letter);
    for (int i = 0; i < a->rests; i++)
        if (a->rest[i] > 1) return a->rest[i];
    return 1;
}

/* How array i is cut along the axis `letter` with `whole` indices; 0 if no axis is cut. */
static Copied cut(const Arguments *a, int i, char letter, npy_intp whole) {
    const Array *x = a->array + i;
    const Argument *q = a->first + x->argument;
    Copied c = {.at = a->at[i], .axis = -1, .half = x->half};
    c.numbers = q->layout == '@' ? a->n : numbers(a, i);
    for (int k = 0; k < x->axes; k++) c.size[k] = size(a, i, k), c.step[k] = step(a, i, k);
    if (q->layout == '@') c.axis = letter == '@' ? -2 : -1;
    else if (letter) c.axis = axis_of(a, i, letter);
    c.is_flat = q->layout == '@' || (c.axis == -1 && is_dense(c.size, x->axes, c.step, c.numbers));
    if (c.axis == -1) return c;
    c.jump = (c.axis < 0 ? 1 : c.step[c.axis]) * x->itemsize;
    c.numbers /= whole;
    return c;
}

/* Copies `count` indices of an array, from `start` on, or all of an array that is not cut, to or
   from its float32 copy. */
static void copy(const Arguments *a, int i, const Copied *c, npy_intp start, npy_intp count,
                 int is_back) {
    npy_uint16 *at = (npy_uint16 *)(c->at + start * c->jump);
    int half = c->half;
    npy_intp n = c->axis == -1 ? c->numbers : count, size[MOST_AXES];
    if (c->is_flat) {
        if (is_back) round_to(half, c->copy, at, n);
        else widen(half, at, c->copy, n);
        return;
    }
    memcpy(size, c->size, sizeof size);
    if (c->axis >= 0) size[c->axis] = count;
    copied(half, at, c->copy, size, c->step, a->array[i].axes, is_back);
}

/* Shows the kernel some indices of an array, or of its copy. */
static void show(Arguments *a, int i, const Copied *c, npy_intp start, npy_intp count) {
    npy_intp *sizes = a->room + a->array[i].sizes, *steps = sizes + a->array[i].axes, step = 1;
    if (c->copy) a->array[i].half = 0, a->array[i].itemsize = sizeof(float);
    a->at[i] = c->copy ? (char *)c->copy : c->at + start * c->jump;
    if (c->is_flat) return;
    if (c->axis >= 0) sizes[c->axis] = count;
    for (int k = a->array[i].axes - 1; c->copy && k >= 0; step *= sizes[k--]) steps[k] = step;
}

static int in_parts(const Kernel *kernel, Arguments *a, Copied *c, char letter, npy_intp whole,
                    npy_intp part) {
    int arrays = a->arrays;
    for (int i = 0; i < arrays; i++)
        if (c[i].copy && c[i].axis == -1 && is_read(a, i)) copy(a, i, c + i, 0, 0, 0);
    for (npy_intp start = 0; start < whole; start += part) {
        npy_intp count = whole - start < part ? whole - start : part;
        for (int i = 0; i < arrays; i++) {
            if (c[i].copy && c[i].axis != -1 && is_read(a, i)) copy(a, i, c + i, start, count, 0);
            if (c[i].at) show(a, i, c + i, start, count);
        }
        if (letter == '@') a->n = count;
        else if (letter && letter != '*') SIZE(a, letter) = count;
        int result = kernel->compute(a);
        if (result != DONE) return result;
        for (int i = 0; i < arrays; i++)
            if (c[i].copy && c[i].axis != -1 && a->array[i].is_written)
                copy(a, i, c + i, start, count, 1);
    }
    for (int i = 0; i < arrays; i++)
        if (c[i].copy && c[i].axis == -1 && a->array[i].is_written) copy(a, i, c + i, 0, 0, 1);
    return DONE;
}

/* The floats of an array's copy, which begins at a cache line. */
static npy_intp room_of(const Copied *c, npy_intp part) {
    return whole_of(c->numbers * (c->axis == -1 ? 1 : part), CACHE_LINE / sizeof(float));
}

int in_float32(const Kernel *kernel, Arguments *a) {
    if (kernel->decides) return NOT_MADE_FOR;
    const char *along = kernel->along;
    while (*along && along[1] && length_of(a, *along) == 1) along++;
    npy_intp whole = *along ? length_of(a, *along) : 1, most = 1, room = 0, part;
    int is_windows = 0; /* elements that windows share are copied several times */
    for (int i = 0; i < a->arrays; i++)
        if (a->at[i] && a->array[i].axes > MOST_AXES) return NOT_MADE_FOR;
    Copied *c = a->type == NPY_FLOAT ? malloc(a->arrays * sizeof *c) : NULL;
    if (!c) return a->type == NPY_FLOAT ? NO_MEMORY : NOT_MADE_FOR;
    for (int i = 0; i < a->arrays; i++) {
        if (!a->at[i]) {
            c[i] = (Copied){NULL};
            continue;
        }
        c[i] = cut(a, i, *along, whole);
        is_windows |= is_copied(a, i) && a->first[a->array[i].argument].layout == '<';
        if (is_copied(a, i) && c[i].axis != -1 && c[i].numbers > most) most = c[i].numbers;
    }
    part = PART / most > LANES_OF_PART ? PART / most / LANES_OF_PART * LANES_OF_PART : PART / most;
    part = part < 1 ? 1 : part > whole ? whole : part;
    for (int i = 0; i < a->arrays; i++)
        if (is_copied(a, i)) room += room_of(c + i, part);
    float *copies = aligned_alloc(CACHE_LINE, room * sizeof *copies), *next = copies;
    for (int i = 0; copies && i < a->arrays; i++)
        if (is_copied(a, i)) {
            c[i].copy = next;
            next += room_of(c + i, part);
        }
    int result = !copies     ? NO_MEMORY
                 : is_windows ? NOT_MADE_FOR
                              : in_parts(kernel, a, c, *along, whole, part);
    free(copies);
    free(c);
    return result;
}

/* Copies 16-bit or float32 elements to either type. */
static int cast_loop(Arguments *a) {
    int from = a->array[0].half, to = a->array[1].half;
    if (from && to && from != to) return NOT_MADE_FOR;
    without_gil(a, a->bytes);
    convert(from, to, a->at[0], a->at[1], a->n);
    return DONE;
}

static int round_loop(Arguments *a) {
    if (a->array[0].half || !a->array[1].half) return NOT_MADE_FOR;
    without_gil(a, a->bytes);
    const npy_intp *sizes = a->room + a->array[1].sizes;
    int axes = a->array[1].axes;
    copied(a->array[1].half, a->at[1], a->at[0], sizes, sizes + axes, axes, 1);
    return DONE;
}

static int merge_loop(Arguments *a) {
    float *masters = a->at[0];
    const npy_uint16 *values = a->at[1];
    int half = a->array[1].half;
    if (!half || a->array[0].half) return NOT_MADE_FOR;
    without_gil(a, a->bytes);
    for (npy_intp i = 0; i < a->n; i += SOME)
        merge(half, masters + i, values + i, a->n - i < SOME ? a->n - i : SOME);
    return DONE;
}

Kernel half_kernels[] = {
    HALVES(cast_loop, "f@ ~f@"),
    HALVES(round_loop, "f*D ~f-*D"),
    HALVES(merge_loop, "=f@ f@"),
    END_OF_KERNELS,
};
