/* C (m, n) = A (m, k) B (k, n) in 16 bits, with sums in float32. */
#ifndef NNMPI_HALF_PRODUCTS_H
#define NNMPI_HALF_PRODUCTS_H
#include "halves.h"
#include "products.h"

#ifdef FUSED
/* How a row of sums is finished before it is rounded: + bias, if not NULL; ReLU, if it `cuts`;
   added to C, if it `adds`. If C is in float32 (is_wide), it is not rounded. */
typedef struct {
    const float *bias;
    int cuts, is_wide, adds;
} Finish;

/* A, B and C have this 16-bit type, and the rows of C are contiguous. Terms are added in the
   order of k, two at a time if the processor does so. Returns 0 if there is no memory. */
int half_product(const Sizes *s, int half, const npy_uint16 *A, const npy_uint16 *B, void *C,
                 Finish finish);

/* A side of a product in memory; a line is a row of A or a column of B. */
typedef struct {
    const void *at;
    npy_intp lines, terms, line, term; /* counts, and strides in elements */
} Side;

static inline Side part_of(Side s, npy_intp line, npy_intp lines, npy_intp term, npy_intp terms) {
    s.at = (const npy_uint16 *)s.at + line * s.line + term * s.term;
    s.lines = s.lines - line < lines ? s.lines - line : lines;
    s.terms = s.terms - term < terms ? s.terms - term : terms;
    return s;
}

#ifdef __AMX_BF16__
#define MOST_ROWS 64 /* rows of A at a time: two tiles, */
#define MORE_ROWS 31 /* and scratch rows that are written after them */
#else
#define MOST_ROWS 48
#define MORE_ROWS 11
#endif

/* Products whose sides are packed separately, with sums in float32. */
typedef struct {
    int half; /* the type of A and B; 0 is float32 */
    int rows; /* the best number of rows of A at a time */
    /* packs B in strips of columns */
    void (*pack)(Side B, void *strips);
    /* C (A.lines, n) = A B, or C += A B if it adds, with the first A.terms of the `terms` of the
       strips. C has room for MORE_ROWS more rows, and for columns up to a multiple of 32, which are
       written too. `room` is for MORE_ROWS + 1 rows of A. C, its rows, strips and room are aligned
       to cache lines. */
    void (*multiply)(Side A, npy_intp n, const void *strips, npy_intp terms, float *C, npy_intp row,
                     int adds, void *room);
} Way;

/* The way for this type; if its elements have to be widened, the way's own type is float32. */
const Way *way_of(int half);
#endif
#endif
