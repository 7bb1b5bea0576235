#include "hotswap/engine/device_copy.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace hotswap {

Tensor staged(const std::vector<int64_t>& values, at::ScalarType dtype, at::Device device) {
  const auto options = at::TensorOptions(dtype).pinned_memory(device.is_cuda());
  Tensor out = at::empty({static_cast<int64_t>(values.size())}, options);
  if (dtype == at::kLong) {
    std::copy(values.begin(), values.end(), out.mutable_data_ptr<int64_t>());
  } else {
    std::transform(values.begin(), values.end(), out.mutable_data_ptr<int32_t>(),
                   [](int64_t value) { return static_cast<int32_t>(value); });
  }
  return out;
}

Tensor to_device(const std::vector<int64_t>& values, at::ScalarType dtype, at::Device device) {
  return staged(values, dtype, device).to(device, /*non_blocking=*/true);
}

Tensor CopyBeside::to(at::Device device, const Tensor& staged) {
  if (!device.is_cuda()) return staged.to(device);
  const c10::impl::VirtualGuardImpl streams(device.type());
  if (!stream_) stream_ = streams.getStreamFromGlobalPool(device);
  const c10::Stream current = streams.getStream(device);
  Tensor copy;
  c10::Event done(device.type());
  {
    const c10::StreamGuard guard(*stream_);
    copy = staged.to(device, /*non_blocking=*/true);
    done.record(*stream_);
  }
  done.block(current);
  copy.record_stream(current);
  return copy;
}

void DrawnTokens::write(const Tensor& drawn, const Tensor& ids) const {
  if (from.empty()) return;
  std::vector<int64_t> both = from;
  both.insert(both.end(), to.begin(), to.end());
  const auto count = static_cast<int64_t>(from.size());
  const Tensor index = to_device(both, at::kLong, ids.device());
  Tensor(ids).index_copy_(0, index.narrow(0, count, count), drawn.index_select(0, index.narrow(0, 0, count)));
}

}  // namespace hotswap
