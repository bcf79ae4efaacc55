/* C (m, n) = A (m, k) B (k, n) of numbers in 16 bits, with sums in float32. */
#ifndef NNMPI_HALF_PRODUCTS_H
#define NNMPI_HALF_PRODUCTS_H
#include "halves.h"
#include "products.h"

#ifdef FUSED
/* What becomes of a row of sums before it is rounded: + bias, if it is not NULL, and ReLU if it
   cuts; it is added to C if it adds. Where C is in float32 (is_wide), it is not rounded. */
typedef struct {
    const float *bias;
    int cuts, is_wide, adds;
} Finish;

/* All three have this type of 16 bits. C has neighbours in its rows. Terms are added in the order
   of k, two at a time where the processor does so; 0 where memory is lacking. */
int half_product(const Sizes *s, int half, const npy_uint16 *A, const npy_uint16 *B, void *C,
                 Finish finish);

/* How a side of a product lies in memory: A has rows of C, B its columns. */
typedef struct {
    const void *at;
    npy_intp lines, terms, line, term; /* how many, and the numbers between neighbours */
} Side;

static inline Side part_of(Side s, npy_intp line, npy_intp lines, npy_intp term, npy_intp terms) {
    s.at = (const npy_uint16 *)s.at + line * s.line + term * s.term;
    s.lines = s.lines - line < lines ? s.lines - line : lines;
    s.terms = s.terms - term < terms ? s.terms - term : terms;
    return s;
}

#ifdef __AMX_BF16__
#define MOST_ROWS 64 /* of A at a time: two tiles, */
#define MORE_ROWS 31 /* and others that are written behind them */
#else
#define MOST_ROWS 48
#define MORE_ROWS 11
#endif

/* Products of which sides are packed apart, with sums in float32. */
typedef struct {
    int half; /* the type of A and B; 0 is float32 */
    int rows; /* of A that it takes together best */
    /* B in strips of columns */
    void (*pack)(Side B, void *strips);
    /* C (A.lines, n) = A B, or C += A B if it adds, of the first A.terms of the `terms` that strips
       have. C has room for MORE_ROWS more, and columns up to a multiple of 32, which are written
       too. `room` is for MORE_ROWS + 1 rows of A. C, its rows, strips and room begin with lines of the cache. */
    void (*multiply)(Side A, npy_intp n, const void *strips, npy_intp terms, float *C, npy_intp row,
                     int adds, void *room);
} Way;

/* That of numbers of this type; its own is float32 where these have to be widened. */
const Way *way_of(int half);
#endif
#endif
