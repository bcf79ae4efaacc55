/* Bias, ReLU, pooling, dropout masks and sums of rows: each element by the operations of
   kernels/epilogue.py and kernels/rows.py, in their order. */

/* y (rows, width) += bias (width), or NULL; then max(y, 0), if `cuts`. */
KERNEL bias_relu(T *y, const T *bias, unsigned n, unsigned width, int cuts) {
    EACH(i, n) {
        float v = LOAD(y[i]);
        if (bias) v += LOAD(bias[i % width]);
        y[i] = ROUND(cuts ? LARGER(v, 0.0f) : v);
    }
}

KERNEL relu(const T *x, T *y, unsigned n) {
    EACH(i, n) {
        float v = LOAD(x[i]);
        y[i] = ROUND(LARGER(v, 0.0f));
    }
}

/* out = g where y > 0: a product, so that 0 has the sign of g, and NaN stays. */
KERNEL relu_gradient(const T *g, const T *y, T *out, unsigned n) {
    EACH(i, n) out[i] = ROUND(LOAD(g[i]) * (LOAD(y[i]) > 0.0f ? 1.0f : 0.0f));
}

/* Where the window of element k of (N, h, w, C) begins. Rows of a window are `down` apart, columns
   `right`, and windows by_sample, by_row and by_column. */
#define BEGIN(k)                                                                                   \
    (AT((k) / C / w / h, by_sample) + AT((k) / C / w % h, by_row) + AT((k) / C % w, by_column) + (k) % C)

/* y = the largest element of each 2x2 window of z, the first of equal ones, and its place:  0 1
                                                                                             2 3 */
KERNEL pool(const T *z, T *y, unsigned char *largest, unsigned n, unsigned h, unsigned w,
            unsigned C, unsigned down, unsigned right, unsigned by_sample, unsigned by_row,
            unsigned by_column) {
    EACH(k, n) {
        const T *at = z + BEGIN(k);
        float a = LOAD(at[0]), b = LOAD(at[right]), c = LOAD(at[down]), d = LOAD(at[down + right]);
        int first = !(a >= b), last = !(c >= d);
        a = LARGER(a, b), c = LARGER(c, d);
        largest[k] = a >= c ? first : last + 2;
        y[k] = ROUND(LARGER(a, c));
    }
}

/* dz = g at the largest element of each window, 0 elsewhere. */
KERNEL unpool(const T *g, const unsigned char *largest, T *dz, unsigned n, unsigned h, unsigned w,
              unsigned C, unsigned down, unsigned right, unsigned by_sample, unsigned by_row,
              unsigned by_column) {
    EACH(k, n) {
        T *at = dz + BEGIN(k);
        for (unsigned place = 0; place < 4; place++)
            at[place / 2 * down + place % 2 * right] = largest[k] == place ? g[k] : 0;
    }
}

/* lowbias32, and two rounds of it, as in keyed.py. */
DEVICE unsigned mix(unsigned x) {
    x ^= x >> 16, x *= 0x7FEB352Du;
    x ^= x >> 15, x *= 0x846CA68Bu;
    return x ^ x >> 16;
}
#define HASH(x, before, between) mix(mix((x) + (before)) ^ (between))

/* mask (rows, m) = factor where the bits of index and row are at least `least`, else 0. A CUDA
   graph has the words of the key in memory, where they change from step to step. */
KERNEL dropout_mask(const unsigned *index, const long long *rows, T *mask, const unsigned *words,
                    unsigned n, unsigned m, unsigned k0, unsigned k1, unsigned k2, unsigned k3,
                    unsigned least, float factor) {
    if (words) k0 = words[0], k1 = words[1], k2 = words[2], k3 = words[3];
    EACH(i, n) {
        unsigned long long row = rows[i / m];
        unsigned bits = HASH(index[i % m], k2, k3) ^ HASH((unsigned)row, k0, k1 ^ (unsigned)(row >> 32));
        mask[i] = ROUND(mix(bits) >= least ? factor : 0.0f);
    }
}

/* to[rows[k]] += g[order[k]], one after the other. `rows` is sorted, and one block adds all of an
   equal run. */
REDUCTION add_sorted(T *to, const long long *rows, const long long *order, const T *g, unsigned n,
                     unsigned C) {
    EACH_BLOCK(k, n) {
        long long place = rows[k];
        if (k && rows[k - 1] == place) continue;
        T *row = to + AT(place, C);
        unsigned stop = k, equal = BATCH; /* the run ends in a batch of others */
        while (equal == BATCH) {
            equal = 0;
            in_batches(
                stop, min(stop + BATCH, n), 1, [&](unsigned j) { return rows[j] == place; },
                [&](bool is_equal, unsigned) { equal += is_equal; });
            stop += equal;
        }
        EACH_OF_BLOCK(c, C) {
            float sum = LOAD(row[c]);
            in_batches(
                k, stop, 1, [&](unsigned j) { return LOAD(g[AT(order[j], C) + c]); },
                [&](float value, unsigned) { sum += value; });
            row[c] = ROUND(sum);
        }
    }
}
