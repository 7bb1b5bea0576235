#include "hotswap/layers/cache.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "hotswap/base/error.h"

namespace hotswap {

Cache::Cache(std::vector<std::unique_ptr<CacheLayer>> layers, CacheOptions options)
    : layers_(std::move(layers)), options_(std::move(options)), fixed_(options_.implementation == "static") {}

namespace {

void refuse_gradients(bool required, const char* of) {
  if (!at::GradMode::is_enabled() || !required) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a forward without gradients when a cache is given",
               .got = cat(of, " that require grad"),
               .next = "run under at::NoGradGuard or c10::InferenceMode, or pass no cache"});
}

template <typename Kind>
Kind& of_kind(CacheLayer& part, int64_t layer, const char* what) {
  if (auto* found = dynamic_cast<Kind*>(&part)) return *found;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(what, " in the cache of layer ", layer),
               .got = "a cache of another kind",
               .next = "take the cache that this model's make_cache() gives"});
}

}  // namespace

std::pair<Tensor, Tensor> Cache::update(int64_t layer, const Tensor& k, const Tensor& v) {
  refuse_gradients(k.requires_grad() || v.requires_grad(), "keys or values");
  auto& part = of_kind<KeyValueLayer>(*layers_.at(layer), layer, "keys and values");
  if (at::GradMode::is_enabled()) return part.update(k, v, place_);
  const at::AutoDispatchBelowADInplaceOrView guard;  // torch would keep track of every view
  return part.update(k, v, place_);
}

std::pair<Tensor, Tensor> Cache::writable_rows(int64_t layer, int64_t batch) {
  auto* part = dynamic_cast<KeyValueLayer*>(layers_.at(layer).get());
  return part == nullptr ? std::pair<Tensor, Tensor>() : part->writable_rows(batch);
}

RecurrentStates Cache::states(int64_t layer, const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm) {
  refuse_gradients(x.requires_grad(), "hidden states");
  return of_kind<RecurrentLayer>(*layers_.at(layer), layer, "a recurrent state").states(x, conv, ssm);
}

void Cache::check_room(int64_t time) const {
  if (length_ + time <= options_.max_cache_len) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("at most ", options_.max_cache_len, " tokens in a static cache"),
               .got = cat(length_, " seen and ", time, " new ones"),
               .next = "make the cache with a larger max_cache_len, or a dynamic one"});
}

int64_t Cache::reach(int64_t time) const {
  constexpr int64_t kStep = 512;
  return std::min(options_.max_cache_len, (length_ + time + kStep - 1) / kStep * kStep);
}

void Cache::replayed(int64_t time) {
  check_room(time);
  length_ += time;
}

void Cache::not_run(int64_t length) {
  length_ = length;
  if (device_length_.defined()) device_length_.fill_(length);
}

void Cache::begin(int64_t time, at::Device device) {
  counted_ = false;
  if (!fixed_) {  // on a GPU it would have to be sent there
    position_ = time == 1 && device.is_cpu() ? at::full({1}, length_, at::kLong) : Tensor();
    return;
  }
  check_room(time);
  if (!device_length_.defined()) {
    const c10::InferenceMode off(false);  // or it could be written in inference mode alone
    device_length_ = at::zeros({1}, at::TensorOptions().dtype(at::kLong).device(device));
  }
  // Of one token it is the count itself, which end() raises behind all who read it.
  const Tensor places =
      time == 1 ? device_length_ : at::add(at::arange(time, device_length_.options()), device_length_);
  place_ = {places, reach(time), length_ == 0 && time > 1};
  position_ = time == 1 ? place_.positions : Tensor();
}

void Cache::end(int64_t time) {
  length_ += time;
  if (fixed_ && !counted_) device_length_.add_(time);
}

void Cache::counted(Tensor place) {
  place_.positions = position_ = std::move(place);
  counted_ = true;
}

void Cache::crop(int64_t length) {
  if (length >= length_) return;
  for (const auto& layer : layers_) layer->crop(length);
  length_ = length;
  if (device_length_.defined()) device_length_.fill_(length);
}

void Cache::reset() {
  for (const auto& layer : layers_) layer->reset();
  length_ = 0;
  if (device_length_.defined()) device_length_.zero_();
}

bool is_static(const CacheOptions& options) {
  if (options.implementation == "dynamic") return false;
  if (options.implementation != "static") {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a cache implementation: dynamic or static",
                 .got = cat('"', options.implementation, '"'),
                 .next = "set cache_implementation to one of them"});
  }
  if (options.max_cache_len < 1) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "max_cache_len of a static cache: the tokens that must fit",
                 .got = cat(options.max_cache_len),
                 .next = "set it to the prompt's length and the new tokens together"});
  }
  return true;
}

}  // namespace hotswap
