// The order in which ranks call NCCL. Each device keeps its last calls in a file of each of its communicators; where
// the calls of all devices, each before those that follow it, make a circle, GPUs may wait for each other for ever.
#include "orders.h"

#include <deque>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <unistd.h>
#include <vector>

namespace fs = std::filesystem;

constexpr size_t KEPT = 64;
struct Call {
    u64 group = 0;
    std::string place, text;  // "nccl-3xA9Bq call 2", "all-reduce of 5 numbers ..."
};
struct Log {
    std::string device;
    std::deque<Call> calls;
};
struct Caller {
    std::deque<Call> calls;
    std::map<fs::path, int> ranks;  // of its communicators
};
static std::map<int, Caller>& callers = *new std::map<int, Caller>;  // of each device of this process

static std::string device_name(int device) {
    return "device " + std::to_string(device) + " of process " + std::to_string(getpid());
}
static fs::path log_of(const fs::path& folder, int rank) { return folder / ("log-" + std::to_string(rank)); }
static Log read(const fs::path& path) {
    Log log;
    std::ifstream in(path);
    std::getline(in, log.device);
    for (std::string line; std::getline(in, line);) {
        Call call;
        std::istringstream part(line);
        part >> call.group, part.get();
        std::getline(part, call.place, '\t'), std::getline(part, call.text);
        log.calls.push_back(call);
    }
    return log;
}
// The logs of all devices that share a communicator with this one, or with one that does, and so on.
static std::map<std::string, Log> all_logs(const Caller& me) {
    std::map<std::string, Log> logs;
    std::set<fs::path> seen;
    std::vector<fs::path> folders;
    for (auto& [folder, rank] : me.ranks) folders.push_back(folder);
    while (!folders.empty()) {
        fs::path folder = folders.back();
        folders.pop_back();
        if (!seen.insert(folder).second) continue;
        for (int r = 0; fs::exists(log_of(folder, r)); r++) {
            Log log = read(log_of(folder, r));
            for (Call& c : log.calls) folders.push_back(folder.parent_path() / c.place.substr(0, c.place.find(' ')));
            logs[log.device] = log;
        }
    }
    return logs;
}

struct Step {
    std::string device;
    Call from, to;
};
static bool find_circle(const std::map<std::string, Log>& logs, const std::string& at, const std::string& end,
    std::set<std::string>& seen, std::vector<Step>& path) {
    for (auto& [device, log] : logs)
        for (size_t i = 0; i < log.calls.size(); i++) {
            if (log.calls[i].place != at) continue;
            for (size_t k = i + 1; k < log.calls.size(); k++) {
                if (log.calls[k].group == log.calls[i].group) continue;
                path.push_back({device, log.calls[i], log.calls[k]});
                if (log.calls[k].place == end) return true;
                if (seen.insert(log.calls[k].place).second && find_circle(logs, log.calls[k].place, end, seen, path))
                    return true;
                path.pop_back();
            }
        }
    return false;
}

static void write(int device) {
    Caller& me = callers[device];
    for (auto& [folder, rank] : me.ranks) {
        fs::path path = log_of(folder, rank), part = path;
        part += ".part";
        std::ofstream out(part);
        out << device_name(device) << "\n";
        for (Call& c : me.calls) out << c.group << " " << c.place << "\t" << c.text << "\n";
        out.close();
        std::error_code gone;  // the folder, where all ranks have left
        fs::rename(part, path, gone);
    }
}
void orders::join(const path& folder, int rank) {
    callers[machine::current_device()].ranks[folder] = rank;
    write(machine::current_device());
}
void orders::leave(const path& folder, int device) {
    callers[device].ranks.erase(folder);
    if (callers[device].ranks.empty()) callers[device].calls.clear();
}
void orders::called(int device, u64 group, const std::string& place, const std::string& text) {
    Caller& me = callers[device];
    me.calls.push_back({group, place, text});
    if (me.calls.size() > KEPT) me.calls.pop_front();
    write(device);
    std::set<std::string> seen;
    std::vector<Step> circle;
    if (!find_circle(all_logs(me), place, place, seen, circle)) return;
    std::string text_of_all;
    for (Step& s : circle)
        text_of_all += "; " + s.device + " makes " + s.from.text + " (" + s.from.place + ") before " + s.to.text +
                       " (" + s.to.place + ")";
    machine::problem("NCCL: ranks make calls in orders in which each may wait for another for ever" + text_of_all);
}
std::string machine::last_calls() {
    std::map<std::string, Log> logs = all_logs(callers[current_device()]);
    std::string all;
    for (auto& [device, log] : logs)
        if (!log.calls.empty())
            all += "; " + device + " has called last " + log.calls.back().text + " (" + log.calls.back().place + ")";
    return all;
}
