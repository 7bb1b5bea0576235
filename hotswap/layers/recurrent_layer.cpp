// The states of a recurrence.
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
  check_crop(length);
  if (!states_.conv.defined()) return;
  states_.conv.zero_();  // in place: the memory never moves
  states_.ssm.zero_();
}

void RecurrentLayer::check_crop(int64_t length) const {
  if (length == 0) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a cache that can go back to token ", length),
               .got = "a recurrent state, which has all tokens in one",
               .next = "crop(0) and run the prompt again"});
}

}  // namespace hotswap
