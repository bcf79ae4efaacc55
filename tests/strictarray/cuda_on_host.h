/* What CUDA C has and C lacks, so that a kernel compiles for the host and runs there.

   Blocks run one after the other, and so do the threads of a block. In a source with barriers each
   thread has a stack of its own, and goes on to the next barrier when its turn comes:

       threads up to a barrier:   0 1 2 ... n-1        then to the next:   n-1 ... 2 1 0

   The order turns round at each, so that a barrier that is missing changes numbers. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define KERNEL static void
#define DEVICE static
#define __shared__ static
#define __syncthreads() wait_at_barrier()

static unsigned __float_as_uint(float v) {
    unsigned bits;
    memcpy(&bits, &v, sizeof v);
    return bits;
}
static float __uint_as_float(unsigned bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
static float from_float16(unsigned short bits) {
    _Float16 v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
static unsigned short to_float16(float v) {
    _Float16 half = v;
    unsigned short bits;
    memcpy(&bits, &half, sizeof half);
    return bits;
}

#define STACK (64 << 10)

typedef struct { unsigned x, y, z; } Dimensions;
typedef void (*Body)(void *const *arguments);

static Dimensions gridDim = {1, 1, 1}, blockDim = {1, 1, 1}, blockIdx, threadIdx;

static ucontext_t scheduler;
static struct { ucontext_t context; char *stack; int ended; } *threads;
static Body body;
static void *const *arguments;

static void wait_at_barrier(void) {
    swapcontext(&threads[threadIdx.x].context, &scheduler);
}

static void start(void) {
    body(arguments);
    threads[threadIdx.x].ended = 1;
}

/* All threads of a block up to the next barrier; how many of them have ended since the start. */
static unsigned phase(int downwards) {
    unsigned ended = 0;
    for (unsigned k = 0; k < blockDim.x; k++) {
        threadIdx.x = downwards ? blockDim.x - 1 - k : k;
        if (!threads[threadIdx.x].ended)
            swapcontext(&scheduler, &threads[threadIdx.x].context);
        ended += threads[threadIdx.x].ended;
    }
    return ended;
}

/* Whether all threads of a block meet at each barrier. */
static int block_with_barriers(void) {
    for (unsigned t = 0; t < blockDim.x; t++) {
        threads[t].ended = 0;
        getcontext(&threads[t].context);
        threads[t].context.uc_stack.ss_sp = threads[t].stack;
        threads[t].context.uc_stack.ss_size = STACK;
        threads[t].context.uc_link = &scheduler;
        makecontext(&threads[t].context, start, 0);
    }
    for (int downwards = 0;; downwards = !downwards) {
        unsigned ended = phase(downwards);
        if (ended) return ended == blockDim.x;
    }
}

/* 0, or 1 if a barrier was not met by all threads of a block */
static int launch(Body of, unsigned blocks, unsigned count, void *const *given, int has_barriers) {
    int met = 1;
    body = of, arguments = given, gridDim.x = blocks, blockDim.x = count;
    threads = has_barriers ? calloc(count, sizeof *threads) : NULL;
    for (unsigned t = 0; threads && t < count; t++) threads[t].stack = malloc(STACK);
    for (blockIdx.x = 0; met && blockIdx.x < blocks; blockIdx.x++) {
        if (has_barriers) met = block_with_barriers();
        else
            for (threadIdx.x = 0; threadIdx.x < count; threadIdx.x++) of(given);
    }
    for (unsigned t = 0; threads && t < count; t++) free(threads[t].stack);
    free(threads);
    return !met;
}
