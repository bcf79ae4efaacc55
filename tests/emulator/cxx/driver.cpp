// Modules, launches, and what the device says about itself: an H100 with 8 GB, or 140 GB if it is null.
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "machine.h"

using machine::Lock;

constexpr int VERSION = CUDA_VERSION, MOST_THREADS = 1024, PLAIN_SHARED = 48 << 10;

struct Global {
    const char* name;
    void* address;
    u64 bytes;
};
using Module = std::map<std::string, const Kernel*>;
using Translator = int (*)(const char* ptx, char* path, int length);
static Translator translate = nullptr;
API void emulator_set_translator(Translator f) { translate = f; }

// ---- modules: text of PTX, of which Python makes a library with tables of kernels and variables

// Kernels without code, for the null device: each line has a name, the most threads, and the sizes of parameters.
static Module* module_of_table(const std::string& table) {
    auto* m = new Module;
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        auto* name = new std::string;
        u32 most_threads, size;
        words >> *name >> most_threads;
        auto* sizes = new std::vector<u32>;
        while (words >> size) sizes->push_back(size);
        (*m)[*name] = new Kernel{name->c_str(), nullptr, u32(sizes->size()), sizes->data(), 0, most_threads};
    }
    return m;
}
API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    char path[1 << 16];  // or the table of a null device
    if (!memcmp(image,
            "\x7f"
            "ELF",
            4))
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (!translate || translate((const char*)image, path, sizeof path)) return CUDA_ERROR_INVALID_PTX;
    {
        Lock lock(machine::mutex);
        if (machine::refuses_unsafe("a module is loaded")) return CUresult(machine::status());
        if (machine::options.null) return *module = (CUmodule)module_of_table(path), CUDA_SUCCESS;
    }
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        Lock lock(machine::mutex);
        machine::problem(dlerror(), cudaErrorInvalidPtx);
        return CUDA_ERROR_INVALID_PTX;
    }
    Lock lock(machine::mutex);
    auto* m = new Module;
    for (auto k = (const Kernel*)dlsym(library, "emulator_kernels"); k->name; k++)
        (*m)[k->name] = k;
    for (auto g = (const Global*)dlsym(library, "emulator_globals"); g->name; g++)
        machine::add_allocation(g->address, g->bytes, machine::Side::DEVICE);
    *module = (CUmodule)m;
    return CUDA_SUCCESS;
}
API CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }  // kernels under way may be the module's
API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    Lock lock(machine::mutex);
    auto& all = *(Module*)module;
    if (!all.count(name)) return CUDA_ERROR_NOT_FOUND;
    *function = (CUfunction)all[name];
    return CUDA_SUCCESS;
}

// ---- launches

static std::string refusal(const Kernel& f, Dim grid, Dim block, u32 dynamic) {
    u64 threads = u64(block.x) * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || !threads) return "a size of 0";
    if (grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) return "a grid beyond 2147483647 x 65535 x 65535";
    if (block.x > 1024 || block.y > 1024 || block.z > 64) return "a block beyond 1024 x 1024 x 64";
    if (threads > MOST_THREADS || threads > f.most_threads)
        return std::to_string(threads) + " threads in a block";
    if (dynamic + f.shared > PLAIN_SHARED)
        return std::to_string(dynamic) + " bytes of dynamic shared memory";
    return "";
}
API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
    unsigned bz, unsigned dynamic, CUstream stream, void** parameters, void** extra) {
    Lock lock(machine::mutex);
    const Kernel& f = *(const Kernel*)function;
    Dim grid{gx, gy, gz}, block{bx, by, bz};
    std::string why = refusal(f, grid, block, dynamic);
    if (extra) why = "parameters in a buffer, which is not emulated";
    if (!why.empty()) {
        fprintf(stderr, "emulator: %s is not launched with %s\n", f.name, why.c_str());
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (machine::options.null) {
        machine::call(stream, {"kernel", f.name, machine::parameters_of(f, parameters, stream)}, nullptr);
        return CUresult(machine::status());
    }
    auto values = std::make_shared<std::vector<std::string>>();  // those of now
    for (u32 i = 0; i < f.parameters; i++) values->emplace_back((const char*)parameters[i], f.sizes[i]);
    machine::call(stream, {"kernel", f.name}, [=, &f] {
        std::vector<void*> places;
        for (std::string& v : *values) places.push_back(v.data());
        machine::run_grid({&f, grid, block, dynamic, places.data()});
    });
    return CUresult(machine::status());
}

// ---- the device and the context, of which there is one a device

static const std::map<cudaDeviceAttr, int> ATTRIBUTES = {
    {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrMultiProcessorCount, 132},
    {cudaDevAttrMaxThreadsPerBlock, MOST_THREADS},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 0x7fffffff},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, PLAIN_SHARED},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, int(SHARED_MOST)},
    {cudaDevAttrWarpSize, int(WARP)},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrMemoryPoolsSupported, 0},
    {cudaDevAttrClockRate, 0},  // from here on what CuPy asks for to list properties, for CUDA 13
    {cudaDevAttrGpuOverlap, 1},
    {cudaDevAttrKernelExecTimeout, 0},
    {cudaDevAttrComputeMode, 0},
    {cudaDevAttrMemoryClockRate, 0},
    {cudaDevAttrMaxTexture1DLinearWidth, 0},
    {cudaDevAttrSingleToDoublePrecisionPerfRatio, 2},
};
API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    auto it = ATTRIBUTES.find(attribute);
    if (it != ATTRIBUTES.end()) return *value = it->second, cudaSuccess;
    fprintf(stderr, "emulator: attribute %d of a device is not emulated\n", attribute);
    return cudaErrorNotSupported;
}
#undef cudaGetDeviceProperties
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
    *p = {};
    strcpy(p->name, "emulated H100");
    p->totalGlobalMem = machine::device_bytes();
    p->sharedMemPerBlock = PLAIN_SHARED, p->sharedMemPerBlockOptin = SHARED_MOST;
    p->warpSize = int(WARP), p->maxThreadsPerBlock = MOST_THREADS, p->major = 9, p->multiProcessorCount = 132;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->maxThreadsPerMultiProcessor = 2048;
    return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* p, int d) { return cudaGetDeviceProperties(p, d); }
API cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int d) {
    snprintf(id, size_t(length), "0000:%02X:00.0", d);
    return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int* v) { return *v = VERSION, cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int* v) { return cudaDriverGetVersion(v); }
API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
// NVRTC asks for tables of undocumented functions, the first entry of which is their size: here they end behind it.
API CUresult cuGetExportTable(const void** table, const CUuuid*) {
    static const u64 EMPTY[8] = {sizeof(u64)};
    *table = EMPTY;
    return CUDA_SUCCESS;
}

// ---- errors: both interfaces have the same numbers

struct Error {
    cudaError_t number;
    const char *name, *text;
};
static const Error ERRORS[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "only PTX is emulated"},
    {cudaErrorInvalidPtx, "cudaErrorInvalidPtx", "PTX that is not emulated"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "not possible in this state"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "a wait does not end"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "see the emulator's list of problems"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not emulated"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "not possible while a stream captures"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated", "an error has ended the capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge", "two captures would become one"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "the capture began in another stream"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "the capture waits not for all its streams"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation", "captured work would wait for other work"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit", "the null stream waits for captured work"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent", "the event was recorded in a capture"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread", "another thread began the capture"},
};
static const Error& error(int number) {
    for (const Error& e : ERRORS)
        if (e.number == number) return e;
    static const Error other{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
    return other;
}
API const char* cudaGetErrorName(cudaError_t e) { return error(e).name; }
API const char* cudaGetErrorString(cudaError_t e) { return error(e).text; }
API cudaError_t cudaGetLastError() { return machine::status(); }
API cudaError_t cudaPeekAtLastError() { return machine::status(); }
API CUresult cuGetErrorName(CUresult e, const char** name) { return *name = error(int(e)).name, CUDA_SUCCESS; }
API CUresult cuGetErrorString(CUresult e, const char** text) { return *text = error(int(e)).text, CUDA_SUCCESS; }
