/* Conversion of 16-bit floats to float32, and back with rounding to nearest, ties to even.

   bfloat16   the upper half of a float32
   float16    5 bits of exponent, 10 of mantissa, with denormals */
#ifndef NNMPI_HALVES_H
#define NNMPI_HALVES_H
#include "native.h"
#ifdef __F16C__
#include <immintrin.h>
#endif

/* The 16-bit type of an array of floats; 0 for float32 and float64. */
enum { BFLOAT16 = 1, FLOAT16 = 2 };

ALWAYS_INLINE npy_uint32 bits_of(float x) {
    npy_uint32 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

ALWAYS_INLINE float of_bits(npy_uint32 bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

ALWAYS_INLINE float from_bfloat16(npy_uint16 x) { return of_bits((npy_uint32)x << 16); }

ALWAYS_INLINE npy_uint16 to_bfloat16(float x) {
    npy_uint32 bits = bits_of(x), up = bits + 0x7fff + (bits >> 16 & 1);
    return (x == x ? up : bits | 1 << 22) >> 16;
}

#ifndef __F16C__
/* With its exponent bits moved to float32's place, a value is too small by 2^-112. */
ALWAYS_INLINE float from_float16(npy_uint16 x) {
    npy_uint32 sign = (npy_uint32)(x & 0x8000) << 16, rest = (npy_uint32)(x & 0x7fff) << 13;
    float found = of_bits(rest) * 0x1p112f;
    npy_uint32 bits = rest >= 0x0f800000 ? rest | 0x7f800000 : bits_of(found);
    return of_bits(bits | sign);
}

ALWAYS_INLINE npy_uint16 to_float16(float x) {
    npy_uint32 bits = bits_of(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    npy_uint32 small = bits_of(of_bits(rest) + 0.5f) - 0x3f000000; /* the sum rounds to 2^-24 */
    npy_uint32 large = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
    npy_uint32 found = rest < 0x38800000 ? small : rest >= 0x477ff000 ? 0x7c00 : large;
    npy_uint32 nan = 0x7e00 | (rest >> 13 & 0x3ff);
    return sign | (rest > 0x7f800000 ? nan : found);
}
#endif

static inline void widen_bfloat16(const npy_uint16 *restrict x, float *restrict y, npy_intp n) {
    npy_intp i = 0;
#ifdef __AVX512F__ /* by hand: a compiler's loop is slower for short rows */
    for (; i + 16 <= n; i += 16) {
        __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(x + i)));
        _mm512_storeu_si512(y + i, _mm512_slli_epi32(wide, 16));
    }
#endif
#ifdef __AVX2__
    for (; i + 8 <= n; i += 8) {
        __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(x + i)));
        _mm256_storeu_si256((__m256i *)(y + i), _mm256_slli_epi32(wide, 16));
    }
#endif
    for (; i < n; i++) y[i] = from_bfloat16(x[i]);
}

#if defined(__AVX2__) && !defined(__AVX512F__) /* for AVX2 compilers unpack each element */
/* Rounds 8 floats; results are in the lower halves. */
ALWAYS_INLINE __m256i eight_to_bfloat16(const float *at) {
    __m256 x = _mm256_loadu_ps(at), is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256i bits = _mm256_castps_si256(x), one = _mm256_set1_epi32(1);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(1 << 22));
    __m256i found = _mm256_blendv_epi8(up, nan, _mm256_castps_si256(is_nan));
    return _mm256_srli_epi32(found, 16);
}

static inline void round_bfloat16(const float *restrict x, npy_uint16 *restrict y, npy_intp n) {
    npy_intp i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i both = _mm256_packus_epi32(eight_to_bfloat16(x + i), eight_to_bfloat16(x + i + 8));
        _mm256_storeu_si256((__m256i *)(y + i), _mm256_permute4x64_epi64(both, 0xd8));
    }
    for (; i < n; i++) y[i] = to_bfloat16(x[i]);
}
#else
static inline void round_bfloat16(const float *restrict x, npy_uint16 *restrict y, npy_intp n) {
    for (npy_intp i = 0; i < n; i++) y[i] = to_bfloat16(x[i]);
}
#endif

static inline void widen_float16(const npy_uint16 *restrict x, float *restrict y, npy_intp n) {
    npy_intp i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
    for (; i < n; i++) y[i] = _cvtsh_ss(x[i]);
#else
    for (; i < n; i++) y[i] = from_float16(x[i]);
#endif
}

static inline void round_float16(const float *restrict x, npy_uint16 *restrict y, npy_intp n) {
    npy_intp i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(y + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++) y[i] = _cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT);
#else
    for (; i < n; i++) y[i] = to_float16(x[i]);
#endif
}

/* Widens n adjacent elements of a 16-bit type. */
static inline void widen(int half, const npy_uint16 *x, float *y, npy_intp n) {
    if (half == BFLOAT16) widen_bfloat16(x, y, n);
    else widen_float16(x, y, n);
}

static inline void round_to(int half, const float *x, npy_uint16 *y, npy_intp n) {
    if (half == BFLOAT16) round_bfloat16(x, y, n);
    else round_float16(x, y, n);
}

#define FEW 128 /* elements that are converted at a time, on the stack */

/* An array of elements in a 16-bit type, or in float32 if `half` is 0. */
typedef struct {
    void *at;
    int half;
} Numbers;

/* Array i of a kernel that gets 16-bit arrays as they are. */
static inline Numbers numbers_of(const Arguments *a, int i) {
    return (Numbers){a->at[i], a->at[i] ? a->array[i].half : 0};
}

/* Returns n elements from `first` on in float32: in place, or in `room`. */
static inline const float *floats_of(Numbers x, npy_intp first, npy_intp n, float *room) {
    if (!x.half) return (const float *)x.at + first;
    widen(x.half, (const npy_uint16 *)x.at + first, room, n);
    return room;
}

/* Returns where to write n elements in float32: in place, or in `room`, which `stored` then
   copies. */
static inline float *floats_for(Numbers x, npy_intp first, float *room) {
    return x.half ? room : (float *)x.at + first;
}

static inline void stored(Numbers x, npy_intp first, npy_intp n, const float *room) {
    if (x.half) round_to(x.half, room, (npy_uint16 *)x.at + first, n);
}

/* Copies n elements that are `step` apart to y. */
static inline void gather(Numbers x, npy_intp first, npy_intp step, float *y, npy_intp n) {
    npy_uint16 some[FEW];
    const npy_uint16 *from = (const npy_uint16 *)x.at + first;
    if (!x.half)
        for (npy_intp i = 0; i < n; i++) y[i] = ((const float *)x.at)[first + i * step];
    else if (step == 1) widen(x.half, from, y, n);
    else
        for (npy_intp i = 0; i < n; i += FEW, y += FEW) {
            npy_intp m = n - i < FEW ? n - i : FEW;
            for (npy_intp k = 0; k < m; k++) some[k] = from[(i + k) * step];
            widen(x.half, some, y, m);
        }
}

/* Converts n adjacent elements (0: float32); both types are equal, or one is float32. */
static inline void convert(int from, int to, const void *x, void *y, npy_intp n) {
    if (from == to) memcpy(y, x, n * (from ? sizeof(npy_uint16) : sizeof(float)));
    else if (to) round_to(to, x, y, n);
    else widen(from, x, y, n);
}

#define SOME 512 /* elements that are converted at a time, on the stack */

/* 1 only if all masters round to their bfloat16 values: a master is less than half a last place
   away. It is faster than rounding, and ties are left to that. */
static inline int are_near(const float *masters, const npy_uint16 *values, npy_intp n) {
    int far = 0;
    for (npy_intp i = 0; i < n; i++)
        far |= bits_of(masters[i]) - ((npy_uint32)values[i] << 16) + 0x7fff >= 0xffff;
    return !far;
}

/* Replaces those of n masters (at most SOME) that do not round to their values by the values. */
static inline void merge(int half, float *masters, const npy_uint16 *values, npy_intp n) {
    npy_uint16 rounded[SOME];
    if (half == BFLOAT16 && are_near(masters, values, n)) return;
    round_to(half, masters, rounded, n);
    if (!memcmp(rounded, values, n * sizeof *values)) return;
    for (npy_intp i = 0; i < n; i++)
        if (rounded[i] != values[i]) widen(half, values + i, masters + i, 1);
}

#endif
