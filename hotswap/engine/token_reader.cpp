#include "hotswap/engine/token_reader.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace hotswap {

TokenReader::~TokenReader() {
  for (const Waiting& waiting : waiting_) {
    if (waiting.come) waiting.come->synchronize();
  }
}

void TokenReader::push(const at::Tensor& tokens, const at::Tensor& here) {
  if (!device_.is_cuda()) {
    waiting_.push_back({.tokens = tokens.contiguous(), .come = nullptr, .count = tokens.numel()});
    return;
  }
  if (free_.empty()) {
    free_.push_back({at::empty({max_tokens_}, at::TensorOptions(at::kLong).pinned_memory(true)),
                     std::make_unique<c10::Event>(device_.type())});
  }
  Waiting next = std::move(free_.back());
  free_.pop_back();
  next.here = here;
  next.count = tokens.numel();
  if (!here.defined()) next.tokens.narrow(0, 0, next.count).copy_(tokens, /*non_blocking=*/true);
  next.come->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  waiting_.push_back(std::move(next));
}

std::vector<int64_t> TokenReader::pop() {
  Waiting first = std::move(waiting_.front());
  waiting_.pop_front();
  if (first.come) first.come->synchronize();
  const auto* data = (first.here.defined() ? first.here : first.tokens).const_data_ptr<int64_t>();
  std::vector<int64_t> tokens(data, data + first.count);
  if (first.come) free_.push_back(std::move(first));
  return tokens;
}

}  // namespace hotswap
