// Streams and events. Work is run when it is issued, as late as a synchronisation allows, or at a random time between;
// a collective of NCCL runs when all ranks have come to it, and what is behind it waits.
#include <chrono>

#include "streams.h"

using machine::Lock;
using machine::status;
using Clock = std::chrono::steady_clock;

enum Order { AS_ISSUED, LATE, AT_RANDOM };
std::vector<Stream*>& streams = *new std::vector<Stream*>;
static thread_local int device = 0;
static thread_local u64 issued = 0;  // works of this thread
int machine::current_device() { return device; }

static Stream& null_stream() {
    for (Stream* s : streams)
        if (s->is_null && s->device == device) return *s;
    streams.push_back(new Stream{device, true, false});
    return *streams.back();
}
Stream& stream_of(void* handle) {
    return u64(handle) <= 2 ? null_stream() : *(Stream*)handle;  // 0, legacy, per thread
}

// Runs works of a stream until so many are done; false if one waits for other ranks.
static bool run_to(Stream& s, u64 count) {
    while (s.done < count) {
        for (Place& p : s.queue.front().after)
            if (!run_to(*p.stream, p.count)) return false;
        if (status() == cudaSuccess && s.queue.front().ready && !s.queue.front().ready()) return false;
        Item item = std::move(s.queue.front());
        s.queue.pop_front();
        if (status() == cudaSuccess && item.work) item.work();
        s.done++;
    }
    return true;
}
static void run_some() {
    for (int k = 0; k < 2; k++) {
        Stream& s = *streams[machine::random_number() % streams.size()];
        u64 waiting = s.issued - s.done;
        if (waiting) run_to(s, s.done + machine::random_number() % (waiting + 1));
    }
}
void machine::drop_work() {  // what is behind an error is not run, and captures are lost
    for (Stream* s : streams) run_to(*s, s->issued);
    end_captures([](Stream&) { return true; });
}
// Devices go on by themselves: whoever waits for another rank may be waited for by a third.
static void run_collectives() {
    for (;;) {
        std::this_thread::sleep_for(std::chrono::microseconds(300));
        Lock lock(machine::mutex);
        for (size_t i = 0; i < streams.size(); i++)
            run_to(
                *streams[i], machine::options.order == AS_ISSUED ? streams[i]->issued : streams[i]->collectives_until);
    }
}

void put_behind(Stream& s, Item item) {
    if (takes(s, item)) return;
    for (Stream* o : streams)  // the null stream and those that are not non-blocking follow each other
        if (o != &s && o->device == s.device && o->done < o->issued &&
            (s.is_null ? !o->is_non_blocking : o->is_null && !s.is_non_blocking))
            item.after.push_back({o, o->issued});
    bool is_collective = bool(item.ready);
    s.queue.push_back(std::move(item));
    s.issued++;
    if (is_collective) {
        static std::thread* helper = new std::thread(run_collectives);
        (void)helper;
        s.collectives_until = s.issued;
    }
    if (machine::options.order == AS_ISSUED) run_to(s, s.issued);
    else if (machine::options.order == AT_RANDOM) run_some();
}
void issue_item(Stream& s, Item item) {
    issued++;
    put_behind(s, std::move(item));
}
void machine::issue(void* stream, const std::string& name, Work work) {
    issue_item(stream_of(stream), {name, std::move(work), nullptr, {}});
}
void machine::call(void* stream, const Call& call, Work work) {
    std::string text = options.null ? call.name + "\t" + call.details : call.name;
    note(call.kind, text);
    Item item{call.label, std::move(work), nullptr, {}};
    if (options.null) {
        item.note = call.kind + ("\t" + text);
        if (!call.writes_to_host) item.work = nullptr;
    }
    issue_item(stream_of(stream), std::move(item));
}
void machine::call_anew(void* stream, const Call& call, const Make& make) {
    note(call.kind, call.name);
    if (stream_of(stream).capture) return issue_item(stream_of(stream), {call.name, nullptr, nullptr, {}, "", make});
    Made made = make(0);
    issue_item(stream_of(stream), {made.name, made.work, made.ready, {}});
}
bool machine::captures(void* stream) { return stream_of(stream).capture != nullptr; }
bool machine::is_noted(void* stream) { return is_noting() || stream_of(stream).capture; }
static cudaError_t wait_for(Lock& lock, Place place) {
    machine::refuse_open_groups(false);
    auto end = Clock::now() + std::chrono::duration<double>(machine::options.patience);
    while (place.stream && !run_to(*place.stream, place.count)) {
        if (Clock::now() > end)
            machine::problem("a wait of " + std::to_string(int(machine::options.patience)) + " s: behind " +
                                 place.stream->queue.front().name + machine::last_calls(),
                cudaErrorLaunchTimeout);
        if (status() != cudaSuccess) break;
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        lock.lock();
    }
    return status();
}
cudaError_t machine::wait_for_all(Lock& lock) {
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i]->device == device) wait_for(lock, {streams[i], streams[i]->issued});
    return status();
}

// ---- streams

static cudaError_t create(cudaStream_t* stream, unsigned flags) {
    Lock lock(machine::mutex);
    null_stream();
    streams.push_back(new Stream{device, false, (flags & cudaStreamNonBlocking) != 0});
    *stream = (cudaStream_t)streams.back();
    return status();
}
API cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create(stream, 0); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return create(stream, flags); }
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
    return create(stream, flags);
}
API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Lock lock(machine::mutex);
    Stream& s = stream_of(stream);
    machine::refuses_in_capture(stream, "the end of a stream that captures");
    end_captures([c = s.capture](Stream& o) { return o.capture == c; });
    return wait_for(lock, {&s, s.issued});
}
API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    Lock lock(machine::mutex);
    machine::note("wait", "stream");
    Stream& s = stream_of(stream);
    if (refuses_wait(s, "a wait for")) return status();
    if (s.is_null) machine::issue(stream, "synchronize", [] {});  // so it follows the others
    return wait_for(lock, {&s, s.issued});
}
static cudaError_t query(Place p) {
    if (!p.stream || p.stream->done >= p.count) return status();
    run_to(*p.stream, machine::options.order == AS_ISSUED ? p.count : p.stream->done + 1);
    return p.stream->done < p.count ? cudaErrorNotReady : status();
}
API cudaError_t cudaStreamQuery(cudaStream_t stream) {
    Lock lock(machine::mutex);
    Stream& s = stream_of(stream);
    if (refuses_wait(s, "a query of")) return status();
    if (s.is_null) machine::issue(stream, "query", [] {});
    return query({&s, s.issued});
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    Lock lock(machine::mutex);
    Event& e = *(Event*)event;
    if (takes_wait(stream_of(stream), e) || !e.place.stream) return status();
    put_behind(stream_of(stream), {"wait for an event", [] {}, nullptr, {e.place}});
    return status();
}
API cudaError_t cudaDeviceSynchronize() {
    Lock lock(machine::mutex);
    machine::note("wait", "device");
    if (refuses_wait_for_device(device)) return status();
    return machine::wait_for_all(lock);
}
API cudaError_t emulator_call(const char* name, cudaStream_t stream) {  // of a library that Python carries out next
    Lock lock(machine::mutex);
    machine::note("library", name);
    if (machine::refuses_in_capture(stream, std::string(name) + ", not emulated", cudaErrorNotSupported))
        return status();
    return wait_for(lock, {&stream_of(stream), stream_of(stream).issued});
}

// ---- events

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    return *event = (cudaEvent_t) new Event, cudaSuccess;
}
API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    Lock lock(machine::mutex);
    delete (Event*)event;
    return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    Lock lock(machine::mutex);
    Event& e = *(Event*)event;
    if (takes_record(stream_of(stream), e)) return status();
    machine::issue(stream, "event", [] {});
    e.place = {&stream_of(stream), stream_of(stream).issued}, e.issued_before = issued;
    return status();
}
API cudaError_t cudaEventQuery(cudaEvent_t event) {
    Lock lock(machine::mutex);
    Event& e = *(Event*)event;
    return refuses_wait(e, "a query of") ? status() : query(e.place);
}
API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    Lock lock(machine::mutex);
    Event& e = *(Event*)event;
    machine::note(e.issued_before == issued ? "wait" : "late wait", "event");  // late: it has more to do meanwhile
    return refuses_wait(e, "a wait for") ? status() : wait_for(lock, e.place);
}

// ---- devices

API cudaError_t cudaGetDeviceCount(int* n) { return *n = machine::options.devices, cudaSuccess; }
API cudaError_t cudaSetDevice(int d) {
    if (d < 0 || d >= machine::options.devices) return cudaErrorInvalidDevice;
    device = d;
    return cudaSuccess;
}
API cudaError_t cudaGetDevice(int* d) { return *d = device, cudaSuccess; }
