#include "hotswap/layers/cache.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include "hotswap/base/error.h"

namespace hotswap {

namespace {

void refuse_gradients(bool required, const char* of) {
  if (!at::GradMode::is_enabled() || !required) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a forward without gradients when a cache is given",
               .got = cat(of, " that require grad"),
               .next = "run under at::NoGradGuard or c10::InferenceMode, or pass no cache"});
}

template <typename Part>
Part& required_part(Part* found, int64_t layer, const char* what) {
  if (found != nullptr) return *found;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(what, " in the cache of layer ", layer),
               .got = "a cache of another kind",
               .next = "take the cache that this model's make_cache() gives"});
}

}  // namespace

std::pair<Tensor, Tensor> Cache::update(int64_t layer, const Tensor& k, const Tensor& v) {
  refuse_gradients(k.requires_grad() || v.requires_grad(), "keys or values");
  auto& part = required_part(layers_.at(layer)->key_values(), layer, "keys and values");
  if (at::GradMode::is_enabled()) return part.update(k, v);
  const at::AutoDispatchBelowADInplaceOrView guard;  // torch would keep track of every view
  return part.update(k, v);
}

std::pair<Tensor, Tensor> Cache::writable_rows(int64_t layer, int64_t batch) {
  KeyValueLayer* part = layers_.at(layer)->key_values();
  return part == nullptr ? std::pair<Tensor, Tensor>() : part->writable_rows(batch);
}

RecurrentStates Cache::states(int64_t layer, const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm) {
  refuse_gradients(x.requires_grad(), "hidden states");
  return required_part(layers_.at(layer)->recurrence(), layer, "a recurrent state").states(x, conv, ssm);
}

void Cache::crop(int64_t length) {
  if (length >= length_ && length > 0) return;
  for (const auto& layer : layers_) layer->check_crop(length);  // before any layer forgets
  for (const auto& layer : layers_) layer->crop(length);
  length_ = length;
}

}  // namespace hotswap
