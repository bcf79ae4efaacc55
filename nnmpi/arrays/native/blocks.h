/* Blocks of an arena: a list ordered by address. */
#ifndef NNMPI_BLOCKS_H
#define NNMPI_BLOCKS_H

#include "native.h"

typedef struct {
    npy_intp start, end;
    long tag;
} Block;

typedef struct {
    npy_intp count, room;
    Block *at; /* ordered by address */
} Blocks;

/* The block at this address, or the first one after it. */
static npy_intp block_at(const Blocks *b, npy_intp place) {
    npy_intp lo = 0, hi = b->count;
    while (lo < hi) {
        npy_intp middle = (lo + hi) / 2;
        if (b->at[middle].end <= place) lo = middle + 1;
        else hi = middle;
    }
    return lo;
}

static int has_room(Blocks *b) {
    if (b->count < b->room) return 1;
    Block *more = realloc(b->at, (size_t)(2 * b->room + 64) * sizeof *more);
    if (!more) return 0;
    b->at = more;
    b->room = 2 * b->room + 64;
    return 1;
}

static void insert(Blocks *b, npy_intp k, Block block) {
    memmove(b->at + k + 1, b->at + k, (size_t)(b->count++ - k) * sizeof block);
    b->at[k] = block;
}

static void delete(Blocks *b, npy_intp k) {
    memmove(b->at + k, b->at + k + 1, (size_t)(--b->count - k) * sizeof *b->at);
}

/* Adds a free block and joins it with its neighbours; the list must have room for it. */
static void join(Blocks *w, Block freed) {
    npy_intp k = block_at(w, freed.start);
    if (k < w->count && w->at[k].start == freed.end) {
        freed.end = w->at[k].end;
        delete(w, k);
    }
    if (k && w->at[k - 1].end == freed.start) w->at[k - 1].end = freed.end;
    else insert(w, k, freed);
}

/* Takes bytes from the smallest block that is long enough; returns where they start, or -1. */
static npy_intp take(Blocks *w, npy_intp bytes) {
    npy_intp best = -1, least = NPY_MAX_INTP;
    for (npy_intp k = 0; k < w->count; k++) {
        npy_intp n = w->at[k].end - w->at[k].start;
        if (n >= bytes && n < least) {
            best = k;
            least = n;
        }
    }
    if (best < 0) return -1;
    npy_intp start = w->at[best].start;
    w->at[best].start += bytes;
    if (least == bytes) delete(w, best);
    return start;
}

static npy_intp bytes_of(const Blocks *b) {
    npy_intp n = 0;
    for (npy_intp k = 0; k < b->count; k++) n += b->at[k].end - b->at[k].start;
    return n;
}

#endif
