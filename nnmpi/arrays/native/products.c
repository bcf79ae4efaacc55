/* products_loop(A, B, C, adds): C[g] = A[g] @ B[g], or += if it adds, in float32, or in 16 bits
   with sums in float32 (half_products.h).

   g  matrices     A (g, m, k), B (g, k, n) with any strides     C (g, m, n) with contiguous rows

   B is packed in strips of WIDTH columns, one after the other, and A, if there are many columns,
   in panels of ROWS rows:

       B  | 0 1 | 2 3 | 4 |    ─►    0 1 0 1    2 3 2 3    4 . 4 .
          | 0 1 | 2 3 | 4 |

       A  | 0 0 0 |            ─►    0 1 0 1 0 1
          | 1 1 1 |

   A small B with contiguous rows is read where it is (near_products.h).

   TERMS_AT_ONCE terms are added up in their order, and their sum is added to C, whatever the other
   sizes are. */
#include "half_products.h"
#include "near_products.h"

#ifdef FUSED
#define GROUP 128      /* columns at a time: their strips stay in the L2 cache, */
#define NEAR (1 << 20) /* and so do most of this many elements of panels */
#define MANY 256       /* from this many columns on, A is packed */
#define SMALL 4096     /* so many elements are on the stack, which may be short */
#define FETCHED (GROUP / 2) /* terms that are added up while a row of a group is fetched */

/* Transposes `lines` lines of adjacent terms: each row of `to` has one term of 8 lines, with zeros
   for lines that are not there. */
static void turn_lines(const float *from, npy_intp line, npy_intp lines, npy_intp terms, float *to,
                       npy_intp row) {
    npy_intp t = 0;
    for (; t + 8 <= terms; t += 8) {
        __m256 x[8];
        UNROLL for (int i = 0; i < 8; i++)
            x[i] = i < lines ? _mm256_loadu_ps(from + i * line + t) : _mm256_setzero_ps();
        turn_eight(x);
        UNROLL for (int i = 0; i < 8; i++) _mm256_storeu_ps(to + (t + i) * row, x[i]);
    }
    for (; t < terms; t++)
        for (int i = 0; i < 8; i++) to[t * row + i] = i < lines ? from[i * line + t] : 0;
}

void pack(const Sizes *s, const float *B, float *strips) {
    npy_intp k = s->k, last = s->n / WIDTH * WIDTH;
    if (s->b_term == 1) {
        for (npy_intp j = 0; j < whole_of(s->n, WIDTH); j += 8)
            turn_lines(B + j * s->b_column, s->b_column, s->n - j, k,
                       strips + j / WIDTH * WIDTH * k + j % WIDTH, WIDTH);
        return;
    }
    if (last < s->n) memset(strips + last * k, 0, k * WIDTH * sizeof *strips);
    for (npy_intp i = 0; i < k; i++, B += s->b_term)
        for (npy_intp j = 0; j < s->n; j += WIDTH) {
            float *strip = strips + j * k + i * WIDTH;
            if (s->b_column == 1 && j < last) memcpy(strip, B + j, WIDTH * sizeof *strip);
            else if (s->b_column == 1) memcpy(strip, B + j, (s->n - j) * sizeof *strip);
            else
                for (npy_intp c = 0; c < WIDTH && j + c < s->n; c++)
                    strip[c] = B[(j + c) * s->b_column];
        }
}

/* Packs A in panels; the last one may lack rows, which nobody reads. 8 - ROWS elements after them
   may be written too. */
static void pack_panels(const Sizes *s, const float *A, float *panels) {
    for (npy_intp i = 0; i < s->m; i += ROWS, A += ROWS * s->a_row, panels += ROWS * s->k) {
        npy_intp rows = s->m - i < ROWS ? s->m - i : ROWS;
        if (s->a_term == 1) {
            turn_lines(A, s->a_row, rows, s->k, panels, ROWS);
            continue;
        }
        for (npy_intp k = 0; k < s->k; k++) {
            const float *a = A + k * s->a_term;
            if (s->a_row == 1 && rows == ROWS) memcpy(panels + k * ROWS, a, ROWS * sizeof *a);
            else
                for (npy_intp r = 0; r < rows; r++) panels[k * ROWS + r] = a[r * s->a_row];
        }
    }
}

/* Rows of B that are packed next. They may be in memory, which takes less time if they are fetched
   while terms are added up. */
typedef struct {
    const float *at;
    npy_intp row;
} Next;

/* Computes ROWS rows of C, or adds to them, from one panel and one strip of k terms. As `block` of
   products.h, but its strides are constants: compilers keep variable ones in memory. */
ALWAYS_INLINE void panel_block(const int vectors, int adds, size_t k, const float *a,
                               const float *b, float *C, npy_intp c_row, Next next) {
    Vector c[ROWS][2], of_b[2];
    UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < vectors; j++) c[i][j] = ALL(0);
    for (size_t t = 0; t < k; t++, a += ROWS, b += WIDTH) {
        npy_intp ahead = t / FETCHED * next.row + t % FETCHED * (GROUP / FETCHED);
        __builtin_prefetch(next.at + ahead, 0, 2);
        UNROLL for (int j = 0; j < vectors; j++) of_b[j] = LOAD(b + j * PER_VECTOR);
        UNROLL for (int i = 0; i < ROWS; i++) {
            Vector one = ALL(a[i]);
            UNROLL for (int j = 0; j < vectors; j++) c[i][j] = MULTIPLY_ADD(one, of_b[j], c[i][j]);
        }
    }
    UNROLL for (int i = 0; i < ROWS; i++, C += c_row)
        UNROLL for (int j = 0; j < vectors; j++) {
            float *at = C + j * PER_VECTOR;
            STORE(at, adds ? ADD(LOAD(at), c[i][j]) : c[i][j]);
        }
}

/* Writes a block of scratch memory to C, or adds it. */
static void write_block(const Sizes *s, const float *block, npy_intp rows, npy_intp columns,
                        int adds, float *C) {
    npy_intp c = 0;
    if (rows == 8 && s->c_row == 1)
        for (; c + 8 <= columns; c += 8) {
            __m256 x[8];
            UNROLL for (int i = 0; i < 8; i++) x[i] = _mm256_loadu_ps(block + i * WIDTH + c);
            turn_eight(x);
            UNROLL for (int i = 0; i < 8; i++) {
                float *at = C + (c + i) * s->c_column;
                _mm256_storeu_ps(at, adds ? _mm256_add_ps(_mm256_loadu_ps(at), x[i]) : x[i]);
            }
        }
    for (; c < columns; c++)
        for (npy_intp r = 0; r < rows; r++) {
            float *at = C + r * s->c_row + c * s->c_column, found = block[r * WIDTH + c];
            *at = adds ? *at + found : found;
        }
}

/* Computes some rows of C and `columns` columns of one strip, from A where it is or from a panel;
   through a block of scratch memory if rows are not whole vectors or not contiguous. */
static void tile(const Sizes *s, npy_intp rows, npy_intp columns, int adds, const float *A,
                 const float *panel, const float *strip, float *C, Next next) {
    int vectors = columns <= PER_VECTOR ? 1 : 2;
    int is_whole = columns == vectors * PER_VECTOR && s->c_column == 1;
    float block[ROWS * WIDTH], *to = is_whole ? C : block;
    npy_intp to_row = is_whole ? s->c_row : WIDTH;
    int adds_here = is_whole && adds;
    if (!panel || rows < ROWS) {
        Terms t = {1, s->k, 0, panel ? ROWS : s->a_term};
        some_rows(rows, vectors, adds_here, t, panel ? panel : A, panel ? 1 : s->a_row, strip,
                  WIDTH, to, to_row);
    } else if (vectors == 2) panel_block(2, adds_here, s->k, panel, strip, to, to_row, next);
    else panel_block(1, adds_here, s->k, panel, strip, to, to_row, next);
    if (!is_whole) write_block(s, block, rows, columns, adds, C);
}

void packed_product(const Sizes *s, const float *A, const float *panels, const float *strips,
                    npy_intp terms, float *C, int adds, const float *next) {
    npy_intp fetched = 0;
    for (npy_intp i = 0; i < s->m; i += ROWS)
        for (npy_intp j = 0; j < s->n; j += WIDTH, fetched += s->k / FETCHED) {
            int is_more = next && fetched < s->k;
            Next here = {is_more ? next + fetched * s->b_term : strips, is_more ? s->b_term : 0};
            tile(s, s->m - i < ROWS ? s->m - i : ROWS, s->n - j < WIDTH ? s->n - j : WIDTH, adds,
                 A + i * s->a_row, panels ? panels + i * s->k : NULL, strips + j * terms,
                 C + i * s->c_row + j * s->c_column, here);
        }
}

int near_product(const Sizes *s, const float *A, const float *B, float *C, Ending e) {
    if (s->b_column != 1 || s->k > TERMS_AT_ONCE || s->k * s->n > NEAREST) return 0;
    float block[ROWS * WIDTH];
    int is_plain = s->c_column == 1;
    for (npy_intp i = 0; i < s->m; i += ROWS)
        for (npy_intp j = 0; j < s->n; j += WIDTH) {
            npy_intp rows = s->m - i < ROWS ? s->m - i : ROWS;
            npy_intp columns = s->n - j < WIDTH ? s->n - j : WIDTH;
            float *at = C + i * s->c_row + j * s->c_column;
            Ending here = {e.bias ? e.bias + j : NULL, e.cuts};
            near_tile(s, rows, columns, A + i * s->a_row, B + j, is_plain ? at : block,
                      is_plain ? s->c_row : WIDTH, here);
            if (!is_plain) write_block(s, block, rows, columns, 0, at);
        }
    return 1;
}

int product(const Sizes *s, const float *A, const float *B, float *C, int adds) {
    if (!adds && near_product(s, A, B, C, (Ending){NULL})) return 1;
    npy_intp depth = s->k < TERMS_AT_ONCE ? s->k : TERMS_AT_ONCE;
    npy_intp rows = s->m, columns = whole_of(s->n, WIDTH);
    int packs = s->n >= MANY;
    if (packs && rows * depth > NEAR) rows = NEAR / depth / ROWS * ROWS;
    if (columns > GROUP) columns = GROUP;
    npy_intp of_panels = packs ? depth * whole_of(rows, ROWS) + 8 - ROWS : 0;
    npy_intp bytes = (depth * columns + of_panels) * sizeof *A;
    float small[SMALL] __attribute__((aligned(CACHE_LINE))), *strips = small;
    if (bytes > (npy_intp)sizeof small)
        strips = aligned_alloc(CACHE_LINE, whole_of(bytes, CACHE_LINE));
    if (!strips) return 0;
    float *panels = packs ? strips + depth * columns : NULL;
    for (npy_intp k = 0; k < s->k; k += TERMS_AT_ONCE, adds = 1)
        for (npy_intp i = 0; i < s->m; i += rows) {
            Sizes some = *s;
            some.m = s->m - i < rows ? s->m - i : rows;
            some.k = s->k - k < TERMS_AT_ONCE ? s->k - k : TERMS_AT_ONCE;
            const float *a = A + i * s->a_row + k * s->a_term;
            if (packs) pack_panels(&some, a, panels);
            for (npy_intp j = 0; j < s->n; j += columns) {
                const float *b = B + k * s->b_term + j * s->b_column;
                some.n = s->n - j < columns ? s->n - j : columns;
                pack(&some, b, strips);
                packed_product(&some, a, panels, strips, some.k,
                               C + i * s->c_row + j * s->c_column, adds,
                               s->b_column == 1 && j + columns < s->n ? b + columns : NULL);
            }
        }
    if (strips != small) free(strips);
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
