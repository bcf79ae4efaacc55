// cuBLAS: products of matrices, with the checks of arguments that the real one makes. Sums are in float32, of
// float64 in float64. What CuPy links against and is not here is a call that is not emulated.
#include <library_types.h>
#include <vector>

#include "machine.h"

using machine::Lock;

enum Status { OK = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum Compute { IN_F32 = 68, IN_F32_PEDANTIC = 69, IN_F64 = 70, IN_F64_PEDANTIC = 71, IN_TF32 = 77 };
constexpr int TF32_MATH = 3;

struct Handle {
    void* stream = nullptr;
    int math = 0;
};
struct Matrix {
    void* p;
    int type, rows, columns, ld;
    long long stride = 0;
    void* const* each = nullptr;  // addresses of a batch, in memory of the device
};
struct Product {
    bool ta, tb;
    int m, n, k, count, compute;
    double alpha, beta;
    Matrix a, b, c;
};

static int bytes_of(int type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }
static Status refused(const char* why) {
    fprintf(stderr, "emulator: cuBLAS refuses %s\n", why);
    return INVALID_VALUE;
}
static long long numbers_of(const Matrix& x) { return (long long)(x.columns - 1) * x.ld + x.rows; }
static Status checked(const Matrix& x, int count, const char* name) {
    if (x.ld < std::max(1, x.rows)) return refused((std::string("the leading dimension of ") + name).c_str());
    if (!x.rows || !x.columns) return OK;
    long long numbers = numbers_of(x) + (count - 1) * x.stride;
    const void* p = x.each ? (const void*)x.each : x.p;
    size_t bytes = x.each ? size_t(count) * sizeof(void*) : size_t(numbers) * bytes_of(x.type);
    if (machine::side_of(p) != machine::Side::DEVICE || !machine::is_inside(p, bytes))
        machine::problem(std::string("cuBLAS: matrix ") + name + " is not within an allocation of the device",
            cudaErrorIllegalAddress);
    if (!x.each && (u64)x.p % bytes_of(x.type)) return refused("a misaligned matrix");
    return OK;
}
static Status types(const Product& p) {
    int a = p.a.type, c = p.c.type;
    bool is_half = a == CUDA_R_16F || a == CUDA_R_16BF;
    if (a != p.b.type) return NOT_SUPPORTED;
    if (p.compute == IN_F64 || p.compute == IN_F64_PEDANTIC) return a == CUDA_R_64F && c == a ? OK : NOT_SUPPORTED;
    if (p.compute == IN_TF32) return a == CUDA_R_32F && c == a ? OK : NOT_SUPPORTED;
    if (p.compute != IN_F32 && p.compute != IN_F32_PEDANTIC) return NOT_SUPPORTED;
    return (a == CUDA_R_32F && c == a) || (is_half && (c == a || c == CUDA_R_32F)) ? OK : NOT_SUPPORTED;
}

// ---- carrying out

static double number_at(const void* p, int type, long long i) {
    switch (type) {
        case CUDA_R_64F: return ((const double*)p)[i];
        case CUDA_R_32F: return ((const float*)p)[i];
        case CUDA_R_16F: return number(f16{((const u16*)p)[i]});
        default: return number(bf16{((const u16*)p)[i]});
    }
}
static void put_at(void* p, int type, long long i, double v) {
    switch (type) {
        case CUDA_R_64F: ((double*)p)[i] = v; return;
        case CUDA_R_32F: ((float*)p)[i] = float(v); return;
        case CUDA_R_16F: ((u16*)p)[i] = bits_of_half(v); return;
        default: ((u16*)p)[i] = bits_of_bf16(v);
    }
}
static float tf32(float v) {
    u32 b = bits(v);
    return f32_of((b + 0xfff + (b >> 13 & 1)) & ~0x1fffu);
}
// The matrix, transposed if asked for, as rows x columns numbers without gaps.
template <class T> std::vector<T> packed(const Matrix& x, const void* p, bool transposed, bool in_tf32) {
    int rows = transposed ? x.columns : x.rows, columns = transposed ? x.rows : x.columns;
    std::vector<T> all(size_t(rows) * columns);
    for (int j = 0; j < columns; j++)
        for (int i = 0; i < rows; i++) {
            T v = T(number_at(p, x.type, transposed ? j + (long long)i * x.ld : i + (long long)j * x.ld));
            all[i + size_t(j) * rows] = in_tf32 ? T(tf32(float(v))) : v;
        }
    return all;
}
template <class T> void multiply(const Product& p, const void* pa, const void* pb, void* pc) {
    std::vector<T> a = packed<T>(p.a, pa, p.ta, p.compute == IN_TF32),
                   b = packed<T>(p.b, pb, p.tb, p.compute == IN_TF32), column(p.m);
    T alpha = T(p.alpha), beta = T(p.beta);
    for (int j = 0; j < p.n; j++) {
        std::fill(column.begin(), column.end(), T(0));
        for (int l = 0; l < p.k; l++)
            for (int i = 0; i < p.m; i++) column[i] += a[i + size_t(l) * p.m] * b[l + size_t(j) * p.k];
        for (int i = 0; i < p.m; i++) {
            long long at = i + (long long)j * p.c.ld;
            T old = beta == 0 ? T(0) : beta * T(number_at(pc, p.c.type, at));  // with beta 0 nothing is read
            put_at(pc, p.c.type, at, alpha * column[i] + old);
        }
    }
}
static void carry_out(const Product& p) {
    checked(p.a, p.count, "A"), checked(p.b, p.count, "B"), checked(p.c, p.count, "C");  // again: a graph runs later
    if (machine::status() != cudaSuccess) return;
    for (const Matrix* x : {&p.a, &p.b, &p.c})
        for (int g = 0; x->each && x->columns && g < p.count; g++)
            if (!machine::is_inside(x->each[g], size_t(numbers_of(*x)) * bytes_of(x->type)))
                return machine::problem(
                    "cuBLAS: a matrix of a batch is not within an allocation", cudaErrorIllegalAddress);
    auto at = [](const Matrix& x, int g) { return x.each ? x.each[g] : (char*)x.p + g * x.stride * bytes_of(x.type); };
    for (int g = 0; g < p.count; g++)
        (p.a.type == CUDA_R_64F ? multiply<double> : multiply<float>)(p, at(p.a, g), at(p.b, g), at(p.c, g));
}

static std::string details_of(const Product& p) {
    std::string text = std::to_string(p.m);
    bool in_tf32 = p.compute == IN_TF32, adds = p.beta != 0;
    for (int n : {p.n, p.k, p.count, bytes_of(p.a.type), bytes_of(p.c.type), int(in_tf32), int(adds)})
        text += "\t" + std::to_string(n);
    return text;
}
static Status start(void* handle, int ta, int tb, Product p) {
    Lock lock(machine::mutex);
    auto* h = (Handle*)handle;
    if (!h) return NOT_INITIALIZED;
    if (p.m < 0 || p.n < 0 || p.k < 0 || p.count < 0) return refused("a negative size");
    if (ta < 0 || ta > 2 || tb < 0 || tb > 2) return refused("an unknown transposition");
    if (Status s = types(p)) return s;
    p.ta = ta, p.tb = tb;
    if (p.a.type == CUDA_R_32F && h->math == TF32_MATH && p.compute == IN_F32) p.compute = IN_TF32;
    p.a.rows = ta ? p.k : p.m, p.a.columns = ta ? p.m : p.k;
    p.b.rows = tb ? p.n : p.k, p.b.columns = tb ? p.k : p.n;
    p.c.rows = p.m, p.c.columns = p.n;
    if (Status s = checked(p.a, p.count, "A")) return s;
    if (Status s = checked(p.b, p.count, "B")) return s;
    if (Status s = checked(p.c, p.count, "C")) return s;
    if (!p.m || !p.n || !p.count) return OK;
    machine::call(h->stream, {"library", "gemm", details_of(p)}, [=] { carry_out(p); });
    return OK;
}
static double scalar(const void* p, int compute) {
    return compute == IN_F64 || compute == IN_F64_PEDANTIC ? *(const double*)p : *(const float*)p;
}

// ---- the interface

#define SIZES void *h, int ta, int tb, int m, int n, int k
API int cublasGemmStridedBatchedEx(SIZES, const void* alpha, void* a, int at, int lda, long long sa, void* b, int bt,
    int ldb, long long sb, const void* beta, void* c, int ct, int ldc, long long sc, int count, int compute, int) {
    return start(h, ta, tb,
        {false, false, m, n, k, count, compute, scalar(alpha, compute), scalar(beta, compute), {a, at, 0, 0, lda, sa},
            {b, bt, 0, 0, ldb, sb}, {c, ct, 0, 0, ldc, sc}});
}
API int cublasGemmEx(SIZES, const void* alpha, void* a, int at, int lda, void* b, int bt, int ldb, const void* beta,
    void* c, int ct, int ldc, int compute, int algorithm) {
    return cublasGemmStridedBatchedEx(
        h, ta, tb, m, n, k, alpha, a, at, lda, 0, b, bt, ldb, 0, beta, c, ct, ldc, 0, 1, compute, algorithm);
}
#define OF_TYPE(letter, real, type, compute)                                                                        \
    API int cublas##letter##gemm_v2(                                                                                \
        SIZES, const real* alpha, void* a, int lda, void* b, int ldb, const real* beta, void* c, int ldc) {         \
        return cublasGemmEx(h, ta, tb, m, n, k, alpha, a, type, lda, b, type, ldb, beta, c, type, ldc, compute, 0); \
    }                                                                                                               \
    API int cublas##letter##gemmStridedBatched(SIZES, const real* alpha, void* a, int lda, long long sa, void* b,   \
        int ldb, long long sb, const real* beta, void* c, int ldc, long long sc, int n_) {                          \
        return cublasGemmStridedBatchedEx(                                                                          \
            h, ta, tb, m, n, k, alpha, a, type, lda, sa, b, type, ldb, sb, beta, c, type, ldc, sc, n_, compute, 0); \
    }                                                                                                               \
    API int cublas##letter##gemmBatched(SIZES, const real* alpha, void* const* a, int lda, void* const* b, int ldb, \
        const real* beta, void* const* c, int ldc, int count) {                                                     \
        return start(h, ta, tb,                                                                                     \
            {false, false, m, n, k, count, compute, *alpha, *beta, {nullptr, type, 0, 0, lda, 0, a},                \
                {nullptr, type, 0, 0, ldb, 0, b}, {nullptr, type, 0, 0, ldc, 0, c}});                               \
    }
OF_TYPE(S, float, CUDA_R_32F, IN_F32)
OF_TYPE(D, double, CUDA_R_64F, IN_F64)

API int cublasCreate_v2(void** h) { return *h = new Handle, OK; }
API int cublasDestroy_v2(void* h) { return delete (Handle*)h, OK; }
API int cublasSetStream_v2(void* h, void* stream) { return ((Handle*)h)->stream = stream, OK; }
API int cublasSetWorkspace_v2(void*, void* p, size_t) { return (u64)p % 256 ? INVALID_VALUE : OK; }
API int cublasSetMathMode(void* h, int mode) { return ((Handle*)h)->math = mode, OK; }
API int cublasGetMathMode(void* h, int* mode) { return *mode = ((Handle*)h)->math, OK; }
