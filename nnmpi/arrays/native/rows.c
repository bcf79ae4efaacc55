/* Rows of matrices by integers.

   dropout_mask_loop(index, rows, k0, k1, k2, k3, least, factor, mask)
       mask (n, m) = factor where the random bits of index (m) and row (n), by keyed.py, are at
       least `least`, 0 elsewhere
   random_bits_loop(index, rows, k0, k1, k2, k3, bits)
       bits (n, m) = the random bits of index (m) and row (n), by keyed.py
   embedding_gradient_loop(g, index, dw)
       dw (rows, width) += g (n, width) at the rows index (n), one after the other */
#include "native.h"

#define TILE 1024

/* nnmpi/arrays/keyed.py: _mix */
ALWAYS_INLINE npy_uint32 mix(npy_uint32 x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

ALWAYS_INLINE npy_uint32 mixed_row(npy_int64 row, const npy_uint32 *k) {
    npy_uint64 whole = row;
    return mix(mix((npy_uint32)whole + k[0]) ^ k[1] ^ (npy_uint32)(whole >> 32));
}

static void dropout_mask(const npy_uint32 *index, const npy_int64 *rows, const npy_uint32 *k,
                         npy_uint32 least, float factor, float *mask, npy_intp n, npy_intp m) {
    npy_uint32 column[TILE];
    for (npy_intp first = 0; first < m; first += TILE) {
        npy_intp width = m - first < TILE ? m - first : TILE;
        for (npy_intp i = 0; i < width; i++) column[i] = mix(mix(index[first + i] + k[2]) ^ k[3]);
        for (npy_intp r = 0; r < n; r++) {
            npy_uint32 row = mixed_row(rows[r], k);
            float *to = mask + r * m + first;
            for (npy_intp i = 0; i < width; i++) to[i] = mix(column[i] ^ row) >= least ? factor : 0;
        }
    }
}

static int take_words(const Arguments *a, npy_uint32 *words, int n) {
    for (int i = 0; i < n; i++) {
        if (a->number[i] < 0 || a->number[i] > NPY_MAX_UINT32) return 0;
        words[i] = (npy_uint32)a->number[i];
    }
    return 1;
}

static int random_bits_loop(Arguments *a) {
    npy_uint32 k[4], *bits = a->at[2];
    const npy_uint32 *index = a->at[0];
    npy_intp m = SIZE(a, 'm');
    if (!take_words(a, k, 4)) return NOT_MADE_FOR;
    for (npy_intp r = 0; r < SIZE(a, 'n'); r++, bits += m) {
        npy_uint32 row = mixed_row(((const npy_int64 *)a->at[1])[r], k);
        for (npy_intp i = 0; i < m; i++) bits[i] = mix(mix(mix(index[i] + k[2]) ^ k[3]) ^ row);
    }
    return DONE;
}

static int dropout_mask_loop(Arguments *a) {
    npy_uint32 words[5]; /* k0 to k3 and least */
    if (!take_words(a, words, 5)) return NOT_MADE_FOR;
    dropout_mask(a->at[0], a->at[1], words, words[4], a->number[5], a->at[2], SIZE(a, 'n'),
                 SIZE(a, 'm'));
    return DONE;
}

static int embedding_gradient_loop(Arguments *a) {
    const float *restrict g = a->at[0];
    const npy_int64 *index = a->at[1];
    npy_intp rows = SIZE(a, 'r'), width = SIZE(a, 'k'), n = numbers(a, 1);
    if (!are_below(rows, index, n)) return NOT_MADE_FOR;
    for (npy_intp i = 0; i < n; i++, g += width) {
        float *restrict row = (float *)a->at[2] + index_below(rows, index + i) * width;
        for (npy_intp k = 0; k < width; k++) row[k] += g[k];
    }
    return DONE;
}

Kernel row_kernels[] = {
    PARTS("n", dropout_mask_loop, "um in & & & & & # ~fnm"),
    PARTS("n", random_bits_loop, "um in & & & & ~unm"),
    PARTS("*", embedding_gradient_loop, "f*k i* =frk"),
    END_OF_KERNELS,
};
