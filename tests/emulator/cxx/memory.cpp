// Memory of the device and pinned memory of the host: allocations with bounds, and copies. Also the options
// and lists that Python reads: what went wrong, and what was called.
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "machine.h"

using machine::Lock;
using machine::Side;

std::mutex machine::mutex;
machine::Options machine::options{0, 0, 1, 120, 0};
static u64 random_state = 88172645463325252;
u32 machine::random_number() {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return u32(random_state >> 11);
}

// ---- problems and notes

struct Text {
    std::string lines;
    std::set<std::string> seen;
};
static Text& problems = *new Text;  // never destroyed: threads may outlive the objects of this file
static std::string& notes = *new std::string;
static cudaError_t first_error = cudaSuccess;
static bool is_noting = false;

void machine::problem(const std::string& text, cudaError_t error) {
    if (first_error == cudaSuccess) first_error = error;
    if (problems.seen.size() < 100 && problems.seen.insert(text).second) problems.lines += text + "\n";
}
void machine::note(const char* kind, const std::string& name) {
    static thread_local bool has_waited = false;  // and this thread has asked for nothing since
    bool waits = std::string(kind) == "wait";
    if (is_noting && !(waits && has_waited)) notes += kind + std::string("\t") + name + "\n";
    has_waited = is_noting && waits;
}
bool machine::is_noting() { return ::is_noting; }
cudaError_t machine::status() { return first_error; }

int emulator_races = 0;
u64 emulator_generation = 1;

static std::string& read_text = *new std::string;
API void emulator_set(int order, int shuffled, int races, int devices, int null, double patience, u64 seed) {
    Lock lock(machine::mutex);
    machine::options = {order, shuffled, devices, patience, null};
    emulator_races = races;
    random_state = 88172645463325252 ^ seed * 2654435761;
}
API const char* emulator_problems() {  // those since the last call, a line each; work goes on after it
    Lock lock(machine::mutex);
    machine::refuse_open_groups(true);
    if (first_error != cudaSuccess) machine::drop_work();
    read_text = problems.lines, problems = {}, first_error = cudaSuccess;
    return read_text.c_str();
}
API void emulator_problem(const char* text) {
    Lock lock(machine::mutex);
    machine::problem(text);
}
API const char* emulator_notes(int goes_on) {  // what was called since the last time, a line each
    Lock lock(machine::mutex);
    read_text = notes, notes.clear(), is_noting = goes_on;
    return read_text.c_str();
}
int machine::emulator_unknown(const char* name) {
    Lock lock(machine::mutex);
    machine::problem(std::string(name) + " is not emulated", cudaErrorNotSupported);
    fprintf(stderr, "emulator: %s is not emulated\n", name);
    return cudaErrorNotSupported;
}

// ---- allocations

size_t machine::device_bytes() { return (options.null ? 140ul : 8ul) << 30; }
struct Allocation {
    size_t bytes;
    Side side;
};
static std::map<u64, Allocation>& allocations = *new std::map<u64, Allocation>;
static size_t used_bytes = 0;

static auto holder(u64 address) {
    auto next = allocations.upper_bound(address);
    if (next == allocations.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= address)
        return allocations.end();
    return std::prev(next);
}
void machine::add_allocation(void* p, size_t bytes, Side side) {
    allocations[u64(p)] = {bytes, side};
    if (side == Side::DEVICE) used_bytes += bytes;
}
void machine::remove_allocation(void* p) {
    auto it = allocations.find(u64(p));
    if (it->second.side == Side::DEVICE) used_bytes -= it->second.bytes;
    allocations.erase(it);
    emulator_generation++;
}
Side machine::side_of(const void* p) {
    auto it = holder(u64(p));
    return it == allocations.end() ? Side::HOST : it->second.side;
}
bool machine::is_inside(const void* p, size_t bytes) {
    auto it = holder(u64(p));
    return it != allocations.end() && u64(p) + bytes <= it->first + it->second.bytes;
}
API bool emulator_find(Bounds& bounds, u64 address, u32 bytes) {
    auto it = holder(address);
    if (it == allocations.end()) return false;
    bounds = {it->first, it->first + it->second.bytes, emulator_generation};
    return address + bytes <= bounds.high;
}
API bool emulator_is_device(void* p) {
    Lock lock(machine::mutex);
    return machine::side_of(p) == Side::DEVICE;
}

static cudaError_t allocate(void** p, size_t bytes, Side side) {
    Lock lock(machine::mutex);
    *p = nullptr;
    if (machine::refuses_unsafe("memory is allocated")) return machine::status();
    if (bytes == 0) return machine::status();
    if (side == Side::DEVICE && used_bytes + bytes > machine::device_bytes()) return cudaErrorMemoryAllocation;
    size_t align = side == Side::DEVICE ? 512 : 4096;
    bool is_null = side == Side::DEVICE && machine::options.null;
    *p = is_null ? machine::reserved(bytes) : aligned_alloc(align, (bytes + align - 1) / align * align);
    if (!*p) return cudaErrorMemoryAllocation;
    if (!is_null) memset(*p, 0xff, bytes);  // nan, so that reads of what nothing has written show
    machine::add_allocation(*p, bytes, side);
    machine::note(side == Side::DEVICE ? "malloc" : "pin", std::to_string(bytes));
    return machine::status();
}
static cudaError_t release(void* p, Side side) {
    Lock lock(machine::mutex);
    if (!p) return cudaSuccess;
    if (machine::refuses_unsafe("memory is freed")) return machine::status();
    machine::wait_for_all(lock);
    auto it = allocations.find(u64(p));
    if (it == allocations.end() || it->second.side != side) {
        machine::problem("free of an address that was not allocated");
        return cudaErrorInvalidValue;
    }
    size_t bytes = it->second.bytes;
    machine::note("free", std::to_string(bytes));
    machine::remove_allocation(p);
    if (side == Side::DEVICE && machine::options.null) machine::release_reserved(p, bytes);
    else memset(p, 0xee, bytes), free(p);
    return cudaSuccess;
}
API cudaError_t cudaMalloc(void** p, size_t bytes) { return allocate(p, bytes, Side::DEVICE); }
API cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) { return allocate(p, bytes, Side::PINNED); }
API cudaError_t cudaFree(void* p) { return release(p, Side::DEVICE); }
API cudaError_t cudaFreeHost(void* p) { return release(p, Side::PINNED); }
API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    Lock lock(machine::mutex);
    *total = machine::device_bytes(), *free = *total - used_bytes;
    return machine::status();
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
    Lock lock(machine::mutex);
    Side side = machine::side_of(p);
    void* q = const_cast<void*>(p);
    *a = {};
    a->type = side == Side::DEVICE   ? cudaMemoryTypeDevice
              : side == Side::PINNED ? cudaMemoryTypeHost
                                     : cudaMemoryTypeUnregistered;
    a->devicePointer = side == Side::HOST ? nullptr : q;
    a->hostPointer = side == Side::DEVICE ? nullptr : q;
    return cudaSuccess;
}

// ---- copies

static cudaError_t refused(const char* what) {
    machine::problem(what, cudaErrorInvalidValue);
    return cudaErrorInvalidValue;
}
// Of a graph it runs later and again, when memory may have been freed that was there when it was captured.
static bool is_there(const void* p, size_t bytes, Side side) {
    if (side == Side::HOST || (machine::side_of(p) == side && machine::is_inside(p, bytes))) return true;
    machine::problem("a copy or memset of freed memory", cudaErrorIllegalAddress);
    return false;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t stream);
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    static const char* const NAMES[] = {"host to host", "host to device", "device to host", "device to device"};
    bool waits = false;
    {
        Lock lock(machine::mutex);
        Side a = machine::side_of(to), b = machine::side_of(from);
        int is = (a == Side::DEVICE) + 2 * (b == Side::DEVICE);
        if (bytes == 0) return machine::status();
        if (kind != cudaMemcpyDefault && kind != is) return refused("a copy in another direction than its kind says");
        if ((a != Side::HOST && !machine::is_inside(to, bytes)) ||
            (b != Side::HOST && !machine::is_inside(from, bytes)))
            return refused("a copy beyond the end of an allocation");
        bool pageable = is != 3 && (a == Side::HOST || b == Side::HOST);
        if (pageable && machine::refuses_in_capture(stream, "a copy of pageable memory")) return machine::status();
        machine::Call call{"copy", NAMES[is] + std::string(pageable ? " pageable" : ""), std::to_string(bytes), "copy",
            a != Side::DEVICE};
        if (machine::options.null && b == Side::DEVICE)  // all of its memory reads as zeros
            machine::call(stream, call, [=] { memset(to, 0, bytes); });
        else if (pageable && is == 1 && !machine::options.null) {  // the call returns when the bytes are staged
            std::string staged((const char*)from, bytes);
            machine::call(stream, call, [=] { memcpy(to, staged.data(), bytes); });
        } else
            machine::call(stream, call, [=] {
                if (is_there(to, bytes, a) && is_there(from, bytes, b)) memmove(to, from, bytes);
            });
        waits = pageable && is != 1;
    }
    return waits ? cudaStreamSynchronize(stream) : machine::status();
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    {
        Lock lock(machine::mutex);
        if (machine::refuses_unsafe("a copy that the host waits for")) return machine::status();
    }
    if (cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind, nullptr)) return e;
    return cudaStreamSynchronize(nullptr);
}
API cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t stream) {
    Lock lock(machine::mutex);
    if (bytes == 0) return machine::status();
    Side side = machine::side_of(p);
    if (side == Side::HOST || !machine::is_inside(p, bytes))
        return refused("memset beyond an allocation");
    machine::call(stream, {"kernel", "memset", std::to_string(bytes)}, [=] {
        if (is_there(p, bytes, side)) memset(p, value, bytes);
    });
    return machine::status();
}

