// Graphs, by the capture of streams: work of a stream that captures is recorded, and run at each launch of the graph.
// What a GPU refuses meanwhile is a problem, and the graph is lost: nothing may depend on work that has not run.
#include "streams.h"

using machine::Lock;
using machine::status;
using Hit = std::function<bool(Stream&)>;

struct Graph {
    std::vector<Item> items;
    Place last;  // the end of its last launch
};

// ---- what is refused

// Says what is wrong where it touches streams that capture, and invalidates their captures; false if it touches none.
static bool refuse(const std::string& what, cudaError_t error, const Hit& is_hit) {
    bool any = false;
    for (Stream* s : streams)
        if (s->capture && is_hit(*s)) s->capture->is_valid = false, any = true;
    if (any) machine::problem("during a capture: " + what, error);
    return any;
}
static bool refuse_in_null(const Stream& null, const std::string& what) {  // which blocking streams and it follow
    return null.is_null && refuse(what + " in the null stream, which waits for a stream that captures",
                               cudaErrorStreamCaptureImplicit,
                               [&](Stream& o) { return o.device == null.device && !o.is_non_blocking; });
}
bool machine::refuses_in_capture(void* stream, const std::string& what, cudaError_t error) {
    Stream& s = stream_of(stream);
    return refuse(what, error, [&](Stream& o) { return &o == &s; });
}
bool machine::refuses_unsafe(const std::string& what) {
    return refuse(what + ", which its mode forbids", cudaErrorStreamCaptureUnsupported, [](Stream& o) {
        return o.capture->mode == cudaStreamCaptureModeGlobal ||
               (o.capture->mode == cudaStreamCaptureModeThreadLocal &&
                   o.capture->thread == std::this_thread::get_id());
    });
}
bool refuses_wait(Stream& s, const std::string& what) {
    return machine::refuses_in_capture(&s, what + " a stream that captures") || refuse_in_null(s, what + " work") ||
           machine::refuses_unsafe(what + " a stream");
}
bool refuses_wait(Event& e, const std::string& what) {
    if (!e.capture) return machine::refuses_unsafe(what + " an event");
    e.capture->is_valid = false;
    machine::problem(what + " an event that was recorded in a capture, and never happens", cudaErrorCapturedEvent);
    return true;
}
bool refuses_wait_for_device(int device) {
    return refuse("a wait for the device", cudaErrorStreamCaptureUnsupported,
        [=](Stream& o) { return o.device == device; });
}

// ---- what is recorded

static bool is_lost(const Capture& c, const std::string& name) {
    if (!c.is_valid) machine::problem("during a capture that is invalid: " + name, cudaErrorStreamCaptureInvalidated);
    return !c.is_valid;
}
bool takes(Stream& s, Item& item) {
    if (!s.capture) return refuse_in_null(s, item.name);
    if (is_lost(*s.capture, item.name)) return true;
    s.capture->items.push_back({item.name, item.work, nullptr, {}, item.note, item.make});
    return ++s.seen[&s];
}
bool takes_record(Stream& s, Event& e) {
    e.capture = s.capture, e.seen = s.seen;
    if (s.capture) is_lost(*s.capture, "the record of an event");
    return s.capture != nullptr;
}
bool takes_wait(Stream& s, Event& e) {
    if (!e.capture)
        return e.place.stream && machine::refuses_in_capture(&s, "a wait for an event that was recorded outside of it",
                                     cudaErrorStreamCaptureIsolation);
    if (e.capture->is_over || s.is_null) return refuses_wait(e, "the wait of a stream for");
    if (s.capture && s.capture != e.capture)
        return refuse("a wait for an event of another capture", cudaErrorStreamCaptureMerge,
            [&](Stream& o) { return o.capture == s.capture || o.capture == e.capture; });
    if (is_lost(*e.capture, "a wait for an event")) return true;
    s.capture = e.capture;
    for (auto [stream, count] : e.seen) s.seen[stream] = std::max(s.seen[stream], count);
    return true;
}

// ---- captures

void end_captures(const Hit& of) {
    for (Stream* s : streams)
        if (s->capture && of(*s)) s->capture->is_over = true, s->capture = nullptr, s->seen.clear();
}
static cudaError_t wrong(const std::string& what, cudaError_t error, Capture* c = nullptr) {
    if (c) c->is_valid = false;
    machine::problem(what, error);
    return error;
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    Lock lock(machine::mutex);
    Stream& s = stream_of(stream);
    if (s.is_null) return wrong("a capture of the null stream", cudaErrorStreamCaptureUnsupported);
    if (s.capture)
        return wrong("a capture of a stream that captures already", cudaErrorIllegalState, s.capture.get());
    s.capture.reset(new Capture{&s, mode, std::this_thread::get_id(), {}});
    return status();
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* is) {
    Lock lock(machine::mutex);
    Stream& s = stream_of(stream);
    for (Stream* o : streams)  // which invalidates nothing
        if (s.is_null && o->capture && o->device == s.device && !o->is_non_blocking)
            return cudaErrorStreamCaptureImplicit;
    *is = !s.capture            ? cudaStreamCaptureStatusNone
          : s.capture->is_valid ? cudaStreamCaptureStatusActive
                                : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    Lock lock(machine::mutex);
    Stream& s = stream_of(stream);
    std::shared_ptr<Capture> c = s.capture;
    *graph = nullptr;
    if (!c) return wrong("the end of a capture in a stream that does not capture", cudaErrorIllegalState);
    if (c->origin != &s)
        return wrong("the end of a capture in a stream that only joined it", cudaErrorStreamCaptureUnmatched, c.get());
    if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != std::this_thread::get_id())
        return wrong("the end of a capture in another thread", cudaErrorStreamCaptureWrongThread, c.get());
    bool is_joined = true;
    for (Stream* o : streams)
        if (o->capture == c) is_joined = is_joined && s.seen[o] >= o->seen[o];
    end_captures([&](Stream& o) { return o.capture == c; });
    if (!c->is_valid) return cudaErrorStreamCaptureInvalidated;
    if (!is_joined)
        return wrong("the end of a capture that another stream has joined, before a wait for that stream's work",
            cudaErrorStreamCaptureUnjoined);
    *graph = (cudaGraph_t) new Graph{std::move(c->items), {}};
    return status();
}

// ---- graphs

API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
    Lock lock(machine::mutex);
    *exec = (cudaGraphExec_t) new Graph(*(Graph*)graph);
    return status();
}
static u64 launches = 0;
API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    Lock lock(machine::mutex);
    Graph& g = *(Graph*)exec;
    Stream& s = stream_of(stream);
    machine::note("graph", std::to_string(g.items.size()));
    launches++;
    Item first{"a graph", [] {}, nullptr, {}};
    if (g.last.stream) first.after.push_back(g.last);  // it never runs twice at a time
    issue_item(s, std::move(first));
    for (const Item& item : g.items) {
        if (!item.note.empty()) machine::note("node", item.note);
        if (item.make && !s.capture) {
            machine::Made made = item.make(launches);
            issue_item(s, {made.name, made.work, made.ready, {}});
        } else if (item.work || s.capture)
            issue_item(s, {item.name, item.work, nullptr, {}, item.note, item.make});
    }
    if (!s.capture) g.last = {&s, s.issued};
    return status();
}
API cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t stream) {
    Lock lock(machine::mutex);
    machine::issue(stream, "the upload of a graph", [] {});
    return status();
}
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete (Graph*)graph, cudaSuccess; }
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete (Graph*)exec, cudaSuccess; }
