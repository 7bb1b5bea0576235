#include "hotswap/engine/static_step.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>

#include "hotswap/engine/device_copy.h"

namespace hotswap {
namespace {

constexpr int64_t kFirstKeys = 256;
// From here on shapes are this far apart: a row more costs little, and a graph for each power of two would run many
// rows for nothing.
constexpr int64_t kRowsApart = 16;

int64_t power_of_two(int64_t n) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n))); }

}  // namespace

std::optional<StaticStep::Shape> StaticStep::shape_for(const KvPool& pool, const std::vector<StepRow>& rows,
                                                       bool whole) {
  if (!pool.one_page_each() || rows.empty()) return std::nullopt;
  int64_t needed = 0;
  for (const StepRow& row : rows) {
    if (pool.is_of_prompt(row)) return std::nullopt;
    needed = std::max(needed, pool.row(row.sequence) + 1);
  }
  const int64_t bucket =
      needed <= kRowsApart ? power_of_two(needed) : (needed + kRowsApart - 1) / kRowsApart * kRowsApart;
  const int64_t count = whole ? pool.options_.max_sequences : std::min(bucket, pool.options_.max_sequences);
  const int64_t there = std::min(count, static_cast<int64_t>(pool.order_.size()));
  const bool others = there > static_cast<int64_t>(rows.size());
  if (others && pool.recurs()) return std::nullopt;
  int64_t keys = 0;  // an idle row's token is written after its last one
  for (int64_t row = 0; row < there; ++row) keys = std::max(keys, pool.length(pool.order_[row]) + 1);
  if (keys > pool.slab_tokens_) return std::nullopt;
  const int64_t adapter = rows.front().adapter;
  if (whole) return Shape{count, pool.slab_tokens_, adapter};
  return Shape{count, std::min(power_of_two(std::max(keys, kFirstKeys)), pool.slab_tokens_), adapter};
}

StaticStep::StaticStep(KvPool& pool, Shape shape) : pool_(pool), shape_(shape) {
  const auto ints = at::TensorOptions().device(pool.device());
  inputs_ = at::zeros({2, shape.rows}, ints.dtype(at::kLong));
  batch_.ids = inputs_.select(0, 0);
  batch_.positions = inputs_.select(0, 1);
  batch_.query_start = at::arange(shape.rows + 1, ints.dtype(at::kInt));
  batch_.state_slots = at::arange(shape.rows, ints.dtype(at::kLong));
  batch_.lengths.assign(shape.rows, shape.keys);
  batch_.row_adapters.assign(shape.rows, shape.adapter);
  batch_.new_tokens = 1;
  batch_.kv_len_bucket = shape.keys;
  batch_.first_row = batch_.first_page = 0;
  batch_.is_static = true;
}

void StaticStep::set(const std::vector<StepRow>& rows, const Tensor& drawn) {
  std::vector<int64_t> inputs(2 * shape_.rows, 0);
  const auto there = std::min(shape_.rows, static_cast<int64_t>(pool_.order_.size()));
  for (int64_t row = 0; row < there; ++row) inputs[shape_.rows + row] = pool_.length(pool_.order_[row]);
  DrawnTokens unknown;
  for (const StepRow& row : rows) {
    const int64_t slot = pool_.row(row.sequence);
    inputs[slot] = row.tokens.front();
    if (row.drawn < 0) continue;
    unknown.from.push_back(row.drawn);
    unknown.to.push_back(slot);
  }
  inputs_.copy_(staged(inputs, at::kLong, inputs_.device()).view({2, shape_.rows}), /*non_blocking=*/true);
  unknown.write(drawn, batch_.ids);
  set_ = pool_.by_row(rows);
}

void StaticStep::commit() {
  for (const StepRow& row : set_) ++pool_.at(row.sequence).length;
}

Tensor StaticStep::of_rows(const Tensor& logits) const {
  std::vector<int64_t> rows;
  for (const StepRow& row : set_) rows.push_back(pool_.row(row.sequence));
  const auto count = static_cast<int64_t>(rows.size());
  if (rows.back() == count - 1) return logits.narrow(0, 0, count);
  return logits.index_select(0, to_device(rows, at::kLong, logits.device()));
}

std::pair<Tensor, Tensor> StaticStep::update(int64_t layer, const Tensor& k, const Tensor& v) {
  const KvPool::Layer& kept = pool_.layer(layer);
  const auto written = [&](const Tensor& pages, const Tensor& fresh) {
    Tensor(pages).index_put_({batch_.state_slots, batch_.positions}, fresh.squeeze(1));
    return pages.narrow(0, 0, shape_.rows).narrow(1, 0, shape_.keys);
  };
  return {written(kept.k, k), written(kept.v, v)};
}

std::pair<Tensor, Tensor> StaticStep::writable_rows(int64_t layer, int64_t batch) {
  const KvPool::Layer& kept = pool_.layer(layer);
  const auto seen = [&](const Tensor& pages) { return pages.narrow(0, 0, batch).narrow(1, 0, shape_.keys); };
  return {seen(kept.k), seen(kept.v)};
}

RecurrentStates StaticStep::states(int64_t layer, const Tensor& /*x*/, at::IntArrayRef /*conv*/,
                                   at::IntArrayRef /*ssm*/) {
  const RecurrentStates& all = pool_.layer(layer).states;
  return {all.conv.narrow(0, 0, shape_.rows), all.ssm.narrow(0, 0, shape_.rows)};
}

}  // namespace hotswap
