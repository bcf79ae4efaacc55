/* Cross-entropy of scores z (n, C), as kernels/softmax.py describes it.

   Sums have a fixed order, so that the same input gives the same bits: a thread adds every
   THREADS-th number, and halves of a block are added to each other. Number (i, c) of p is at
   i * by_row + c * by_class in memory. */

/* `all` (THREADS, shared) becomes one number, all[0], by an operation on pairs. */
#define HALVE(all, operation)                                                                      \
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {                                       \
        __syncthreads();                                                                           \
        if (threadIdx.x < half) all[threadIdx.x] = operation(all[threadIdx.x], all[threadIdx.x + half]); \
    }                                                                                              \
    __syncthreads()
#define SUM(a, b) ((a) + (b))

/* The loss of a row; a label that is no class gives NaN, and nothing is read for it. */
#define LOSS(row, label, top, total)                                                               \
    ((unsigned long long)(label) < C ? logf(total) - ((row)[label] - (top)) : logf(-1.0f))

/* Few classes: a thread has a row. */
KERNEL narrow_rows(const float *z, const long long *labels, float *loss, float *p, long long *at,
                   unsigned n, unsigned C, unsigned by_row, unsigned by_class) {
    for (unsigned i = FIRST; i < n; i += STEP) {
        const float *row = z + (unsigned long long)i * C;
        float *out = p + (unsigned long long)i * by_row, top = row[0], total = 0.0f;
        long long label = labels[i];
        for (unsigned c = 1; c < C; c++) top = LARGER(top, row[c]);
        for (unsigned c = 0; c < C; c++) total += out[c * by_class] = expf(row[c] - top);
        for (unsigned c = 0; c < C; c++) out[c * by_class] /= total;
        loss[i] = LOSS(row, label, top, total);
        at[i] = label * by_class + (long long)i * by_row;
    }
}

/* Many classes: a block has a row. */
KERNEL wide_rows(const float *z, const long long *labels, float *loss, float *p, long long *at,
                 unsigned n, unsigned C, unsigned by_row, unsigned by_class) {
    __shared__ float all[THREADS];
    for (unsigned i = blockIdx.x; i < n; i += gridDim.x) {
        const float *row = z + (unsigned long long)i * C;
        float *out = p + (unsigned long long)i * by_row, top = row[0], total = 0.0f;
        long long label = labels[i];
        for (unsigned c = threadIdx.x; c < C; c += THREADS) top = LARGER(top, row[c]);
        all[threadIdx.x] = top;
        HALVE(all, LARGER);
        top = all[0];
        __syncthreads(); /* all have read it */
        for (unsigned c = threadIdx.x; c < C; c += THREADS)
            total += out[c * by_class] = expf(row[c] - top);
        all[threadIdx.x] = total;
        HALVE(all, SUM);
        total = all[0];
        for (unsigned c = threadIdx.x; c < C; c += THREADS) out[c * by_class] /= total;
        if (threadIdx.x == 0) {
            loss[i] = LOSS(row, label, top, total);
            at[i] = label * by_class + (long long)i * by_row;
        }
        __syncthreads(); /* before the next row writes */
    }
}

/* loss[0] = the sum of losses (n) times scale, by one block */
KERNEL sum_losses(const float *losses, float *loss, unsigned n, float scale) {
    __shared__ float all[THREADS];
    float sum = 0.0f;
    for (unsigned i = threadIdx.x; i < n; i += THREADS) sum += losses[i];
    all[threadIdx.x] = sum;
    HALVE(all, SUM);
    if (threadIdx.x == 0) loss[0] = all[0] * scale;
}

/* dz = (p - 1 at the labels) (g scale), in the memory of p; g of each row, or one for all. Rows are
   beside each other in memory, or numbers of a row are. */
KERNEL gradient(const float *p, const long long *at, const float *g, float *dz, unsigned n,
                unsigned C, int rows_beside, int each, float scale) {
    unsigned size = n * C;
    for (unsigned k = FIRST; k < size; k += STEP) {
        unsigned i = rows_beside ? k % n : k / C;
        float d = at[i] == (long long)k ? p[k] - 1.0f : p[k];
        dz[k] = d * (g[each ? i : 0] * scale);
    }
}
