// Streams, events and captures: streams.cpp runs what is issued to a stream, graphs.cpp records it while it captures.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "machine.h"

struct Stream;
struct Place {
    Stream* stream = nullptr;
    u64 count = 0;  // works of the stream before it
};
struct Item {
    std::string name;
    machine::Work work;
    machine::Ready ready;
    std::vector<Place> after;
    std::string note = "";  // of the call that issued it, on the null device
    machine::Make make = nullptr;  // in a graph: makes name, work and ready at each launch
};
using Seen = std::map<Stream*, u64>;  // how many works of each stream of a capture come before a point of one of them
struct Capture {
    Stream* origin;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    std::vector<Item> items;  // of all its streams, in the order in which they were issued
    bool is_valid = true, is_over = false;
};
struct Stream {
    int device;
    bool is_null, is_non_blocking;
    std::deque<Item> queue;
    u64 issued = 0, done = 0, collectives_until = 0;
    std::shared_ptr<Capture> capture;  // which it began or has joined
    Seen seen;
};
struct Event {
    Place place;
    u64 issued_before = 0;             // by the thread that recorded it
    std::shared_ptr<Capture> capture;  // in which it was recorded, if in one
    Seen seen;
};

extern std::vector<Stream*>& streams;  // streams that were destroyed too: events may name them
Stream& stream_of(void* handle);
void put_behind(Stream& s, Item item);
void issue_item(Stream& s, Item item);  // which this thread has issued

// ---- of graphs.cpp: what is captured, or refused because of a capture
bool takes(Stream& s, Item& item);
bool takes_record(Stream& s, Event& e);
bool takes_wait(Stream& s, Event& e);
bool refuses_wait(Stream& s, const std::string& what);
bool refuses_wait(Event& e, const std::string& what);
bool refuses_wait_for_device(int device);
void end_captures(const std::function<bool(Stream&)>& of);
