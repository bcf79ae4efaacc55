/* Products of matrices in 16 bits, as half_products.h describes them.

   Blocks of A and B are packed, and products are added up in float32 in `sums`. Each row of sums is
   finished and rounded once: a tile's at once, if the tile has all terms.

       for columns of C, at most COLUMNS
           for terms, at most `depth`
               for rows of C, a block at a time       A is packed in tiles of 12 rows, or 32,
                   for 32 columns                     B in strips of 32 columns, which the first
                       sums of tiles                  block packs

   With AVX512-BF16, bfloat16 is packed in pairs of terms, for an instruction that multiplies and
   adds both; it takes denormals as zeros, and so does AMX, which multiplies tiles of pairs.
   Everything else is packed as float32. */
#include "half_products.h"
#include "epilogue.h"
#include "half_tiles.h"

#ifdef FUSED
#define COLUMNS 1024
#define DEEP 2304 /* rows of C at a time whose sums wait for further terms */
#define SOME 512 /* elements that are widened at a time */

/* One way of computing. A packed element has 4 bytes and `together` terms, and lines are filled
   up to a multiple of `whole` terms. A tile has `tall` rows and `strip` columns; it adds up
   `part` packed elements at a time. */
typedef struct {
    int together, whole, tall, strip, block, depth, part;
    /* packs lines side by side, `width` elements for a term or pair of terms: B, and A, which
       may have another order */
    void (*pack)(Side s, int half, void *to, npy_intp width);
    void (*pack_tall)(Side s, int half, void *to, npy_intp width);
    /* tall x strip sums, of which only so many rows are needed */
    void (*tile)(npy_intp rows, npy_intp packed, const void *A, const void *B, float *sums,
                 npy_intp row, int adds);
    /* the same, rounded to bfloat16 in rows of C; NULL if the processor cannot round */
    void (*rounded)(npy_intp rows, npy_intp columns, npy_intp packed, const void *A, const void *B,
                    npy_uint16 *C, npy_intp row);
    void (*begin)(void), (*end)(void); /* around all tiles of a product, or NULL */
} Core;

#ifdef __AMX_BF16__
#define OF_BFLOAT16 TILES
static const Core TILES = {2, 32, 32, 32, 256, 2048, 256, pack_strip, pack_tiles,
                           tile_of_tiles, NULL, begin_tiles, end_tiles};
#elif defined __AVX512BF16__
#define OF_BFLOAT16 PAIRS
static const Core PAIRS = {2, 2, TALL, 32, 12 * TALL, 2048, 1024, pack_pairs, pack_pairs,
                           tile_of_pairs, rounded_tile_of_pairs, NULL, NULL};
#endif

#define STRIP 32 /* columns: a cache line of 16-bit elements */
#ifdef __AVX512F__
#define DEPTH 1024
#define BLOCK (18 * ROWS)
#else
#define DEPTH 512
#define BLOCK (36 * ROWS)
#endif

#ifdef __AVX512F__
/* Packs up to 16 lines whose terms are adjacent, transposed: `width` elements are a row of `to`. */
static void pack_turned(Side s, int half, float *to, npy_intp width) {
    __mmask16 room = width < 16 ? (1 << width) - 1 : 0xffff;
    const npy_uint16 *at = s.at;
    for (npy_intp t = 0; t < s.terms; t += 16) {
        npy_intp left = s.terms - t < 16 ? s.terms - t : 16;
        __m512i x[16];
        UNROLL for (int i = 0; i < 16; i++) {
            __mmask16 there = i < s.lines ? (1u << left) - 1 : 0;
            __m256i line = _mm256_maskz_loadu_epi16(there, there ? at + i * s.line + t : at);
            x[i] = half == FLOAT16 ? _mm512_castps_si512(_mm512_cvtph_ps(line))
                                   : _mm512_slli_epi32(_mm512_cvtepu16_epi32(line), 16);
        }
        turn(x);
        for (npy_intp i = 0; i < left; i++)
            _mm512_mask_storeu_epi32(to + (t + i) * width, room, x[i]);
    }
}
#else
/* As above, with 8 lines and 8 terms at a time where there are that many. */
static void pack_turned(Side s, int half, float *to, npy_intp width) {
    const npy_uint16 *at = s.at;
    for (npy_intp i = 0; i < (s.lines < 16 ? s.lines : 16); i += 8)
        for (npy_intp t = 0; t < s.terms; t += 8) {
            npy_intp lines = s.lines - i < 8 ? s.lines - i : 8;
            npy_intp left = s.terms - t < 8 ? s.terms - t : 8;
            __m256 x[8];
            float *numbers = (float *)x;
            if (lines < 8) memset(x, 0, sizeof x);
            for (npy_intp k = 0; k < lines; k++)
                widen(half, at + (i + k) * s.line + t, numbers + 8 * k, left);
            turn_eight(x);
            for (npy_intp k = 0; k < left; k++)
                memcpy(to + (t + k) * width + i, x + k, (width - i < 8 ? width - i : 8) * sizeof *to);
        }
}
#endif

/* Packs lines that are adjacent in memory. For a partial vector a whole one is written, except for
   the last term; the next term overwrites the surplus. */
static void widen_neighbours(Side s, int half, float *to, npy_intp width) {
    const npy_uint16 *at = s.at;
    npy_intp t = 0, is_narrow = s.lines == width && width < 8 && width > 4 && s.term > 1;
    for (; is_narrow && t + 1 < s.terms; t++) widen(half, at + t * s.term, to + t * width, 8);
    for (; t < s.terms; t++) widen(half, at + t * s.term, to + t * width, s.lines);
}

/* Packs lines as float32. */
static void pack_floats(Side s, int half, void *packed, npy_intp width) {
    const npy_uint16 *at = s.at;
    float *to = packed;
    if (s.lines < width) memset(to, 0, s.terms * width * sizeof *to);
    if (s.line == 1) widen_neighbours(s, half, to, width);
    else if (s.term == 1)
        for (npy_intp i = 0; i < s.lines; i += 16)
            pack_turned(part_of(s, i, s.lines, 0, s.terms), half, to + i, width);
    else
        for (npy_intp i = 0; i < s.lines; i++)
            for (npy_intp t = 0; t < s.terms; t++)
                widen(half, at + i * s.line + t * s.term, to + t * width + i, 1);
}

static void tile_of_floats(npy_intp rows, npy_intp terms, const void *A, const void *B,
                           float *sums, npy_intp row, int adds) {
    (void)rows;
    for (int j = 0; j < STRIP; j += WIDTH)
        some_rows(ROWS, 2, adds, (Terms){1, terms, 0, ROWS}, A, 1, (const float *)B + j, STRIP,
                  sums + j, row);
}

static const Core FLOATS = {1, 1, ROWS, STRIP, BLOCK, DEPTH, DEPTH, pack_floats, pack_floats,
                            tile_of_floats, NULL, NULL, NULL};

/* Packs A as float32 if its terms are adjacent in memory: its lines follow each other. */
static void widen_lines(Side s, int half, void *packed, npy_intp width) {
    float *to = packed;
    for (npy_intp i = 0; i < s.lines; i++, to += s.terms)
        widen(half, (const npy_uint16 *)s.at + i * s.line, to, s.terms);
    memset(to, 0, (width - s.lines) * s.terms * sizeof *to);
}

static void tile_of_lines(npy_intp rows, npy_intp terms, const void *A, const void *B, float *sums,
                          npy_intp row, int adds) {
    (void)rows;
    for (int j = 0; j < STRIP; j += WIDTH)
        some_rows(ROWS, 2, adds, (Terms){1, terms, 0, 1}, A, terms, (const float *)B + j, STRIP,
                  sums + j, row);
}

static const Core LINES = {1, 1, ROWS, STRIP, BLOCK, DEPTH, DEPTH, pack_floats, widen_lines,
                           tile_of_lines, NULL, NULL, NULL};

static const Core *core_of(const Sizes *s, int half) {
#ifdef OF_BFLOAT16
    if (half == BFLOAT16) return &OF_BFLOAT16;
#endif
    (void)half;
    return s->a_term == 1 ? &LINES : &FLOATS;
}

/* Adds a row of C to sums. */
static void add_row(npy_intp n, int half, const char *C, int is_wide, float *sums) {
    float row[SOME];
    for (npy_intp j = 0; j < n; j += SOME) {
        npy_intp some = n - j < SOME ? n - j : SOME;
        const float *c = row;
        if (is_wide) c = (const float *)C + j;
        else widen(half, (const npy_uint16 *)C + j, row, some);
        for (npy_intp k = 0; k < some; k++) sums[j + k] += c[k];
    }
}

/* Finishes rows of sums and writes them to rows of C. */
static void finish_rows(npy_intp rows, npy_intp n, float *sums, npy_intp row, int half, char *C,
                        npy_intp bytes, Finish f) {
    for (npy_intp i = 0; i < rows; i++, sums += row, C += bytes) {
        if (f.adds) add_row(n, half, C, f.is_wide, sums);
        if (f.is_wide) finish_row(n, sums, (float *)C, f.bias, f.cuts);
        else {
            if (f.bias || f.cuts) finish_row(n, sums, sums, f.bias, f.cuts);
            round_to(half, sums, (npy_uint16 *)C, n);
        }
    }
}

/* The number of packed elements of a line. */
static npy_intp packed_of(const Core *q, npy_intp terms) {
    return whole_of(terms, q->whole) / q->together;
}

/* Packs all lines, `width` of them together; a line has `depth` packed elements. */
static void pack_side(void (*pack)(Side, int, void *, npy_intp), Side s, int half, npy_intp width,
                      npy_intp depth, float *to) {
    for (npy_intp i = 0; i < s.lines; i += width)
        pack(part_of(s, i, width, 0, s.terms), half, to + i * depth, width);
}

/* 1 if a tile adds up all terms. */
static int has_whole_tiles(const Core *q, npy_intp terms) {
    return terms <= q->depth && packed_of(q, terms) <= q->part;
}

/* Computes some columns of C from tiles that add up all terms: `sums` are of one tile, which stays
   in the first cache. */
static void finished_columns_of(const Core *q, Side A, Side B, int half, char *C, npy_intp bytes,
                                Finish f, float *strips, float *tiles, float *sums) {
    npy_intp depth = packed_of(q, A.terms), itemsize = f.is_wide ? sizeof(float) : sizeof(npy_uint16);
    int is_plain = q->rounded && !f.is_wide && !f.bias && !f.cuts && !f.adds;
    for (npy_intp i = 0; i < A.lines; i += q->block, C += q->block * bytes) {
        Side a = part_of(A, i, q->block, 0, A.terms);
        pack_side(q->pack_tall, a, half, q->tall, depth, tiles);
        for (npy_intp j = 0; j < B.lines; j += q->strip) {
            float *strip = strips + (A.lines > q->block ? j * depth : 0);
            Side b = part_of(B, j, q->strip, 0, B.terms);
            Finish here = {f.bias ? f.bias + j : NULL, f.cuts, f.is_wide, f.adds};
            if (!i) q->pack(b, half, strip, q->strip);
            for (npy_intp r = 0; r < a.lines; r += q->tall) {
                npy_intp rows = a.lines - r < q->tall ? a.lines - r : q->tall;
                char *c = C + r * bytes + j * itemsize;
                if (is_plain) {
                    q->rounded(rows, b.lines, depth, tiles + r * depth, strip, (npy_uint16 *)c,
                               bytes / itemsize);
                    continue;
                }
                q->tile(rows, depth, tiles + r * depth, strip, sums, q->strip, 0);
                finish_rows(rows, b.lines, sums, q->strip, half, c, bytes, here);
            }
        }
    }
}

/* Computes some columns of C, with room for packed elements and sums. Whole tiles are added up in C
   itself if its columns fill whole strips and its rows need no finishing. */
static void columns_of(const Core *q, Side A, Side B, int half, char *C, npy_intp bytes,
                       Finish f, float *strips, float *tiles, float *sums) {
    npy_intp width = whole_of(B.lines, q->strip), is_deep = A.terms > q->depth;
    int is_plain = f.is_wide && !f.bias && !f.cuts && B.lines == width;
    if (has_whole_tiles(q, A.terms) && !is_plain) {
        finished_columns_of(q, A, B, half, C, bytes, f, strips, tiles, sums);
        return;
    }
    for (npy_intp k = 0; k < A.terms; k += q->depth) {
        Side b = part_of(B, 0, B.lines, k, q->depth);
        npy_intp terms = b.terms, depth = packed_of(q, terms);
        for (npy_intp i = 0; i < A.lines; i += q->block) {
            Side a = part_of(A, i, q->block, k, q->depth);
            npy_intp rows = is_plain ? a.lines - a.lines % q->tall : 0, c_row = bytes / sizeof(float);
            float *here = sums + (is_deep ? i * width : 0);
            char *c = C + i * bytes; /* the first rows are added up in place */
            pack_side(q->pack_tall, a, half, q->tall, depth, tiles);
            for (npy_intp j = 0; j < B.lines; j += q->strip) {
                float *strip = strips + (A.lines > q->block ? j * depth : 0);
                if (!i) q->pack(part_of(b, j, q->strip, 0, terms), half, strip, q->strip);
                for (npy_intp p = 0; p < depth; p += q->part)
                    for (npy_intp r = 0; r < a.lines; r += q->tall) {
                        int in_C = r < rows;
                        q->tile(q->tall, depth - p < q->part ? depth - p : q->part,
                                tiles + r * depth + p * q->tall, strip + p * q->strip,
                                in_C ? (float *)c + r * c_row + j : here + r * width + j,
                                in_C ? c_row : width, k + p > 0 || (in_C && f.adds));
                    }
            }
            if (k + terms == A.terms)
                finish_rows(a.lines - rows, B.lines, here + rows * width, width, half,
                            c + rows * bytes, bytes, f);
        }
    }
}

int half_product(const Sizes *s, int half, const npy_uint16 *A, const npy_uint16 *B, void *C,
                 Finish f) {
    const Core *q = core_of(s, half);
    npy_intp itemsize = f.is_wide ? sizeof(float) : sizeof(npy_uint16);
    npy_intp depth = packed_of(q, s->k < q->depth ? s->k : q->depth);
    npy_intp columns = whole_of(s->n < COLUMNS ? s->n : COLUMNS, q->strip);
    npy_intp block = whole_of(s->m < q->block ? s->m : q->block, q->tall);
    npy_intp strips = whole_of(columns * depth, CACHE_LINE);
    npy_intp tiles = whole_of(block * depth, CACHE_LINE);
    int is_deep = s->k > q->depth;
    npy_intp rows = is_deep && s->m > DEEP ? DEEP : s->m;
    npy_intp sums = (is_deep ? whole_of(rows, q->tall) : block) * columns;
    npy_intp bytes = (strips + tiles + sums) * sizeof(float);
    float *room = aligned_alloc(CACHE_LINE, whole_of(bytes, CACHE_LINE));
    if (!room) return 0;
    Side a = {A, s->m, s->k, s->a_row, s->a_term};
    if (q->begin) q->begin();
    for (npy_intp j = 0; j < s->n; j += columns) {
        npy_intp n = s->n - j < columns ? s->n - j : columns;
        Side b = {B + j * s->b_column, n, s->k, s->b_column, s->b_term};
        Finish here = {f.bias ? f.bias + j : NULL, f.cuts, f.is_wide, f.adds};
        for (npy_intp i = 0; i < s->m; i += rows)
            columns_of(q, part_of(a, i, rows, 0, s->k), b, half,
                       (char *)C + (i * s->c_row + j) * itemsize, s->c_row * itemsize, here, room,
                       room + strips, room + strips + tiles);
    }
    if (q->end) q->end();
    free(room);
    return 1;
}

#ifdef OF_BFLOAT16
static void pack_strips(Side B, void *strips) {
    const Core *q = &OF_BFLOAT16;
    pack_side(q->pack, B, BFLOAT16, q->strip, packed_of(q, B.terms), strips);
}

static void multiply_packed(Side A, npy_intp n, const void *strips, npy_intp terms, float *C,
                            npy_intp row, int adds, void *room) {
    const Core *q = &OF_BFLOAT16;
    npy_intp depth = packed_of(q, A.terms), whole_depth = packed_of(q, terms);
    if (q->begin) q->begin();
    for (npy_intp i = 0; i < A.lines; i += q->tall) {
        q->pack_tall(part_of(A, i, q->tall, 0, A.terms), BFLOAT16, room, q->tall);
        for (npy_intp j = 0; j < n; j += q->strip)
            q->tile(q->tall, depth, room, (const float *)strips + j * whole_depth, C + i * row + j, row,
                    adds);
    }
    if (q->end) q->end();
}

static const Way NARROW = {BFLOAT16, MOST_ROWS, pack_strips, multiply_packed};
#endif

static void pack_wide(Side B, void *strips) {
    Sizes s = {0, B.lines, B.terms, 0, 0, B.term, B.line, 0, 0};
    pack(&s, B.at, strips);
}

static void multiply_wide(Side A, npy_intp n, const void *strips, npy_intp terms, float *C,
                          npy_intp row, int adds, void *room) {
    (void)room;
    Sizes s = {A.lines, whole_of(n, PER_VECTOR), A.terms, A.line, A.term, 0, 0, row, 1};
    packed_product(&s, A.at, NULL, strips, terms, C, adds, NULL);
}

static const Way WIDE = {0, 32, pack_wide, multiply_wide};

const Way *way_of(int half) {
#ifdef OF_BFLOAT16
    if (half == BFLOAT16) return &NARROW;
#endif
    (void)half;
    return &WIDE;
}
#endif
