/* Pairs of bfloat16 terms for AVX512-BF16 and AMX: packing, and tiles of sums. */
#ifndef NNMPI_HALF_TILES_H
#define NNMPI_HALF_TILES_H
#include "half_products.h"

#ifdef __AVX512BF16__
#define TALL 12

/* Packs up to 16 lines in pairs of terms; `width` pairs are a row of `to`. */
static void pack_lines(Side s, npy_uint32 *to, npy_intp width) {
    __mmask16 there = (1 << s.lines) - 1, room = width < 16 ? (1 << width) - 1 : 0xffff;
    npy_intp pairs = (s.terms + 1) / 2;
    const npy_uint16 *at = s.at;
    if (s.term == 1)
        for (npy_intp p = 0; p < pairs; p += 16) {
            npy_intp left = s.terms - 2 * p;
            __mmask32 terms = left < 32 ? (1u << left) - 1 : 0xffffffff;
            __m512i x[16];
            UNROLL for (int i = 0; i < 16; i++)
                x[i] = i < s.lines ? _mm512_maskz_loadu_epi16(terms, at + i * s.line + 2 * p)
                                   : _mm512_setzero_si512();
            turn(x);
            for (npy_intp i = 0; i < 16 && p + i < pairs; i++)
                _mm512_mask_storeu_epi32(to + (p + i) * width, room, x[i]);
        }
    else if (s.line == 1)
        for (npy_intp p = 0; p < pairs; p++) {
            const npy_uint16 *x = at + 2 * p * s.term;
            __mmask16 second = 2 * p + 1 < s.terms ? there : 0;
            __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, x));
            __m512i high = _mm512_cvtepu16_epi32(
                _mm256_maskz_loadu_epi16(second, second ? x + s.term : x));
            _mm512_mask_storeu_epi32(to + p * width, room,
                                     _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
    else
        for (npy_intp p = 0; p < pairs; p++)
            for (npy_intp i = 0; i < (width < 16 ? width : 16); i++) {
                const npy_uint16 *x = at + i * s.line + 2 * p * s.term;
                npy_uint32 high = 2 * p + 1 < s.terms && i < s.lines ? x[s.term] : 0;
                to[p * width + i] = i < s.lines ? x[0] | high << 16 : 0;
            }
}

/* Packs up to 32 lines that are adjacent in memory; each pair takes a row of 32 in `to`. */
static void pack_neighbours(Side s, npy_uint32 *to) {
    npy_uint16 first[32], second[32]; /* (a0 b0 a1 b1 ...) of rows a and b */
    for (int i = 0; i < 32; i++) {
        first[i] = i / 2 + 32 * (i % 2);
        second[i] = first[i] + 16;
    }
    __m512i left = _mm512_loadu_si512(first), right = _mm512_loadu_si512(second);
    __mmask32 there = s.lines < 32 ? (1u << s.lines) - 1 : 0xffffffff;
    const npy_uint16 *at = s.at;
    for (npy_intp k = 0; k < s.terms; k += 2, at += 2 * s.term, to += 32) {
        __m512i a = _mm512_maskz_loadu_epi16(there, at), b = _mm512_setzero_si512();
        if (k + 1 < s.terms) b = _mm512_maskz_loadu_epi16(there, at + s.term);
        _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, left, b));
        _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi16(a, right, b));
    }
}

static void pack_pairs(Side s, int half, void *to, npy_intp width) {
    (void)half;
    if (s.line == 1 && width == 32) {
        pack_neighbours(s, to);
        return;
    }
    pack_lines(part_of(s, 0, 16, 0, s.terms), to, width);
    if (s.lines > 16) pack_lines(part_of(s, 16, 16, 0, s.terms), (npy_uint32 *)to + 16, width);
    else
        for (npy_intp p = 0; width > 16 && p < (s.terms + 1) / 2; p++)
            memset((npy_uint32 *)to + p * width + 16, 0, 16 * sizeof(npy_uint32));
}

#ifndef __AMX_BF16__
ALWAYS_INLINE void add_pairs(int rows, npy_intp pairs, const npy_uint32 *a, const npy_uint32 *b,
                             __m512 (*c)[2]) {
    for (npy_intp p = 0; p < pairs; p++, a += TALL, b += 32) {
        __m512bh left = (__m512bh)_mm512_load_si512(b);
        __m512bh right = (__m512bh)_mm512_load_si512(b + 16);
        UNROLL for (int i = 0; i < rows; i++) {
            __m512bh one = (__m512bh)_mm512_set1_epi32((int)a[i]);
            c[i][0] = _mm512_dpbf16_ps(c[i][0], one, left);
            c[i][1] = _mm512_dpbf16_ps(c[i][1], one, right);
        }
    }
}

ALWAYS_INLINE void rows_of_pairs(int rows, npy_intp pairs, const npy_uint32 *a,
                                 const npy_uint32 *b, float *sums, npy_intp row, int adds) {
    __m512 c[TALL][2];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < 2; j++)
        c[i][j] = adds ? _mm512_loadu_ps(sums + i * row + 16 * j) : _mm512_setzero_ps();
    add_pairs(rows, pairs, a, b, c);
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < 2; j++)
        _mm512_storeu_ps(sums + i * row + 16 * j, c[i][j]);
}

static void tile_of_pairs(npy_intp rows, npy_intp pairs, const void *A, const void *B, float *sums,
                          npy_intp row, int adds) {
    if (rows > 8) rows_of_pairs(TALL, pairs, A, B, sums, row, adds);
    else if (rows > 4) rows_of_pairs(8, pairs, A, B, sums, row, adds);
    else rows_of_pairs(4, pairs, A, B, sums, row, adds);
}

/* Of `height` rows, `rows` are stored. */
ALWAYS_INLINE void round_pairs(int height, npy_intp rows, __mmask32 columns, npy_intp pairs,
                               const npy_uint32 *a, const npy_uint32 *b, npy_uint16 *C,
                               npy_intp row) {
    __m512 c[TALL][2];
    UNROLL for (int i = 0; i < height; i++) c[i][0] = c[i][1] = _mm512_setzero_ps();
    add_pairs(height, pairs, a, b, c);
    UNROLL for (int i = 0; i < height; i++) if (i < rows)
        _mm512_mask_storeu_epi16(C + i * row, columns,
                                 (__m512i)_mm512_cvtne2ps_pbh(c[i][1], c[i][0]));
}

/* Rounds as to_bfloat16 does: sums of this instruction are never denormal, which a conversion
   would take as zeros. */
static void rounded_tile_of_pairs(npy_intp rows, npy_intp columns, npy_intp pairs, const void *A,
                                  const void *B, npy_uint16 *C, npy_intp row) {
    __mmask32 there = columns < 32 ? (1u << columns) - 1 : 0xffffffff;
    if (rows > 8) round_pairs(TALL, rows, there, pairs, A, B, C, row);
    else if (rows > 4) round_pairs(8, rows, there, pairs, A, B, C, row);
    else round_pairs(4, rows, there, pairs, A, B, C, row);
}
#endif
#endif

#ifdef __AMX_BF16__
/* A tile register of AMX has 16 rows of 64 bytes: 16 pairs of a row of A, or a pair of 16 columns
   of B, or 16 sums. Four tiles hold sums, two A and two B.

       pairs | 0 .. 15         | 16 .. 31 | ...
       A     | rows 0 .. 15    |          |       packed one after the other: 256 pairs each
             | rows 16 .. 31   |          | */
#define OF_TILE 16
#define NUMBERS_OF_TILE (OF_TILE * OF_TILE)
#define TERMS_OF_TILE (2 * OF_TILE)

static void begin_tiles(void) {
    static const struct {
        npy_uint8 palette, first_row, reserved[14];
        npy_uint16 bytes[16];
        npy_uint8 rows[16];
    } shapes = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shapes);
}

static void end_tiles(void) { _tile_release(); }

/* Packs up to 16 lines and 32 terms as a tile of A. */
static void pack_tile(Side s, npy_uint32 *to) {
    __m512i x[OF_TILE];
    npy_uint32 columns[NUMBERS_OF_TILE];
    if (s.term == 1) {
        __mmask32 terms = s.terms < TERMS_OF_TILE ? (1u << s.terms) - 1 : 0xffffffff;
        const npy_uint16 *at = s.at;
        for (int i = 0; i < OF_TILE; i++, at += s.line)
            _mm512_store_si512(to + i * OF_TILE, i < s.lines ? _mm512_maskz_loadu_epi16(terms, at)
                                                             : _mm512_setzero_si512());
        return;
    }
    pack_lines(s, columns, OF_TILE);
    UNROLL for (int p = 0; p < OF_TILE; p++)
        x[p] = 2 * p < s.terms ? _mm512_loadu_si512(columns + p * OF_TILE) : _mm512_setzero_si512();
    turn(x);
    UNROLL for (int i = 0; i < OF_TILE; i++) _mm512_store_si512(to + i * OF_TILE, x[i]);
}

/* Packs two tiles of lines for each 32 terms. */
static void pack_tiles(Side s, int half, void *packed, npy_intp width) {
    npy_uint32 *to = packed;
    (void)half;
    for (npy_intp k = 0; k < s.terms; k += TERMS_OF_TILE)
        for (npy_intp i = 0; i < width; i += OF_TILE, to += NUMBERS_OF_TILE)
            if (i < s.lines) pack_tile(part_of(s, i, OF_TILE, k, TERMS_OF_TILE), to);
            else memset(to, 0, NUMBERS_OF_TILE * sizeof *to);
}

/* Packs pairs of B, filled up to whole tiles. */
static void pack_strip(Side s, int half, void *to, npy_intp width) {
    npy_intp pairs = (s.terms + 1) / 2;
    pack_pairs(s, half, to, width);
    memset((npy_uint32 *)to + pairs * width, 0,
           (whole_of(pairs, OF_TILE) - pairs) * width * sizeof(npy_uint32));
}

/* Computes 32 x 32 sums; the processor determines the order of additions, the same for all
   tiles. */
static void tile_of_tiles(npy_intp rows, npy_intp pairs, const void *A, const void *B, float *sums,
                          npy_intp row, int adds) {
    (void)rows;
    const npy_uint32 *a = A, *b = B;
    npy_intp bytes = row * sizeof *sums, strip = TERMS_OF_TILE * sizeof *b;
    float *below = sums + OF_TILE * row;
    __asm__ volatile("" ::: "memory"); /* the compiler does not know that tile loads read memory */
    if (adds) {
        _tile_loadd(0, sums, bytes);
        _tile_loadd(1, sums + OF_TILE, bytes);
        _tile_loadd(2, below, bytes);
        _tile_loadd(3, below + OF_TILE, bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (npy_intp p = 0; p < pairs; p += OF_TILE) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, strip);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + OF_TILE, strip);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + NUMBERS_OF_TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        a += 2 * NUMBERS_OF_TILE;
        b += OF_TILE * TERMS_OF_TILE;
    }
    _tile_stored(0, sums, bytes);
    _tile_stored(1, sums + OF_TILE, bytes);
    _tile_stored(2, below, bytes);
    _tile_stored(3, below + OF_TILE, bytes);
}
#endif
#endif
