#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "hotswap/engine/batch_sampler.h"
#include "hotswap/engine/device_copy.h"

namespace hotswap {

Tensor TokenCounts::slots(const Rows& rows) const {
  std::vector<int64_t> out;
  for (const DrawRow* row : rows) out.push_back(slot_of_.at(row->sequence));
  return to_device(out, at::kLong, all_.device());
}

void TokenCounts::grow(int64_t vocab, at::Device device) {
  const int64_t before = all_.defined() ? all_.size(0) : 0, more = std::max<int64_t>(before, 1);
  const Tensor fresh = at::zeros({more, vocab}, at::TensorOptions(at::kInt).device(device));
  all_ = all_.defined() ? at::cat({all_, fresh}) : fresh;
  for (int64_t i = more - 1; i >= 0; --i) free_.push_back(before + i);
}

// Where the sequence is counted. A new one's tokens are counted first.
int64_t TokenCounts::slot(const DrawRow& row, int64_t vocab, at::Device device) {
  if (const auto found = slot_of_.find(row.sequence); found != slot_of_.end()) return found->second;
  if (free_.empty()) grow(vocab, device);
  const int64_t slot = free_.back();
  free_.pop_back();
  slot_of_[row.sequence] = slot;
  std::map<int64_t, int64_t> counts;
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    if (row.tokens[i] < 0 || row.tokens[i] >= vocab) continue;
    int64_t& count = counts[row.tokens[i]];
    count = static_cast<int64_t>(i) < row.prompt_length ? count | 1 : count + 2;
  }
  std::vector<int64_t> ids, values;
  for (const auto& [id, count] : counts) {
    ids.push_back(id);
    values.push_back(count);
  }
  Tensor mine = all_.select(0, slot).zero_();
  mine.index_copy_(0, to_device(ids, at::kLong, device), to_device(values, at::kInt, device));
  return slot;
}

Tensor TokenCounts::of(const Rows& rows, int64_t vocab, at::Device device) {
  for (const DrawRow* row : rows) slot(*row, vocab, device);
  return all_.index_select(0, slots(rows));
}

void TokenCounts::add(const Rows& rows, const Tensor& tokens) {
  const Tensor flat = slots(rows).mul(all_.size(1)).add(tokens);
  all_.view({-1}).index_add_(0, flat, at::full({tokens.size(0)}, 2, all_.options()));
}

void TokenCounts::forget(int64_t sequence) {
  const auto found = slot_of_.find(sequence);
  if (found == slot_of_.end()) return;
  free_.push_back(found->second);
  slot_of_.erase(found);
}

}  // namespace hotswap
