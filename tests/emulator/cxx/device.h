// Kernels that are translated from PTX are compiled with this: threads, memory with bounds, barriers.
#pragma once
#include "numbers.h"

struct Dim {
    u32 x, y, z;
};
struct Block;
struct Launch;
struct Thread {
    Dim index, block_index;
    u32 number, lane, warp;
    const Launch* launch;
    Block* block;
    char* shared;
};
struct Kernel {
    const char* name;
    void (*run)(Thread&);
    u32 parameters;
    const u32* sizes;
    u32 shared, most_threads;
};
struct Launch {
    const Kernel* kernel;
    Dim grid, block;
    u32 dynamic_shared;
    void** parameters;
};
struct Bounds {
    u64 low, high, generation;
};  // of an allocation, as it was when so many had been freed

constexpr u32 SHARED_BASE = 1024, SHARED_MOST = 227 * 1024;
constexpr u32 WARP = 32, EVERY_LANE = ~0u;
enum Space { GENERIC, GLOBAL, SHARED, LOCAL };

#pragma GCC visibility push(default)
extern "C" {
extern u64 emulator_generation;
extern int emulator_races;
bool emulator_find(Bounds&, u64 address, u32 bytes);
bool emulator_on_stack(u64 address);
void emulator_fault(Thread&, const char* what, u64 address, u32 bytes);
void emulator_access(Thread&, u64 address, u32 bytes, bool writes, bool in_shared);
void emulator_meet(Thread&, u64 address);
void emulator_block_barrier(Thread&);
void emulator_warp_barrier(Thread&, u32 mask);
const u64* emulator_exchange(Thread&, u64 value, u32 mask);
u32 emulator_lanes(Thread&);
void emulator_trap(Thread&, const char* what);
}
#pragma GCC visibility pop

// ---- memory

template <Space S, class T> char* place(Thread& t, u64 address, u32 count, bool writes, Bounds& bounds) {
    constexpr u32 n = sizeof(T);
    if constexpr (S == LOCAL) return (char*)address;
    u64 base = (u64)t.shared;
    bool in_shared = S == SHARED || (S == GENERIC && address - base < SHARED_BASE + SHARED_MOST);
    u64 offset = S == SHARED ? u32(address) : address - base;
    if (address % (n * count)) emulator_fault(t, writes ? "misaligned write" : "misaligned read", address, n * count);
    if (in_shared) {
        u32 end = SHARED_BASE + t.launch->kernel->shared + t.launch->dynamic_shared;
        if (offset < SHARED_BASE || offset + n * count > end) {
            emulator_fault(t, writes ? "write beyond shared memory" : "read beyond shared memory", offset, n * count);
            return nullptr;
        }
        if (emulator_races) emulator_access(t, offset, n * count, writes, true);
        return t.shared + offset;
    }
    bool known =
        bounds.generation == emulator_generation && address >= bounds.low && address + n * count <= bounds.high;
    if (!known && !emulator_find(bounds, address, n * count)) {
        if (S == GENERIC && emulator_on_stack(address)) return (char*)address;
        emulator_fault(t, writes ? "write out of bounds" : "read out of bounds", address, n * count);
        return nullptr;
    }
    if (emulator_races) emulator_access(t, address, n * count, writes, false);
    return (char*)address;
}
// They go to the next number of a vector; at a place that is not there 0 is read, and nothing written.
template <class T, class R> void loaded(R& r, char*& from) {
    T v{};
    if (from) __builtin_memcpy(&v, from, sizeof v), from += sizeof v;
    r = R(v);
}
template <class T> void stored(char*& to, T v) {
    if (to) __builtin_memcpy(to, &v, sizeof v), to += sizeof v;
}

// Atomic operations need no lock: one thread of the device runs at a time. f takes the old number.
template <Space S, class T, class R, class F> void atomic(Thread& t, R& old, u64 address, Bounds& bounds, F f) {
    int races = emulator_races;  // they do not clash with each other
    emulator_races = 0;
    char* p = place<S, T>(t, address, 1, true, bounds);
    emulator_races = races;
    if (!p) return;
    if (races) emulator_meet(t, address);
    T before, after;
    __builtin_memcpy(&before, p, sizeof before);
    if constexpr (IS_HALF<T>) put<T>(after.bits, f(number(before)));
    else after = T(f(before));
    __builtin_memcpy(p, &after, sizeof after);
    if constexpr (IS_HALF<T>) old = R(before.bits);
    else if constexpr (IS_REAL<T>) old = R(bits(before));
    else old = R(before);
}

// ---- threads of a warp

enum Shuffle { UP, DOWN, BUTTERFLY, INDEX };

template <Shuffle S> u32 shuffled(Thread& t, u32 value, u32 by, u32 clamp, u32 mask, bool& is_valid) {
    const u64* values = emulator_exchange(t, value, mask);
    s32 lane = s32(t.lane), segment = clamp >> 8 & 31, limit = (lane & segment) | (clamp & 31 & ~segment);
    s32 first = lane & segment, b = by & 31;
    s32 from = S == UP ? lane - b : S == DOWN ? lane + b : S == BUTTERFLY ? lane ^ b : first | (b & ~segment);
    is_valid = S == UP ? from >= limit : from <= limit;
    u32 result = is_valid ? u32(values[from]) : value;
    emulator_warp_barrier(t, mask);  // before the next exchange overwrites the values
    return result;
}
inline u32 ballot(Thread& t, bool p, u32 mask) {
    const u64* values = emulator_exchange(t, p, mask);
    u32 all = 0, lanes = mask & emulator_lanes(t);
    for (u32 i = 0; i < WARP; i++) all |= u32(values[i]) << i;
    emulator_warp_barrier(t, mask);
    return all & lanes;
}
