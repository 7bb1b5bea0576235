#include "hotswap/engine/uniform_step.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/models/fused_step.h"

namespace hotswap {

UniformStep::UniformStep(KvPool& pool, int64_t capacity)
    : pool_(pool), rows_(static_cast<int64_t>(pool.order_.size())), capacity_(capacity) {
  const auto differs = [&](int64_t sequence) { return pool.length(sequence) != length() || length() == 0; };
  if (rows_ == 0 || !pool.one_page_each() || std::any_of(pool.order_.begin(), pool.order_.end(), differs)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a pool without pages, whose sequences all have the same number of tokens, at least one",
                 .got = cat("one of ", rows_, " sequences", pool.one_page_each() ? "" : " with pages"),
                 .next = "run their prompts, of one length, in a pool of their own"});
  }
  pool.reserve(pool.order_.front(), capacity);
  const c10::InferenceMode off(false);  // else only inference mode could write it
  const auto ints = at::TensorOptions().device(pool.device());
  position_ = at::full({1}, length(), ints.dtype(at::kLong));
  batch_.query_start = at::arange(rows_ + 1, ints.dtype(at::kInt));
  batch_.state_slots = at::arange(rows_, ints.dtype(at::kLong));
  batch_.new_tokens = 1;
  batch_.first_row = batch_.first_page = 0;
  batch_.one_length = batch_.is_static = true;
  batch_.capacity = capacity;
}

int64_t UniformStep::length() const { return pool_.length(pool_.order_.front()); }

// Rounded up, so that a captured step serves many and a pool with room for many keys costs what is in it.
int64_t UniformStep::kv_bucket() const {
  constexpr int64_t kStep = 512;
  return std::min(capacity_, (length() + kStep) / kStep * kStep);
}

void UniformStep::check_room() const {
  if (length() < capacity_) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("at most ", capacity_, " tokens of a sequence"),
               .got = "one more",
               .next = "make the step with a larger capacity"});
}

Tensor UniformStep::forward(CausalLM& model, const Tensor& ids) {
  check_room();
  const c10::DeviceGuard current(pool_.device());
  batch_.ids = ids;
  batch_.positions = position_;
  batch_.inputs_embeds = batch_.rope = Tensor();
  batch_.kv_len_bucket = kv_bucket();
  batch_.lengths.assign(rows_, batch_.kv_len_bucket);
  const FusedStep* fused = model.fused_step();
  const bool moved_on = fused != nullptr && fused->begin(batch_, position_);
  Tensor logits = model({.step = &batch_, .memory = this, .logits_to_keep = 1}).logits.select(1, 0);
  if (!moved_on) position_.add_(1);  // in place: a graph does so again
  return logits;
}

void UniformStep::commit() {
  check_room();
  for (const int64_t sequence : pool_.order_) ++pool_.at(sequence).length;
}

std::pair<Tensor, Tensor> UniformStep::update(int64_t layer, const Tensor& k, const Tensor& v) {
  const auto [keys, values] = writable_rows(layer, rows_);
  Tensor(keys).index_copy_(1, batch_.positions, k);
  Tensor(values).index_copy_(1, batch_.positions, v);
  return {keys.narrow(1, 0, batch_.kv_len_bucket), values.narrow(1, 0, batch_.kv_len_bucket)};
}

std::pair<Tensor, Tensor> UniformStep::writable_rows(int64_t layer, int64_t batch) {
  const KvPool::Layer& kept = pool_.layer(layer);
  const auto seen = [&](const Tensor& pages) { return pages.narrow(0, 0, batch).narrow(1, 0, capacity_); };
  return {seen(kept.k), seen(kept.v)};
}

RecurrentStates UniformStep::states(int64_t layer, const Tensor& /*x*/, at::IntArrayRef /*conv*/,
                                    at::IntArrayRef /*ssm*/) {
  const RecurrentStates& all = pool_.layer(layer).states;
  return {all.conv.narrow(0, 0, rows_), all.ssm.narrow(0, 0, rows_)};
}

}  // namespace hotswap
