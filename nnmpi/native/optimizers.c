/* Optimizer steps in one pass over memory. Each number is computed by the operations of
   kernels/steps.py in their order, so the bits are those of NumPy.

   Where an array follows the numbers of a step, what is changed is kept in it, a block at a time,
   as kernels/undo.py says: a block is copied, which brings it into the first cache, noted as begun,
   changed there, and noted as done. */
#include "native.h"
#include <math.h>

#define REAL float
#define OF(name) name##_float
#define ROOT sqrtf
#include "optimizers.h"
#undef REAL
#undef OF
#undef ROOT

#define REAL double
#define OF(name) name##_double
#define ROOT sqrt
#include "optimizers.h"

typedef void (*Step)(const Arguments *, const double *);

/* Bytes of each array that are kept at a time. An Adam step of a million numbers takes 0.65 ms, and
   with blocks of 512 bytes 0.1 ms more, of 1,024 bytes 0.25 ms, of 2,048 bytes 0.6 ms. */
#define BLOCK 512
#define NOTE 64        /* bytes in front of what is kept */
#define LENGTH_BITS 20 /* of a note: done << 20 | numbers that are kept */

/* Copies n numbers of each array that changes to `kept`, or back. */
static void keep(const Arguments *a, int arrays, char *kept, npy_intp n, int is_back) {
    for (int k = 0; k < arrays; k++) {
        if (!a->at[k] || !a->array[k].is_written) continue;
        size_t bytes = n * a->array[k].itemsize;
        memcpy(is_back ? a->at[k] : kept, is_back ? kept : a->at[k], bytes);
        kept += bytes;
    }
}

/* A process that is killed has carried out its writes up to one of them, in the order of its code,
   which the compiler is not to change. */
static void note(npy_int64 *word, npy_int64 done, npy_intp n) {
    __atomic_store_n(word, done << LENGTH_BITS | n, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* A step on arrays of `width` bytes a number, of which the array behind them keeps blocks. */
static int in_blocks(Arguments *a, Step step, int arrays, npy_intp width) {
    npy_int64 *word = a->at[arrays];
    char *kept = (char *)word + NOTE;
    npy_intp changed = 0, whole = a->n, bytes = numbers(a, arrays) * width - NOTE;
    for (int k = 0; k < arrays; k++) changed += a->at[k] && a->array[k].is_written;
    npy_intp most = bytes / (changed * width), n;
    if (most < 1 || (npy_uintp)word % sizeof *word) return NOT_MADE_FOR;
    npy_int64 done = *word >> LENGTH_BITS;
    n = *word & ((1 << LENGTH_BITS) - 1);
    if (n > most || n > whole) return NOT_MADE_FOR;
    if (n) keep(a, arrays, kept, n, 1);
    note(word, done, 0);
    if (most > BLOCK / width) most = BLOCK / width;
    for (npy_intp i = 0; i < whole; i += n) {
        a->n = n = whole - i < most ? whole - i : most;
        keep(a, arrays, kept, n, 0);
        note(word, done + i, n);
        step(a, a->number);
        note(word, done + i + n, 0);
        for (int k = 0; k < arrays; k++)
            if (a->at[k]) a->at[k] = (char *)a->at[k] + n * width;
    }
    return DONE;
}

/* A kernel of so many arrays. */
#define STEP(name, of, count, fits)                                                                \
    static int name(Arguments *a) {                                                                \
        if (!(fits) || a->arrays > count + 1) return NOT_MADE_FOR;                                 \
        Step step = a->type == NPY_FLOAT ? of##_float : of##_double;                               \
        if (a->arrays > count) return in_blocks(a, step, count, a->array[0].itemsize);             \
        step(a, a->number);                                                                        \
        return DONE;                                                                               \
    }

/* p, factor */
STEP(scale_loop, scale, 1, 1)
/* p, g, m, v, largest or None, beta1, beta2, a, e, decay, shrink */
STEP(adam_loop, adam, 5, 1)
/* p, g, velocity or None, momentum, decay, lr, rate of the velocity, whether g moves p, as it does
   without a velocity */
STEP(sgd_loop, sgd, 3, a->at[2] || a->number[4])
/* p, g, squares, velocity or None, mean or None, lr, alpha, 1 - alpha, eps, decay, momentum */
STEP(rmsprop_loop, rmsprop, 5, 1)

Kernel optimizer_kernels[] = {
    KERNEL(scale_loop, "=r@ # +=rU"),
    KERNEL(adam_loop, "=r@ r@ =r@ =r@ =?r@ # # # # # # +=rU"),
    KERNEL(sgd_loop, "=r@ r@ =?r@ # # # # ! +=rU"),
    KERNEL(rmsprop_loop, "=r@ r@ =r@ =?r@ =?r@ # # # # # # +=rU"),
    END_OF_KERNELS,
};
