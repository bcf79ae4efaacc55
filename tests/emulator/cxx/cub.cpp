// CUB and Thrust as CuPy calls them: reductions, scans and sorts of one type, whose sums are of that type too, so
// those of float16 in half precision. A block of 256 lanes adds each 256th number, and then the lanes in a tree.
#include <algorithm>
#include <numeric>
#include <vector>

#include "machine.h"

using machine::Lock;

enum Operation { SUM, MIN, MAX, ARGMIN, ARGMAX, CUMULATIVE_SUM, CUMULATIVE_PRODUCT, PRODUCT };
constexpr size_t LANES = 256;

template <class T> auto value(T a) { return number(a); }
template <class T> T of(decltype(value(T())) v) {
    if constexpr (IS_HALF<T>) {
        T r;
        put<T>(r.bits, v);
        return r;
    } else return v;
}
template <class T> bool is_before(T a, T b) { return value(a) < value(b) || (is_nan(value(b)) && !is_nan(value(a))); }
template <class T> T combined(T a, T b, int op) {
    if (op == SUM || op == CUMULATIVE_SUM) return of<T>(value(a) + value(b));
    if (op == PRODUCT || op == CUMULATIVE_PRODUCT) return of<T>(value(a) * value(b));
    if (is_nan(value(a)) || is_nan(value(b))) return is_nan(value(a)) ? a : b;
    return (op == MIN) == (value(b) < value(a)) ? b : a;
}
template <class T> T reduced(const T* x, size_t n, int op) {
    std::vector<T> lanes(x, x + std::min(n, LANES));
    for (size_t i = LANES; i < n; i++) lanes[i % LANES] = combined(lanes[i % LANES], x[i], op);
    for (size_t n = lanes.size(); n > 1; n = (n + 1) / 2)
        for (size_t i = 0; i < n / 2; i++) lanes[i] = combined(lanes[i], lanes[i + (n + 1) / 2], op);
    return lanes.empty() ? of<T>(op == PRODUCT) : lanes[0];
}
template <class T> s64 place_of(const T* x, s64 n, int op) {
    s64 best = 0;
    for (s64 i = 1; i < n && !is_nan(value(x[best])); i++)
        if (is_nan(value(x[i])) || (op == ARGMIN ? value(x[i]) < value(x[best]) : value(x[i]) > value(x[best])))
            best = i;
    return best;
}
template <class T> void sort_rows(T* x, s64* places, s64 rows, s64 n) {
    std::vector<T> old(n);
    std::vector<s64> order(n);
    for (s64 r = 0; r < rows; r++, x += n) {
        std::copy(x, x + n, old.begin());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](s64 i, s64 j) { return is_before(old[i], old[j]); });
        for (s64 i = 0; i < n; i++) x[i] = old[order[i]];
        if (places) std::copy(order.begin(), order.end(), places + r * n);
    }
}

// Calls f with a null pointer of the type that NumPy names by this letter.
template <class F> void with_type(int letter, F f) {
    switch (letter) {
        case '?':
        case 'b': return f((s8*)nullptr);
        case 'B': return f((u8*)nullptr);
        case 'h': return f((s16*)nullptr);
        case 'H': return f((u16*)nullptr);
        case 'i': return f((s32*)nullptr);
        case 'I': return f((u32*)nullptr);
        case 'l':
        case 'q': return f((s64*)nullptr);
        case 'L':
        case 'Q': return f((u64*)nullptr);
        case 'e': return f((f16*)nullptr);
        case 'f': return f((f32*)nullptr);
        case 'd': return f((f64*)nullptr);
        default:
            machine::problem(
                std::string("CUB and Thrust are not emulated for type ") + char(letter), cudaErrorNotSupported);
    }
}
template <class F> void start(void* stream, const char* name, int letter, const void* p, s64 n, s64 results, F f) {
    Lock lock(machine::mutex);
    std::string details = (char)letter + ("\t" + std::to_string(n)) + "\t" + std::to_string(results);
    machine::call(stream, {"library", name, details}, [=] {
        if (!p || machine::side_of(p) == machine::Side::DEVICE) with_type(letter, f);  // null: of an empty array
        else machine::problem(std::string(name) + " of freed memory", cudaErrorIllegalAddress);  // by a graph
    });
}
API void emulator_reduce(void* stream, int type, const void* x, void* y, s64 rows, s64 n, int op) {
    start(stream, "reduce", type, x, rows * n, rows, [=]<class T>(T*) {
        for (s64 r = 0; r < rows; r++) {
            if (op == ARGMIN || op == ARGMAX) ((s64*)y)[r] = place_of((const T*)x + r * n, n, op);
            else ((T*)y)[r] = reduced((const T*)x + r * n, n, op);
        }
    });
}
API void emulator_scan(void* stream, int type, void* x, s64 n, int op) {
    start(stream, "scan", type, x, n, n, [=]<class T>(T*) {
        for (s64 i = 1; i < n; i++) ((T*)x)[i] = combined(((T*)x)[i - 1], ((T*)x)[i], op);
    });
}
API void emulator_sort(void* stream, int type, void* x, s64* places, s64 rows, s64 n) {
    start(stream, "sort", type, x, rows * n, rows * n, [=]<class T>(T*) { sort_rows((T*)x, places, rows, n); });
}
