// What the parts of the emulator share. One lock guards all of it: every call of CUDA takes it.
#pragma once
#include <condition_variable>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <functional>
#include <mutex>
#include <string>

#include "device.h"

#define API extern "C" __attribute__((visibility("default")))

namespace machine {

extern std::mutex mutex;
using Lock = std::unique_lock<std::mutex>;

// ---- options, which Python sets before work is issued
struct Options {
    int order;        // of streams: 0 as issued, 1 as late as synchronisation allows, 2 at random
    int shuffled;     // threads and blocks run in a random order
    int devices;      // how many there are
    double patience;  // seconds that a wait may take
    int null;         // calls are noted, and nothing runs (null.cpp)
};
extern Options options;
u32 random_number();

// ---- what went wrong, and what was called
void problem(const std::string& text, cudaError_t error = cudaErrorLaunchFailure);
void note(const char* kind, const std::string& name);
bool is_noting();
API int emulator_unknown(const char* name);  // a call that is not emulated
cudaError_t status();  // the error of the first problem, until Python has read the problems

// ---- memory
enum class Side { HOST, PINNED, DEVICE };
Side side_of(const void* p);
bool is_inside(const void* p, size_t bytes);
void add_allocation(void* p, size_t bytes, Side side);
void remove_allocation(void* p);
size_t device_bytes();

// ---- streams
using Work = std::function<void()>;
using Ready = std::function<bool()>;
void issue(void* stream, const std::string& name, Work work);
struct Call {
    const char* kind;
    std::string name;
    std::string details = "";     // noted on the null device: by them bytes and operations are counted
    std::string label = name;     // for messages
    bool writes_to_host = false;  // so it runs on the null device too
};
void call(void* stream, const Call& call, Work work);  // notes and issues it
struct Made {
    std::string name;
    Work work;
    Ready ready;
};
using Make = std::function<Made(u64 launch)>;  // of a graph, or 0 outside of graphs
void call_anew(void* stream, const Call& call, const Make& make);  // whose work each launch of a graph makes anew
bool is_noted(void* stream);                                                   // by Python, or by a graph
bool captures(void* stream);
cudaError_t wait_for_all(Lock& lock);
void drop_work();
int current_device();

// ---- captures: whether a call is refused because of one, which is a problem then
bool refuses_in_capture(
    void* stream, const std::string& what, cudaError_t error = cudaErrorStreamCaptureUnsupported);
bool refuses_unsafe(const std::string& what);  // what a mode forbids that is not relaxed: to allocate, to wait

// ---- NCCL
void refuse_open_groups(bool of_all_threads);
std::string last_calls();  // of each device, in words

// ---- kernels
void run_grid(const Launch& launch);

// ---- the null device
std::string parameters_of(const Kernel& kernel, void** parameters, void* stream);
void* reserved(size_t bytes);
void release_reserved(void* p, size_t bytes);

}  // namespace machine
