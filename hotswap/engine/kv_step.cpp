// A step of a pool's sequences: the tensors that describe it, and where its tokens are written.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/engine/device_copy.h"
#include "hotswap/engine/kv_pool.h"

namespace hotswap {
namespace {

// Rows of equal form: a trunk has no way to run others at once.
void check_rows(const std::vector<StepRow>& rows, const KvPool& pool) {
  if (rows.empty() || rows.front().tokens.empty()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "at least one sequence, with at least one token each, in a forward",
                 .got = rows.empty() ? "no sequence" : "a sequence without tokens",
                 .next = "leave out sequences without tokens"});
  }
  const bool begins = pool.length(rows.front().sequence) == 0;
  for (const StepRow& row : rows) {
    if (row.tokens.size() == rows.front().tokens.size() && (pool.length(row.sequence) == 0) == begins) continue;
    throw Error(
        {.kind = ErrorKind::kInvalidArgument,
         .wanted = cat("each sequence of this forward to have ", rows.front().tokens.size(), " new tokens and ",
                       begins ? "none" : "some", " in the cache"),
         .got = cat("one of ", row.tokens.size(), " new tokens and ", pool.length(row.sequence), " in the cache"),
         .next = "run sequences of another form in a forward of their own, as StepRunner does"});
  }
}

}  // namespace

KvStep::KvStep(KvPool& pool, std::vector<StepRow> rows, const Tensor& drawn, bool exact_rows)
    : pool_(pool), rows_(std::move(rows)) {
  check_rows(rows_, pool_);
  const auto added = static_cast<int64_t>(rows_.front().tokens.size()), count = static_cast<int64_t>(rows_.size());
  std::vector<int64_t> ids, positions, starts{0}, slots, table;
  DrawnTokens unknown;
  size_t pages = 0;
  for (const StepRow& row : rows_) {
    if (row.drawn >= 0) {
      unknown.from.push_back(row.drawn);
      unknown.to.push_back(static_cast<int64_t>(ids.size()));
    }
    const int64_t past = pool_.length(row.sequence);
    pool_.reserve(row.sequence, past + added);
    batch_.lengths.push_back(past + added);
    batch_.rope_for.push_back(std::max(row.whole, past + added));
    ids.insert(ids.end(), row.tokens.begin(), row.tokens.end());
    for (int64_t i = 0; i < added; ++i) positions.push_back(past + i);
    starts.push_back(static_cast<int64_t>(ids.size()));
    slots.push_back(pool_.at(row.sequence).row);
    pages = std::max(pages, pool_.at(row.sequence).pages.size());
  }
  for (const StepRow& row : rows_) {  // rows of fewer pages are padded with a page that no kernel reads
    std::vector<int32_t> own = pool_.at(row.sequence).pages;
    own.resize(pages, own.front());
    table.insert(table.end(), own.begin(), own.end());
  }
  const at::Device device = pool_.device();
  batch_.ids = to_device(ids, at::kLong, device);
  unknown.write(drawn, batch_.ids);
  batch_.positions = to_device(positions, at::kLong, device);
  batch_.query_start = to_device(starts, at::kInt, device);
  batch_.seq_lens = to_device(batch_.lengths, at::kInt, device);
  batch_.block_table = to_device(table, at::kInt, device).view({count, -1});
  batch_.state_slots = to_device(slots, at::kLong, device);
  batch_.new_tokens = added;
  batch_.exact_rows = exact_rows;
  for (const StepRow& row : rows_) batch_.row_adapters.push_back(row.adapter);
  const auto [least, most] = std::minmax_element(batch_.lengths.begin(), batch_.lengths.end());
  batch_.kv_len_bucket = *most;
  batch_.one_length = *least == *most;
  batch_.from_start = *most == added;
  bool side_by_side = true;
  for (int64_t i = 0; i < count; ++i) side_by_side = side_by_side && slots[i] == slots[0] + i;
  batch_.first_row = side_by_side ? slots[0] : -1;
  if (pool_.one_page_each()) batch_.first_page = batch_.first_row;
}

void KvStep::commit() {
  for (const Copied& copied : copied_) {
    const RecurrentStates& all = pool_.layer(copied.layer).states;
    Tensor(all.conv).index_copy_(0, batch_.state_slots, copied.states.conv);
    Tensor(all.ssm).index_copy_(0, batch_.state_slots, copied.states.ssm);
  }
  copied_.clear();
  for (size_t i = 0; i < rows_.size(); ++i) pool_.at(rows_[i].sequence).length = batch_.lengths[i];
}

void KvStep::write(const Tensor& pages, const Tensor& fresh) {
  const int64_t added = batch_.new_tokens;
  if (batch_.first_page >= 0 && batch_.one_length) {
    pages.narrow(0, batch_.first_page, batch_.batch()).narrow(1, batch_.kv_len_bucket - added, added).copy_(fresh);
    return;
  }
  if (!page_of_.defined()) {
    const Tensor at = batch_.positions.view({batch_.batch(), added});
    const int64_t size = pool_.page_tokens();
    page_of_ = batch_.block_table.gather(1, at.div(size, "floor")).reshape({-1}).to(at::kLong);
    offset_of_ = at.remainder(size).reshape({-1});
  }
  Tensor(pages).index_put_({page_of_, offset_of_}, fresh.flatten(0, 1));
}

void check_without_gradients(const Tensor& k, const Tensor& v) {
  if (!at::GradMode::is_enabled() || !(k.requires_grad() || v.requires_grad())) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a step without gradients",
               .got = "keys or values that require grad",
               .next = "run under at::NoGradGuard or c10::InferenceMode"});
}

std::pair<Tensor, Tensor> KvStep::update(int64_t layer, const Tensor& k, const Tensor& v) {
  check_without_gradients(k, v);
  KvPool::Layer& kept = pool_.layer(layer);
  pool_.make_room(kept, k, v);
  write(kept.k, k);
  write(kept.v, v);
  // At the beginning the rows' own keys are all that there are, in one piece.
  return batch_.from_start ? std::pair(k, v) : std::pair(kept.k, kept.v);
}

std::pair<Tensor, Tensor> KvStep::writable_rows(int64_t layer, int64_t batch) {
  const KvPool::Layer& kept = pool_.layer(layer);
  if (!kept.k.defined() || batch_.first_page < 0) return {};
  return {kept.k.narrow(0, batch_.first_page, batch), kept.v.narrow(0, batch_.first_page, batch)};
}

RecurrentStates KvStep::states(int64_t layer, const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm) {
  RecurrentStates& all = pool_.layer(layer).states;
  if (!all.conv.defined()) {
    const c10::InferenceMode off(false);  // else only inference mode could write them
    const auto of_all = [&](at::IntArrayRef one) {
      std::vector<int64_t> shape = one.vec();
      shape[0] = pool_.options_.max_sequences;
      return shape;
    };
    all = {.conv = at::zeros(of_all(conv), x.options()), .ssm = at::zeros(of_all(ssm), x.options().dtype(at::kFloat))};
  }
  if (batch_.first_row >= 0) {
    return {all.conv.narrow(0, batch_.first_row, batch_.batch()), all.ssm.narrow(0, batch_.first_row, batch_.batch())};
  }
  copied_.push_back(
      {layer, {all.conv.index_select(0, batch_.state_slots), all.ssm.index_select(0, batch_.state_slots)}});
  return copied_.back().states;
}

}  // namespace hotswap
