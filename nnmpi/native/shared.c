/* Memory that ranks share: sums of what they have in it, and a barrier in which they meet. */
#include "native.h"
#include <sched.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define BLOCK 4096 /* bytes that are summed at a time: they stay in the first cache */

/* out[i] = parts[0][at + i] + parts[1][at + i] + ..., from left to right. */
#define SUM(name, REAL)                                                                            \
    static void name(REAL *restrict out, void **parts, int count, npy_intp at, npy_intp n) {      \
        const REAL *restrict a = (const REAL *)parts[0] + at;                                      \
        const REAL *restrict b = (const REAL *)parts[1] + at;                                      \
        for (npy_intp i = 0; i < n; i++) out[i] = a[i] + b[i];                                     \
        for (int r = 2; r < count; r++) {                                                          \
            const REAL *restrict c = (const REAL *)parts[r] + at;                                  \
            for (npy_intp i = 0; i < n; i++) out[i] += c[i];                                       \
        }                                                                                          \
    }
SUM(sum_float, float)
SUM(sum_double, double)

/* The sum of all arrays behind the one of number `out`; whether there are two at least. */
static int sum_all(const Arguments *a, int out) {
    npy_intp step = BLOCK / a->array[out].itemsize;
    void **parts = (void **)a->at + out + 1;
    int count = a->arrays - out - 1;
    for (npy_intp i = 0; count > 1 && i < a->n; i += step) {
        npy_intp n = a->n - i < step ? a->n - i : step;
        if (a->type == NPY_FLOAT) sum_float((float *)a->at[out] + i, parts, count, i, n);
        else sum_double((double *)a->at[out] + i, parts, count, i, n);
    }
    return count > 1;
}

/* sum_loop(out, part, part, ...) */
static int sum_loop(Arguments *a) { return sum_all(a, 0) ? DONE : NOT_MADE_FOR; }

#define SPINS 10 /* looks at the others' counts before the core is lent to another process */

static inline void pause_core(void) {
#ifdef __SSE2__
    _mm_pause();
#endif
}

/* Whether the counts of all others are at least this, after so many looks. */
static int all_came(npy_int64 count, void *const *others, int n, long from, long looks) {
    int i = 0;
    for (long k = from; k < looks; k++) {
        while (i < n && __atomic_load_n((npy_int64 *)others[i], __ATOMIC_ACQUIRE) >= count) i++;
        if (i == n) return 1;
        if (k < SPINS)
            pause_core();
        else
            sched_yield();
    }
    return 0;
}

/* meet_loop(own, here, count, looks, rank, sync, others[, array, part, part, ...])

   own     how often this rank has come, and others, a tuple, those of other ranks, which they
           change meanwhile: int64 arrays of one number
   here    whether all have come as often
   array   copied to the part of this rank before it comes; then the sum of all parts
   sync    is for the twin */
static int meet_loop(Arguments *a) {
    npy_int64 count = (npy_int64)a->number[0], *own = a->at[0], *here = a->at[1];
    long looks = (long)a->number[1], rank = (long)a->number[2];
    int n = a->items[0], array = 2 + n, parts = a->arrays - array - 1;
    if (looks < 1) return NOT_MADE_FOR;
    if (parts >= 0) {
        if (parts < 2 || rank < 0 || rank >= parts) return NOT_MADE_FOR;
        memcpy(a->at[array + 1 + rank], a->at[array], a->n * a->array[array].itemsize);
    }
    if (*own != count) __atomic_store_n(own, count, __ATOMIC_RELEASE);
    *here = all_came(count, a->at + 2, n, 0, looks < SPINS ? looks : SPINS);
    if (!*here && looks > SPINS) {
        without_gil(a, KEEP_GIL_BELOW);
        *here = all_came(count, a->at + 2, n, SPINS, looks);
    }
    if (*here && parts > 0) sum_all(a, array);
    return DONE;
}

Kernel shared_kernels[] = {
    PARTS("@", sum_loop, "~r@ +r@"),
    DECIDES(meet_loop, "=i1 =i1 & % % o (i1) +=r@"),
    END_OF_KERNELS,
};
