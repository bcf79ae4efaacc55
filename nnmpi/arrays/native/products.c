/* products_loop(A, B, C, adds): C[g] = A[g] @ B[g], or += if it adds, in float32, or in 16 bits
   with sums in float32 (half_products.h).

   g  matrices     A (g, m, k), B (g, k, n) with any strides     C (g, m, n) with contiguous rows

   B is packed in strips of WIDTH columns, one after the other:

       | 0 1 | 2 3 | 4 |    ─►    0 1 0 1    2 3 2 3    4 . 4 .
       | 0 1 | 2 3 | 4 |

   DEPTH terms at a time are added up in their order, and their sum is added to C, whatever the
   other sizes are. */
#include "half_products.h"

#ifdef FUSED
#define DEPTH 1024     /* terms at a time: a strip stays in the L2 cache, */
#define NEAR (1 << 16) /* and so do these elements of A; */
#define PACKED 512     /* these columns stay in the L3 cache */
#define MANY 256       /* from this many columns on, rows of A are packed too */
#define SHALLOW 96     /* up to this many terms a strip is on the stack, which may be short */

/* Packs one strip with n columns of B, filled up with zeros to WIDTH. */
static void pack_one(const Sizes *s, const float *B, npy_intp n, float *strip) {
    npy_intp k = s->k;
    if (n < WIDTH) memset(strip, 0, k * WIDTH * sizeof *strip);
    if (s->b_column != 1)
        for (npy_intp t = 0; t < k; t += 8) /* the terms of a column are adjacent in memory */
            for (npy_intp c = 0; c < n; c++)
                for (npy_intp i = t; i < k && i < t + 8; i++)
                    strip[i * WIDTH + c] = B[i * s->b_term + c * s->b_column];
    else
        for (npy_intp i = 0; i < k; i++, strip += WIDTH, B += s->b_term)
            if (n == WIDTH) /* a compile-time size */
                memcpy(strip, B, WIDTH * sizeof *strip);
            else
                memcpy(strip, B, n * sizeof *strip);
}

/* Computes some rows of C and `columns` columns of one strip; through a block of scratch memory if
   rows are not whole vectors or not contiguous. */
static void tile(const Sizes *s, npy_intp rows, npy_intp columns, int adds, Terms t, const float *A,
                 npy_intp a_row, const float *strip, float *C) {
    int vectors = columns <= PER_VECTOR ? 1 : 2;
    if (columns == vectors * PER_VECTOR && s->c_column == 1) {
        some_rows(rows, vectors, adds, t, A, a_row, strip, WIDTH, C, s->c_row);
        return;
    }
    float block[ROWS * WIDTH];
    some_rows(rows, vectors, 0, t, A, a_row, strip, WIDTH, block, WIDTH);
    for (npy_intp c = 0; c < columns; c++)
        for (npy_intp r = 0; r < rows; r++) {
            float *to = C + r * s->c_row + c * s->c_column, found = block[r * WIDTH + c];
            *to = adds ? *to + found : found;
        }
}

void pack(const Sizes *s, const float *B, float *strips) {
    for (npy_intp j = 0; j < s->n; j += WIDTH)
        pack_one(s, B + j * s->b_column, s->n - j < WIDTH ? s->n - j : WIDTH, strips + j * s->k);
}

void packed_product(const Sizes *s, const float *A, const float *strips, npy_intp terms, float *C,
                    int adds, float *room) {
    for (npy_intp i = 0; i < s->m; i += ROWS, A += ROWS * s->a_row, C += ROWS * s->c_row) {
        npy_intp rows = s->m - i < ROWS ? s->m - i : ROWS, a_row = s->a_row;
        const float *a = A;
        Terms t = {1, s->k, 0, s->a_term};
        if (room) {
            for (npy_intp k = 0; k < s->k; k++)
                for (npy_intp r = 0; r < rows; r++) room[k * ROWS + r] = A[r * a_row + k * t.at];
            a = room, a_row = 1, t.at = ROWS;
        }
        for (npy_intp j = 0; j < s->n; j += WIDTH)
            tile(s, rows, s->n - j < WIDTH ? s->n - j : WIDTH, adds, t, a, a_row,
                 strips + j * terms, C + j * s->c_column);
    }
}

int product(const Sizes *s, const float *A, const float *B, float *C, int adds) {
    /* A is read once for many columns if it is large, or if its terms are not adjacent */
    int apart = s->a_term != 1, once = apart ? s->n >= MANY : s->m * s->k > NEAR;
    npy_intp deepest = s->k < DEPTH ? s->k : DEPTH, columns = whole_of(s->n, WIDTH);
    if (!once || columns > PACKED) columns = once ? PACKED : WIDTH;
    npy_intp bytes = deepest * (columns + (apart && once ? ROWS : 0)) * sizeof *A;
    float small[SHALLOW * WIDTH] __attribute__((aligned(CACHE_LINE))), *room = small;
    if (bytes > (npy_intp)sizeof small)
        room = aligned_alloc(CACHE_LINE, whole_of(bytes, CACHE_LINE));
    if (!room) return 0;
    for (npy_intp k = 0; k < s->k; k += DEPTH, adds = 1)
        for (npy_intp j = 0; j < s->n; j += columns) {
            Sizes some = *s;
            some.n = s->n - j < columns ? s->n - j : columns;
            some.k = s->k - k < DEPTH ? s->k - k : DEPTH;
            pack(&some, B + k * s->b_term + j * s->b_column, room);
            packed_product(&some, A + k * s->a_term, room, some.k, C + j * s->c_column, adds,
                           apart && once ? room + deepest * columns : NULL);
        }
    if (room != small) free(room);
    return 1;
}

/* Products of 16-bit A and B; C has 16 bits too, or is float32. */
static int half_products(Arguments *a, const Sizes *s) {
    int half = a->array[0].half, is_wide = !a->array[2].half, done = 1;
    Finish f = {.is_wide = is_wide, .adds = a->number[0] != 0};
    npy_intp itemsize = a->array[2].itemsize;
    if (!half || a->array[1].half != half || (!is_wide && a->array[2].half != half))
        return NOT_MADE_FOR;
    const npy_uint16 *A = a->at[0], *B = a->at[1];
    for (npy_intp g = 0; g < SIZE(a, 'g') && done; g++)
        done = half_product(s, half, A + g * step(a, 0, 0), B + g * step(a, 1, 0),
                            (char *)a->at[2] + g * step(a, 2, 0) * itemsize, f);
    return done ? DONE : NO_MEMORY;
}

static int products_loop(Arguments *a) {
    Sizes s = {SIZE(a, 'm'), SIZE(a, 'n'), SIZE(a, 'k'), step(a, 0, 1), step(a, 0, 2),
               step(a, 1, 1), step(a, 1, 2), step(a, 2, 1), 1};
    without_gil(a, a->bytes);
    if (a->halves) return half_products(a, &s);
    const float *A = a->at[0], *B = a->at[1];
    float *C = a->at[2];
    int adds = a->number[0] != 0, done = 1;
    for (npy_intp g = 0; g < SIZE(a, 'g') && done; g++)
        done = product(&s, A + g * step(a, 0, 0), B + g * step(a, 1, 0), C + g * step(a, 2, 0),
                       adds);
    return done ? DONE : NO_MEMORY;
}
#endif

Kernel product_kernels[] = {
#ifdef FUSED
    HALVES(products_loop, "f:gmk f:gkn =f-gmn !"),
#endif
    END_OF_KERNELS,
};
