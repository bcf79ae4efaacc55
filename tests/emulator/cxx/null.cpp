// The null device: what is called is noted, with what it takes to count bytes and operations, and nothing runs. Its
// memory takes none of the host, and is read as zeros, whatever was written.
#include <sys/mman.h>
#include <utility>

#include "machine.h"

using machine::Lock;

// ---- memory: addresses that nobody can read or write

void* machine::reserved(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
}
void machine::release_reserved(void* p, size_t bytes) { munmap(p, bytes); }

// ---- details of calls

static thread_local std::string arrays;
// The bytes of the arrays that the next kernel of this thread gets as addresses, one number for each parameter.
API void emulator_arrays(const char* bytes) { arrays = bytes; }

std::string machine::parameters_of(const Kernel& kernel, void** parameters, void* stream) {
    static const char* const DIGITS = "0123456789abcdef";
    std::string text, of_arrays = std::exchange(arrays, "");
    if (!is_noted(stream)) return text;
    for (u32 i = 0; i < kernel.parameters; i++) {
        if (i) text += ' ';
        for (u32 b = 0; b < kernel.sizes[i]; b++) {
            u8 byte = ((const u8*)parameters[i])[b];
            text += DIGITS[byte >> 4], text += DIGITS[byte & 15];
        }
    }
    return text + '\t' + of_arrays;
}

// A library that Python stands in for.
API cudaError_t emulator_issue(const char* name, const char* details, cudaStream_t stream) {
    Lock lock(machine::mutex);
    machine::call(stream, {"library", name, details}, nullptr);
    return machine::status();
}
