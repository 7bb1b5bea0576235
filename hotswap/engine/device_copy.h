// Numbers that a step takes along to its device. The host does not wait there, so that it can be ahead of the device: a
// copy from ordinary memory would wait until all before it has run.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace hotswap {

using at::Tensor;

// On the host, in memory from which a copy to `device` waits for nothing. [values] of dtype int64 or int32
Tensor staged(const std::vector<int64_t>& values, at::ScalarType dtype, at::Device device);
// The same on the device.
Tensor to_device(const std::vector<int64_t>& values, at::ScalarType dtype, at::Device device);

// Copies of what staged() made on a stream of their own: while the device runs what was launched before, not after it.
class CopyBeside {
 public:
  // What is launched from now on finds it there.
  Tensor to(at::Device device, const Tensor& staged);

 private:
  std::optional<c10::Stream> stream_;
};

// Which of a step's tokens only the device knows, because a step before drew them.
struct DrawnTokens {
  std::vector<int64_t> from, to;  // of which element of the drawn ones, to which of the step's ids
  // ids[to] = drawn[from]
  void write(const Tensor& drawn, const Tensor& ids) const;
};

}  // namespace hotswap
