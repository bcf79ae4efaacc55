// The order in which ranks call NCCL, and what is wrong with it.
#pragma once
#include <filesystem>

#include "machine.h"

namespace orders {
using std::filesystem::path;
void join(const path& folder, int rank);  // the current device has a communicator, whose ranks share this folder
void leave(const path& folder, int device);
void called(int device, u64 group, const std::string& place, const std::string& text);
}  // namespace orders
