// For tests: how many bytes of CPU tensors were alive at once while a function ran, counted by the allocator's own
// reports. Exact and repeatable, unlike the process's resident memory; memory that MKL or oneDNN take for themselves is
// not seen.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

namespace kernels::testing {

class MemoryCount : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t now_ = 0, peak_ = 0;
};

template <class Fn>
int64_t peak_bytes(const Fn& fn) {
  const auto count = std::make_shared<MemoryCount>();
  c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, count);
  fn();
  return count->peak();
}

}  // namespace kernels::testing
