// Arithmetic as PTX defines it, on registers that are bits. It includes nothing: hundreds of kernels include it.
#pragma once

using u8 = unsigned char;
using s8 = signed char;
using u16 = unsigned short;
using s16 = short;
using u32 = unsigned;
using s32 = int;
using u64 = unsigned long;
using s64 = long;
using u128 = unsigned __int128;
using s128 = __int128;
using f32 = float;
using f64 = double;
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

// ---- bits and numbers

template <class T> constexpr bool IS_REAL = false;
template <> constexpr bool IS_REAL<f32> = true;
template <> constexpr bool IS_REAL<f64> = true;
template <class T> constexpr bool IS_HALF = false;
template <> constexpr bool IS_HALF<f16> = true;
template <> constexpr bool IS_HALF<bf16> = true;
template <class T> constexpr bool IS_SIGNED = T(-1) < T(0);

inline u32 bits(f32 a) { return __builtin_bit_cast(u32, a); }
inline u64 bits(f64 a) { return __builtin_bit_cast(u64, a); }
inline f32 f32_of(u32 b) { return __builtin_bit_cast(f32, b); }
inline f64 f64_of(u64 b) { return __builtin_bit_cast(f64, b); }

inline f64 power_of_2(int e) { return f64_of(u64(e + 1023) << 52); }

// A number rounded once, ties to even, to so many digits, where 2^least is the smallest normal.
inline f64 rounded(f64 a, int digits, int least) {
    int e = int(bits(a) >> 52 & 2047) - 1023;
    f64 unit = power_of_2((e < least ? least : e) - digits + 1);
    return __builtin_rint(a / unit) * unit;
}
inline u16 bits_of_half(f64 a) {
    u16 sign = u16(bits(a) >> 48 & 0x8000);
    if (a != a) return 0x7fff;
    f64 size = __builtin_fabs(a) < 131072 ? rounded(__builtin_fabs(a), 11, -14) : 131072;
    if (size > 65504) return sign | 0x7c00;
    if (size < power_of_2(-14)) return sign | u16(size * power_of_2(24));
    return sign | u16((bits(size) >> 42) - (u64(1008) << 10));
}
inline u16 bits_of_bf16(f64 a) {
    if (a != a) return 0x7fff;
    f64 limited = __builtin_fabs(a) < 1e39 ? rounded(a, 8, -126) : a;
    return u16(bits(f32(limited)) >> 16);
}
inline f64 number(f16 a) {
    u32 e = a.bits >> 10 & 31, m = a.bits & 1023;
    f64 size = e == 31 ? (m ? __builtin_nan("") : __builtin_inf())
               : e     ? (1024 + m) * power_of_2(int(e) - 25)
                       : m * power_of_2(-24);
    return a.bits & 0x8000 ? -size : size;
}
inline f64 number(bf16 a) { return f32_of(u32(a.bits) << 16); }
template <class T> T number(T a) { return a; }

// A register read as a number of a type: 16-bit floats as double, in which their operations are exact.
template <class T, class R> auto get(R r) {
    if constexpr (IS_HALF<T>) return number(T{u16(r)});
    else if constexpr (__is_same(T, f32)) return f32_of(u32(r));
    else if constexpr (__is_same(T, f64)) return f64_of(u64(r));
    else return T(r);
}
template <class T, class R, class V> void put(R& r, V v) {
    if constexpr (__is_same(T, f16)) r = R(bits_of_half(v));
    else if constexpr (__is_same(T, bf16)) r = R(bits_of_bf16(v));
    else if constexpr (IS_REAL<T>) r = R(bits(T(v)));
    else r = R(T(v));
}
inline f32 flushed(f32 a) { return bits(a) & 0x7f800000 ? a : f32_of(bits(a) & 0x80000000); }
template <class T> T saturated(T a) { return a > 0 ? (a < 1 ? a : T(1)) : T(0); }

// ---- rounding other than to nearest

enum Rounding { RN, RZ, RM, RP };

// The sum a * b + c in double with its last bit set where it is not exact: rounding it again to fewer
// digits in any direction gives what one rounding would.
inline f64 odd_fma(f64 a, f64 b, f64 c) {
    f64 p = a * b, s = p + c, t = s - p, rest = (p - (s - t)) + (c - t);
    if (rest != 0 && rest == rest && !(bits(s) & 1)) s = f64_of(bits(s) + ((rest > 0) == (s > 0) ? 1 : -1));
    return s;
}
template <Rounding R> f32 directed(f64 a) {
    f32 f = f32(a);
    bool up = R == RP || (R == RZ && a < 0), down = R == RM || (R == RZ && a > 0);
    if (up && f < a) return __builtin_nextafterf(f, __builtin_inff());
    if (down && f > a) return __builtin_nextafterf(f, -__builtin_inff());
    return f;
}
template <Rounding R, class T> T fma_by(T a, T b, T c) {
    if constexpr (__is_same(T, f32)) return R == RN ? __builtin_fmaf(a, b, c) : directed<R>(odd_fma(a, b, c));
    else return __builtin_fma(a, b, c);
}

// ---- operations

template <class T> T high_part(T a, T b) {
    if constexpr (IS_SIGNED<T>) return T((s128(a) * b) >> 8 * sizeof(T));
    else return T((u128(a) * b) >> 8 * sizeof(T));
}
template <class T> T divided(T a, T b) { return b == 0 ? T(-1) : T(a / b); }
template <class T> T remainder(T a, T b) { return b == 0 ? a : T(a % b); }
template <class T> T shifted_left(T a, u32 n) { return n < 8 * sizeof(T) ? T(a << n) : T(0); }
template <class T> T shifted_right(T a, u32 n) {
    constexpr u32 N = 8 * sizeof(T);
    return n < N ? T(a >> n) : IS_SIGNED<T> && a < T(0) ? T(-1) : T(0);
}
template <class T> T limited(s128 a) {
    constexpr s128 N = 8 * sizeof(T) - IS_SIGNED<T>, most = (s128(1) << N) - 1, least = IS_SIGNED<T> ? -most - 1 : 0;
    return T(a < least ? least : a > most ? most : a);
}
template <class T> T with_sign(T a, T b) {
    if constexpr (__is_same(T, f32)) return f32_of((bits(a) & 0x7fffffff) | (bits(b) & 0x80000000));
    else return f64_of((bits(a) & ~(1ul << 63)) | (bits(b) & (1ul << 63)));
}
template <class T> T size_of(T a) {
    if constexpr (IS_REAL<T>) return with_sign(a, T(0));
    else return a < 0 ? T(-a) : a;
}
template <class T> T opposite(T a) {
    if constexpr (__is_same(T, f32)) return f32_of(bits(a) ^ 0x80000000);
    else if constexpr (__is_same(T, f64)) return f64_of(bits(a) ^ (1ul << 63));
    else return T(-a);
}
template <class T> bool is_nan(T a) { return a != a; }
template <class T> T least(T a, T b) {
    if constexpr (IS_REAL<T>) {
        if (is_nan(a) || is_nan(b)) return is_nan(a) ? b : a;
        if (a == b) return __builtin_signbit(a) ? a : b;
    }
    return a < b ? a : b;
}
template <class T> T largest(T a, T b) {
    if constexpr (IS_REAL<T>) {
        if (is_nan(a) || is_nan(b)) return is_nan(a) ? b : a;
        if (a == b) return __builtin_signbit(a) ? b : a;
    }
    return a > b ? a : b;
}
template <class T> T square_root(T a) {
    if constexpr (__is_same(T, f32)) return __builtin_sqrtf(a);
    else return __builtin_sqrt(a);
}
template <class T> T add_with_carry(T a, T b, u32 in, u32& out) {
    u128 sum = u128(a) + b + in;
    out = u32(sum >> 8 * sizeof(T)) & 1;
    return T(sum);
}
template <class T> T subtract_with_borrow(T a, T b, u32 in, u32& out) {
    u128 difference = u128(a) - b - in;
    out = u32(difference >> 8 * sizeof(T)) & 1;
    return T(difference);
}
inline u32 permuted(u32 a, u32 b, u32 select) {
    u32 r = 0;
    for (u32 i = 0; i < 4; i++) {
        u32 s = select >> 4 * i, byte = u32((u64(b) << 32 | a) >> 8 * (s & 7)) & 255;
        r |= (s & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
    }
    return r;
}
template <class T> T bit_field_inserted(T a, T b, u32 start, u32 length) {
    start &= 255, length &= 255;
    for (u32 i = 0; i < length && start + i < 8 * sizeof(T); i++)
        b = T((b & ~(T(1) << (start + i))) | ((a >> i & 1) << (start + i)));
    return b;
}
template <class T> u32 leading_zeros(T a) {
    return a == 0 ? 8 * sizeof(T) : sizeof(T) == 8 ? __builtin_clzl(a) : __builtin_clz(u32(a));
}

// Integers from reals, by rounding to an integer and the nearest that the type has; nan is 0, of 64 bits 2^63.
template <class T> T integer_of(f64 a) {
    constexpr int N = 8 * sizeof(T) - IS_SIGNED<T>;
    constexpr T most = T(~0ul >> (64 - N)), least = IS_SIGNED<T> ? T(-most - 1) : 0;
    if (a != a) return sizeof(T) == 8 ? T(1ul << 63) : 0;
    return a >= 2 * power_of_2(N - 1) ? most : a <= f64(least) ? least : T(a);
}
template <Rounding R> f64 whole(f64 a) {
    return R == RN   ? __builtin_rint(a)
           : R == RZ ? __builtin_trunc(a)
           : R == RM ? __builtin_floor(a)
                     : __builtin_ceil(a);
}
template <class D, Rounding R, class S> D real_of(S a) {  // R says how the number is rounded to D
    if constexpr (__is_same(D, f32) && R != RN) {
        f32 f = f32(a);
        f32 lower = __builtin_nextafterf(f, -__builtin_inff()), upper = __builtin_nextafterf(f, __builtin_inff());
        using L = long double;  // has all digits of every integer
        bool down = R == RM || (R == RZ && a > 0), up = R == RP || (R == RZ && a < 0);
        return down && L(f) > L(a) ? lower : up && L(f) < L(a) ? upper : f;
    } else {
        static_assert(R == RN, "a rounding that no kernel has needed");
        return D(a);
    }
}
