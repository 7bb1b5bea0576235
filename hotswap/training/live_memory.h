// The bytes of tensors that are alive on this thread, as torch's allocators report them: what a forward keeps for its
// backward, without a formula for each layer.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <memory>

namespace hotswap {

class LiveMemory {
 public:
  LiveMemory();          // from now on, for as long as it lives
  int64_t now() const;   // allocated since, and not freed; below 0 where older tensors were freed
  int64_t peak() const;  // the maximum of now()

 private:
  class Counter;
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace hotswap
