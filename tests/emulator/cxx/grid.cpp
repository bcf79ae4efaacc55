// One grid: its blocks one after the other, and of a block each thread as a fiber with a stack of its own.
#include <cstring>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "machine.h"

using machine::problem;

constexpr size_t STACK = 128 << 10;

enum State { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, DONE };
struct Fiber : Thread {
    State state;
    void* stack_pointer;
    char* stack;
};
struct Warp {
    u64 values[WARP];
    u32 arrived, epoch;
};
struct Block {
    std::vector<Fiber> threads;
    std::vector<Warp> warps;
    u64 number;
    u32 epoch;
    void* scheduler;
};

static Fiber* running;
static std::vector<std::unique_ptr<char[]>> stacks;
static std::vector<char*> free_stacks;
static Fiber& fiber(Thread& t) { return static_cast<Fiber&>(t); }
static Warp& warp_of(Thread& t) { return t.block->warps[t.warp]; }

// ---- switching: registers that a call preserves are on the stack that is left

extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.globl emulator_switch
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

static void leave(Fiber& f, State state) {
    f.state = state;
    emulator_switch(&f.stack_pointer, f.block->scheduler);
}
static void fiber_main() {
    Fiber& f = *running;
    f.launch->kernel->run(f);
    leave(f, DONE);
}
static void resume(Fiber& f) {
    if (!f.stack) {  // threads that never wait need one stack together
        if (free_stacks.empty()) {
            stacks.emplace_back(new char[STACK]);
            free_stacks.push_back(stacks.back().get());
        }
        f.stack = free_stacks.back();
        free_stacks.pop_back();
        void** top = (void**)(((u64)f.stack + STACK) / 64 * 64) - 8;
        *--top = nullptr;
        *--top = (void*)fiber_main;
        for (int i = 0; i < 6; i++) *--top = nullptr;
        f.stack_pointer = top;
    }
    running = &f;
    emulator_switch(&f.block->scheduler, f.stack_pointer);
    if (f.state == DONE) free_stacks.push_back(f.stack);
}

// ---- barriers

API void emulator_block_barrier(Thread& t) { leave(fiber(t), AT_BLOCK_BARRIER); }
API u32 emulator_lanes(Thread& t) {
    u32 n = u32(t.block->threads.size()) - t.warp * WARP;
    return n >= WARP ? EVERY_LANE : (1u << n) - 1;
}
API void emulator_warp_barrier(Thread& t, u32 mask) {
    Warp& w = warp_of(t);
    mask &= emulator_lanes(t);
    if (!(mask >> t.lane & 1))
        problem(std::string("a barrier of a warp whose mask lacks the thread itself: ") + t.launch->kernel->name);
    w.arrived |= 1u << t.lane;
    if ((w.arrived & mask) != mask) return leave(fiber(t), AT_WARP_BARRIER);
    w.arrived &= ~mask;
    w.epoch++;
    for (u32 lane = 0; lane < WARP; lane++)
        if (mask >> lane & 1) t.block->threads[t.warp * WARP + lane].state = READY;
}
API const u64* emulator_exchange(Thread& t, u64 value, u32 mask) {
    warp_of(t).values[t.lane] = value;
    emulator_warp_barrier(t, mask);
    return warp_of(t).values;
}

// ---- faults

static std::string where(Thread& t) {
    return std::string("kernel ") + t.launch->kernel->name + ", block " + std::to_string(t.block->number) +
           ", thread " + std::to_string(t.number);
}
API void emulator_fault(Thread& t, const char* what, u64 address, u32 bytes) {
    char text[64];
    snprintf(text, sizeof text, " of %u bytes at %#lx: ", bytes, address);
    bool is_order = !strncmp(what, "misaligned", 10);
    problem(what + std::string(text) + where(t), is_order ? cudaErrorMisalignedAddress : cudaErrorIllegalAddress);
}
API void emulator_trap(Thread& t, const char* what) {
    problem(what + std::string(": ") + where(t), cudaErrorAssert);
    leave(fiber(t), DONE);
}
API bool emulator_on_stack(u64 address) { return address - (u64)running->stack < STACK; }

// ---- races: two threads at one byte, of which one writes, without a barrier between

struct Access {
    u64 block = ~0ul;
    u32 thread = 0, warp = 0, epoch = 0, warp_epoch = 0;
};
struct History {
    Access write, read, other_read;
};
static std::unordered_map<u64, History> of_shared, of_global;

// By an atomic operation a block meets those that have made one at this address: theirs comes before what follows.
static std::unordered_map<u64, std::unordered_set<u64>> at_address;
static std::unordered_set<u64> met;
API void emulator_meet(Thread& t, u64 address) {
    std::unordered_set<u64>& blocks = at_address[address];
    met.insert(blocks.begin(), blocks.end());
    blocks.insert(t.block->number);
}

static bool clash(const Access& a, const Access& b) {
    if (a.block == ~0ul) return false;
    if (a.block != b.block) return !met.count(a.block);
    return a.thread != b.thread && a.epoch == b.epoch && (a.warp != b.warp || a.warp_epoch == b.warp_epoch);
}
API void emulator_access(Thread& t, u64 address, u32 bytes, bool writes, bool in_shared) {
    Access now{t.block->number, t.number, t.warp, t.block->epoch, warp_of(t).epoch};
    for (u64 a = address; a < address + bytes; a++) {
        History& h = (in_shared ? of_shared : of_global)[a];
        const Access* other = clash(h.write, now)                  ? &h.write
                              : writes && clash(h.read, now)       ? &h.read
                              : writes && clash(h.other_read, now) ? &h.other_read
                                                                   : nullptr;
        if (other) {
            problem(std::string("race in ") + (in_shared ? "shared" : "global") + " memory: " + where(t) +
                    (writes ? " writes" : " reads") + " what thread " + std::to_string(other->thread) + " of block " +
                    std::to_string(other->block) + (other == &h.write ? " writes" : " reads"));
            return;
        }
        if (writes) h.write = now;
        else if (h.read.block == ~0ul || (h.read.block == now.block && h.read.thread == now.thread)) h.read = now;
        else h.other_read = now;
    }
}

// ---- scheduling

static bool run_ready(Block& b, std::vector<u32>& order) {
    if (machine::options.shuffled)
        for (u32 i = u32(order.size()); i-- > 1;) std::swap(order[i], order[machine::random_number() % (i + 1)]);
    bool any = false;
    for (u32 i : order)
        if (b.threads[i].state == READY) resume(b.threads[i]), any = true;
    return any;
}
// Releases a barrier of the block that all threads have reached which have not ended; false if some wait otherwise.
static bool open_barrier(Block& b, const char* name) {
    u32 done = 0, waiting = 0;
    for (Fiber& f : b.threads) done += f.state == DONE, waiting += f.state == AT_BLOCK_BARRIER;
    if (done == b.threads.size()) return false;
    if (done + waiting < b.threads.size()) {
        problem(std::string("threads wait at a barrier of their warp that others do not reach: kernel ") + name,
            cudaErrorLaunchTimeout);
        return false;
    }
    // CuPy's own kernels do so, and GPUs count threads that have ended as arrived
    if (done && strncmp(name, "cupy_", 5))
        problem(std::string("some threads have ended before a barrier that others reach: kernel ") + name);
    for (Fiber& f : b.threads)
        if (f.state == AT_BLOCK_BARRIER) f.state = READY;
    b.epoch++;
    return true;
}

void machine::run_grid(const Launch& launch) {
    static std::unique_ptr<char[]> memory(new char[SHARED_BASE + SHARED_MOST + 256]);
    char* shared = (char*)(((u64)memory.get() + 255) / 256 * 256);
    const Kernel& kernel = *launch.kernel;
    Dim n = launch.block, g = launch.grid;
    u64 blocks = u64(g.x) * g.y * g.z;
    u32 threads = n.x * n.y * n.z, shift = options.shuffled ? random_number() : 0;
    of_global.clear(), at_address.clear();
    std::vector<u32> order(threads);
    for (u32 i = 0; i < threads; i++) order[i] = i;
    Block b;
    b.threads.resize(threads);
    b.warps.resize((threads + WARP - 1) / WARP);
    for (u64 i = 0; i < blocks; i++) {
        b.number = options.shuffled ? blocks - 1 - (i + shift) % blocks : i;
        b.epoch = 0;
        memset(b.warps.data(), 0, b.warps.size() * sizeof(Warp));
        memset(shared, 0xff, SHARED_BASE + kernel.shared + launch.dynamic_shared);
        if (emulator_races) of_shared.clear(), met.clear();
        Dim at{u32(b.number % g.x), u32(b.number / g.x % g.y), u32(b.number / g.x / g.y)};
        for (u32 k = 0; k < threads; k++) {
            Thread t{{k % n.x, k / n.x % n.y, k / n.x / n.y}, at, k, k % WARP, k / WARP, &launch, &b, shared};
            b.threads[k] = Fiber{t, READY, nullptr, nullptr};
        }
        while (run_ready(b, order) || open_barrier(b, kernel.name)) {}
        for (Fiber& f : b.threads)
            if (f.state != DONE) free_stacks.push_back(f.stack);
    }
}
