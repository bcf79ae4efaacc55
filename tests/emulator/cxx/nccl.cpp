// NCCL between threads and processes of one machine. Each rank writes what it gives to a call into a file, and goes
// on when the files of all ranks are there: no rank waits on the host, and a call stays in the order of its stream.
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "orders.h"

namespace fs = std::filesystem;
using machine::Lock;

enum Result { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum Kind { ALL_REDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, MEETING };
static const char* const NAMES[] = {"all-reduce", "reduce", "broadcast", "reduce-scatter", "all-gather", "start"};
enum Type { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, TYPES };
static const size_t BYTES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
constexpr int SUM = 0;

struct Id {
    char folder[128];
};
struct Comm {
    fs::path folder;
    int size, rank, device;
    u64 issued = 0, done = 0;
    s64 captured = 0;
    std::shared_ptr<int> uses = std::make_shared<int>();  // of graphs: each of their calls has a copy
    fs::path file(u64 number, int r) const { return folder / (std::to_string(number) + "-" + std::to_string(r)); }
    std::string place(u64 number) const { return folder.filename().string() + " call " + std::to_string(number); }
};
struct Call {
    u64 number, count;
    int kind, type;
    s64 root;
    s64 captured = 0;  // its number among captured calls; no gap behind it: calls are compared by their bytes
    size_t given(int size) const { return count * BYTES[type] * (kind == REDUCE_SCATTER ? size : 1); }
    std::string text() const {
        return std::string(NAMES[kind]) + " of " + std::to_string(count) + " numbers of type " + std::to_string(type) +
               ", root " + std::to_string(root) +
               (captured ? ", the graphs' call " + std::to_string(captured) : "");
    }
};

static void publish(const Comm& comm, const Call& call, const void* data) {
    fs::path path = comm.file(call.number, comm.rank), part = path;
    part += ".part";
    std::ofstream out(part, std::ios::binary);
    out.write((const char*)&call, sizeof call);
    out.write((const char*)data, std::streamsize(call.given(comm.size)));
    out.close();
    fs::rename(part, path);
}
static bool all_have_come(const Comm& comm, u64 number) {
    for (int r = 0; r < comm.size; r++)
        if (!fs::exists(comm.file(number, r))) return false;
    return true;
}
static std::vector<char> given_by(const Comm& comm, const Call& mine, int r) {
    std::ifstream in(comm.file(mine.number, r), std::ios::binary);
    Call call;
    in.read((char*)&call, sizeof call);
    if (memcmp(&call, &mine, sizeof call))
        machine::problem("NCCL: call " + std::to_string(mine.number) + " of rank " + std::to_string(comm.rank) +
                         " is " + mine.text() + ", of rank " + std::to_string(r) + " " + call.text());
    std::vector<char> data(mine.given(comm.size));
    in.read(data.data(), std::streamsize(data.size()));
    return data;
}

template <class T> void combine(std::vector<char>& all, const std::vector<char>& other) {
    for (size_t i = 0; i + sizeof(T) <= all.size(); i += sizeof(T)) {
        T a, b;
        memcpy(&a, &all[i], sizeof a), memcpy(&b, &other[i], sizeof b);
        if constexpr (IS_HALF<T>) put<T>(a.bits, number(a) + number(b));
        else a += b;
        memcpy(&all[i], &a, sizeof a);
    }
}
static void (*const COMBINE[])(std::vector<char>&, const std::vector<char>&) = {combine<s8>, combine<u8>,
    combine<s32>, combine<u32>, combine<s64>, combine<u64>, combine<f16>, combine<f32>, combine<f64>, combine<bf16>};

static void carry_out(Comm& comm, const Call& call, char* to) {
    size_t part = call.count * BYTES[call.type];
    std::vector<char> all;
    for (int r = 0; r < comm.size; r++) {
        std::vector<char> data = given_by(comm, call, r);
        if (call.kind == ALL_GATHER) memcpy(to + r * part, data.data(), part);
        else if (call.kind == BROADCAST && r == call.root) memcpy(to, data.data(), part);
        else if (call.kind != BROADCAST) r == 0 ? void(all = data) : COMBINE[call.type](all, data);
    }
    if (call.kind == ALL_REDUCE || (call.kind == REDUCE && comm.rank == call.root)) memcpy(to, all.data(), part);
    if (call.kind == REDUCE_SCATTER) memcpy(to, all.data() + comm.rank * part, part);
    if (call.number) fs::remove(comm.file(call.number - 1, comm.rank));  // all have come here: all have read it
    comm.done++;
}

// ---- groups: calls between start and end are made at the end

struct Group {
    int depth = 0;
    std::vector<std::pair<std::string, std::function<void(u64)>>> calls;
};
static auto& groups = *new std::map<std::thread::id, Group>;
static u64 last_group = 0;
// The group of a call that a launch of a graph makes: calls of one group stay one.
static u64 group_of(u64 captured, u64 launch) {
    static std::pair<u64, u64> last;
    if (launch && last != std::pair(captured, launch)) last = {captured, launch}, last_group++;
    return launch ? last_group : captured;
}

void machine::refuse_open_groups(bool of_all_threads) {
    for (auto& [thread, group] : groups)
        if (!group.calls.empty() && (of_all_threads || thread == std::this_thread::get_id())) {
            problem("NCCL: a group is left open, in which " + group.calls[0].first +
                    " was called: it begins with ncclGroupEnd, and other ranks wait for it");
            group = {};
        }
}

static int start(
    Comm* comm, int kind, const void* from, void* to, size_t count, int type, int operation, int root, void* stream) {
    if (type < 0 || type >= TYPES || root < 0 || root >= comm->size) return INVALID_ARGUMENT;
    if (operation != SUM) return machine::emulator_unknown("NCCL's operation other than a sum"), INVALID_ARGUMENT;
    Call call{0, count, kind, type, root};
    auto make = [=](u64 number_of_group) mutable {
        std::string bytes = std::to_string(call.given(comm->size));
        if (machine::options.null) return machine::call(stream, {"library", NAMES[kind], bytes}, nullptr);
        if (machine::captures(stream)) call.captured = ++comm->captured;
        machine::call_anew(stream, {"library", NAMES[kind], bytes}, [=, use = comm->uses](u64 launch) mutable {
            size_t result = count * BYTES[type] * (kind == ALL_GATHER ? comm->size : 1);
            if (!machine::is_inside(from, call.given(comm->size)) || !machine::is_inside(to, result))
                machine::problem("NCCL: memory that is not within an allocation", cudaErrorIllegalAddress);
            call.number = comm->issued++;
            auto is_published = std::make_shared<bool>(false);
            auto ready = [=] {
                if (comm->done < call.number) return false;
                if (!*is_published) publish(*comm, call, from), *is_published = true;
                return all_have_come(*comm, call.number);
            };
            std::string place = comm->place(call.number);
            orders::called(comm->device, group_of(number_of_group, launch), place, call.text());
            auto work = [=] { carry_out(*comm, call, (char*)to); };
            return machine::Made{"NCCL's " + call.text() + " (" + place + ")", work, ready};
        });
    };
    Lock lock(machine::mutex);
    Group& group = groups[std::this_thread::get_id()];
    if (group.depth) group.calls.emplace_back(call.text(), make);
    else make(++last_group);
    return OK;
}
API int ncclGroupStart() {
    Lock lock(machine::mutex);
    return groups[std::this_thread::get_id()].depth++, OK;
}
API int ncclGroupEnd() {
    Lock lock(machine::mutex);
    Group& group = groups[std::this_thread::get_id()];
    if (!group.depth) return INVALID_USAGE;
    if (--group.depth) return OK;
    last_group++;
    for (auto& [text, make] : group.calls) make(last_group);
    group.calls.clear();
    return OK;
}
API int ncclAllReduce(const void* from, void* to, size_t n, int type, int op, Comm* c, void* stream) {
    return start(c, ALL_REDUCE, from, to, n, type, op, 0, stream);
}
API int ncclReduce(const void* from, void* to, size_t n, int type, int op, int root, Comm* c, void* stream) {
    return start(c, REDUCE, from, to, n, type, op, root, stream);
}
API int ncclBroadcast(const void* from, void* to, size_t n, int type, int root, Comm* c, void* stream) {
    return start(c, BROADCAST, from, to, n, type, SUM, root, stream);
}
API int ncclReduceScatter(const void* from, void* to, size_t n, int type, int op, Comm* c, void* stream) {
    return start(c, REDUCE_SCATTER, from, to, n, type, op, 0, stream);
}
API int ncclAllGather(const void* from, void* to, size_t n, int type, Comm* c, void* stream) {
    return start(c, ALL_GATHER, from, to, n, type, SUM, 0, stream);
}

// ---- communicators

API int ncclGetUniqueId(Id* id) {
    std::string name = (fs::temp_directory_path() / "nccl-XXXXXX").string();
    if (name.size() >= sizeof id->folder || !mkdtemp(name.data())) return SYSTEM_ERROR;
    *id = {};
    memcpy(id->folder, name.data(), name.size());
    return OK;
}
API int ncclCommInitRankConfig(Comm** comm, int size, Id id, int rank, void*) {
    if (rank < 0 || rank >= size || !fs::exists(id.folder)) return INVALID_ARGUMENT;
    auto* c = new Comm{id.folder, size, rank, machine::current_device()};
    Call meeting{c->issued++, sizeof(int), MEETING, UINT8, 0};
    publish(*c, meeting, &c->device);
    for (double waited = 0; !all_have_come(*c, 0); waited += 0.0005) {
        if (waited > machine::options.patience) return SYSTEM_ERROR;
        std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    Lock lock(machine::mutex);
    for (int r = 0; r < size; r++)
        if (int other = *(int*)given_by(*c, meeting, r).data(); r != rank && other == c->device) {
            fprintf(stderr, "emulator: NCCL refuses ranks %d and %d, which use one device\n", rank, r);
            return INVALID_USAGE;
        }
    c->done++;
    orders::join(c->folder, rank);
    *comm = c;
    return OK;
}
API int ncclCommDestroy(Comm* c) {
    Lock lock(machine::mutex);
    if (c->uses.use_count() > 1)
        machine::problem("NCCL: the end of a communicator of which graphs have calls: it waits for their end for ever");
    orders::leave(c->folder, c->device);
    std::ofstream(c->folder / ("left-" + std::to_string(c->rank)));
    for (int r = 0; r < c->size; r++)
        if (!fs::exists(c->folder / ("left-" + std::to_string(r)))) return OK;
    // several ranks may come here at one time: the one that renames the folder removes it
    fs::path left = c->folder;
    std::error_code error;
    fs::rename(c->folder, left += ".left", error);
    if (!error) fs::remove_all(left);
    return OK;
}
API const char* ncclGetErrorString(int e) {
    return e == INVALID_USAGE      ? "invalid usage"
           : e == INVALID_ARGUMENT ? "invalid argument"
           : e                     ? "system error"
                                   : "no error";
}
