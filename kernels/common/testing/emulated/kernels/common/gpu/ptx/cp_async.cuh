// Stands in for common/gpu/ptx/cp_async.cuh: what a thread starts to copy is copied when it waits, and not before, so
// that a wait that is missing is seen.
#pragma once

#include <deque>
#include <map>

#include "kernels/common/testing/emulated/block.h"

namespace kernels::gpu {

struct CopyAsync {
  void* to;
  const void* from;
  int bytes;
  bool zeros;
};
inline std::map<unsigned, std::deque<std::vector<CopyAsync>>>
    copies_of;  // by thread of the block; the last group is open

inline std::deque<std::vector<CopyAsync>>& copies() {
  auto& groups = copies_of[threadIdx.x];
  if (groups.empty()) groups.emplace_back();
  return groups;
}
template <int kBytes>
void cp_async(void* shared, const void* from, bool zeros) {
  std::memset(shared, 0xff, kBytes);  // neither the old elements nor the new ones
  copies().back().push_back({shared, from, kBytes, zeros});
}
inline void cp_async(void* shared, const void* from, bool zeros) { cp_async<16>(shared, from, zeros); }
inline void cp_async_commit() { copies().emplace_back(); }
template <int kGroups>
void cp_async_wait() {
  auto& groups = copies();
  while (int(groups.size()) > kGroups + 1) {
    for (const CopyAsync& c : groups.front())
      c.zeros ? std::memset(c.to, 0, c.bytes) : std::memcpy(c.to, c.from, c.bytes);
    groups.pop_front();
  }
}

}  // namespace kernels::gpu
