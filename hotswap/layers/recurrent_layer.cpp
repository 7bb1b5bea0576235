// The states of a recurrence. They are of one size whatever the cache is, so that both kinds of cache have the same.
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include "hotswap/base/error.h"
#include "hotswap/layers/cache.h"

namespace hotswap {

const RecurrentStates& RecurrentLayer::states(const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm) {
  if (!states_.conv.defined()) {
    const c10::InferenceMode off(false);  // or they could be written in inference mode alone
    states_ = {.conv = at::zeros(conv, x.options()), .ssm = at::zeros(ssm, x.options().dtype(at::kFloat))};
  }
  if (states_.conv.sizes() == conv && states_.ssm.sizes() == ssm) return states_;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("new tokens for states [", join(states_.conv.sizes()), "] and [",
                             join(states_.ssm.sizes()), "] in the cache"),
               .got = cat("some for [", join(conv), "] and [", join(ssm), "]"),
               .next = "use one cache per batch"});
}

void RecurrentLayer::crop(int64_t length) {
  if (length == 0) return reset();
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a cache that can go back to token ", length),
               .got = "a recurrent state, which has all tokens in one",
               .next = "reset() it and run the prompt again"});
}

void RecurrentLayer::reset() {
  if (states_.conv.defined()) {
    states_.conv.zero_();  // in place: a captured graph knows the memory
    states_.ssm.zero_();
  }
}

std::unique_ptr<CacheLayer> make_recurrent_layer(const CacheOptions& options) {
  is_static(options);  // known, or an Error
  return std::make_unique<RecurrentLayer>();
}

}  // namespace hotswap
