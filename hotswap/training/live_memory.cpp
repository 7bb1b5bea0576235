#include "hotswap/training/live_memory.h"

#include <algorithm>

namespace hotswap {

class LiveMemory::Counter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*data*/, int64_t change, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    const int64_t now = live += change;
    int64_t before = peak;
    while (now > before && !peak.compare_exchange_weak(before, now)) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::atomic<int64_t> live = 0, peak = 0;  // autograd's threads report here, too
};

LiveMemory::LiveMemory()
    : counter_(std::make_shared<Counter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

int64_t LiveMemory::now() const { return counter_->live; }

int64_t LiveMemory::peak() const { return counter_->peak; }

}  // namespace hotswap
