/* Elementary functions in float32. All operations round in the same way on every processor, so that
   all instruction sets give the same bits, and there are no branches, so that GCC vectorises them.
   The polynomials are minimax. tests/kernels/test_elementary.py has the errors in ulp. */
#ifndef NNMPI_ELEMENTARY_H
#define NNMPI_ELEMENTARY_H
#include "native.h"

typedef union {
    float real;
    npy_uint32 bits;
} Word;

ALWAYS_INLINE float with_sign_of(float x, float sign) {
    Word a = {x}, b = {sign};
    return (Word){.bits = (a.bits & 0x7fffffff) | (b.bits & 0x80000000)}.real;
}

/* x + ROUNDS ends in the bits of 159 + the integer nearest to x: the exponent of 2^(32 + it) */
#define ROUNDS (0x1.8p23f + 159)

/* e^(h + l) = 2^n e^r for h <= 0, r in [-ln 2 / 2, ln 2 / 2]; l has the digits that h cannot hold.
   `power` is 2^(32 + n), so that a result becomes denormal in the last operation only. */
typedef struct {
    float power, rest; /* e^r - 1 */
} Exponential;

ALWAYS_INLINE Exponential exponential(float h, float l) {
    h = h < -105 ? -105 : h;
    Word t = {h * 0x1.715476p0f + ROUNDS};
    float n = t.real - ROUNDS, r = h - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f + l;
    float q = 0.00138142216f;
    q = q * r + 0.00836889911f, q = q * r + 0.0416684039f, q = q * r + 0.166665196f;
    q = q * r + 0.49999994f;
    return (Exponential){(Word){.bits = t.bits << 23}.real, q * (r * r) + r};
}

/* e^(h + l) for h <= 0 */
ALWAYS_INLINE float exp_sum(float h, float l) {
    Exponential e = exponential(h, l);
    return (e.rest + 1) * e.power * 0x1p-32f;
}

ALWAYS_INLINE float exp_of(float x) { return exp_sum(x, 0); }

/* log(x) for x in [1, inf), NaN for NaN: x = 2^n (1 + f), 1 + f in [sqrt(1/2), sqrt(2)] */
ALWAYS_INLINE float log_of(float x) {
    int n = (int)((Word){x}.bits - 0x3f3504f3) >> 23;
    float f = x * (Word){.bits = (127u - n) << 23}.real - 1, q = -0.0785961822f;
    q = q * f + 0.1288165f, q = q * f - 0.13128753f, q = q * f + 0.141811922f;
    q = q * f - 0.166245535f, q = q * f + 0.200022861f, q = q * f - 0.250008106f;
    q = q * f + 0.333333164f;
    float y = f * (f * f) * q + n * 0x1.7f7d1cp-20f - 0.5f * (f * f) + f + n * 0x1.62e4p-1f;
    return x != x ? x : y;
}

ALWAYS_INLINE float sigmoid_of(float x) {
    float e = exp_of(with_sign_of(x, -1));
    return (x < 0 ? e : 1) / (1 + e);
}

/* -d / (d + 2), d = e^(-2 |x|) - 1 */
ALWAYS_INLINE float tanh_of(float x) {
    Exponential e = exponential(-2 * with_sign_of(x, 1), 0);
    float whole = e.power * 0x1p-32f, d = whole * e.rest + (whole - 1);
    return with_sign_of(d / (d + 2), x);
}

/* e^(-x^2 / 2); the square of the upper half of the digits is exact */
ALWAYS_INLINE float bell_of(float x) {
    float a = with_sign_of(x, 1);
    a = a > 15 ? 15 : a;
    Word upper = {a};
    upper.bits &= 0xfffff000;
    float h = upper.real * upper.real, l = (a - upper.real) * (a + upper.real);
    return exp_sum(-0.5f * h, -0.5f * l);
}

/* The distribution function of the normal distribution: the tail beyond |x| is e^(-x^2 / 2) t P(t),
   with t = 1 / (1 + 0.3 |x|). */
ALWAYS_INLINE float normal_of(float x) {
    float a = with_sign_of(x, 1), t = 1 / (1 + 0.3f * a), u = t - 0.5938f, q = -0.0206234604f;
    q = q * u + 0.00221966929f, q = q * u + 0.0441156253f, q = q * u - 0.00947042089f;
    q = q * u - 0.0907291397f, q = q * u - 0.0110021904f, q = q * u + 0.225663662f;
    q = q * u + 0.40955025f, q = q * u + 0.400032312f, q = q * u + 0.256076694f;
    float tail = bell_of(x) * (t * q);
    return x < 0 ? tail : 1 - tail;
}

#endif
