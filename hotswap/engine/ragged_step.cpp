#include "hotswap/engine/ragged_step.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/engine/device_copy.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/config.h"

namespace hotswap {
namespace {

constexpr int64_t kMinTokens = 16;
// Attention's sequences: before the prompts one without tokens, whose keys are those before the first prompt's.
constexpr int64_t kSequences = RaggedStep::kMaxPrompts + 1;

// [pages, tokens, kv_heads, head_dim], heads before tokens in memory, as [rows, kv_heads, head_dim]: the first head's
// token t of page p is row p * kv_heads * tokens + t, and another head's is as far from it as in its page.
Tensor as_one_row(const Tensor& pages) {
  const int64_t tokens = pages.size(1), heads = pages.size(2), dim = pages.size(3);
  return pages.as_strided({(pages.size(0) - 1) * heads * tokens + tokens, heads, dim}, {dim, tokens * dim, 1});
}

[[noreturn]] void refuse() {
  throw Error({.kind = ErrorKind::kInternal,
               .wanted = "layers that write their own keys and values, in a ragged step",
               .got = "another layer",
               .next = "check RaggedStep::serves() before"});
}

}  // namespace

bool RaggedStep::serves(CausalLM& model) {
  const ModelConfig& config = model.config();
  int64_t found = 0;
  bool all = !config.rotates_in_float32 && model.dtype() != at::kDouble;
  model.each_module([&](const std::string&, Module& module) {
    const auto* attention = dynamic_cast<const SelfAttention*>(&module);
    if (attention == nullptr) return;
    ++found;
    const int64_t dim = attention->options().head_dim;
    const bool turns = config.rope_parameters.dim == dim &&
                       (!config.sliding_rope_parameters || config.sliding_rope_parameters->dim == dim);
    all = all && attention->serves_ragged() && turns;
  });
  return all && found == config.num_hidden_layers;
}

// Of each sequence one slot stays free: there tokens of no prompt write.
bool RaggedStep::serves(const KvPool& pool, const StepRow& row) {
  if (!pool.one_page_each() || pool.recurs() || pool.layers_.empty() || row.adapter >= 0 || row.drawn >= 0)
    return false;
  const auto tokens = static_cast<int64_t>(row.tokens.size());
  const Tensor& first = pool.layers_.front().k;
  return tokens <= kMaxTokens && pool.length(row.sequence) + tokens < pool.slab_tokens_ &&
         std::all_of(pool.layers_.begin(), pool.layers_.end(),
                     [&](const KvPool::Layer& layer) { return layer.k.defined() && layer.k.size(2) == first.size(2); });
}

// Powers of two and one and a half of them: at most a third of the rows is padding.
RaggedStep::Shape RaggedStep::shape_for(const std::vector<StepRow>& rows) {
  int64_t needed = 0, size = kMinTokens;
  for (const StepRow& row : rows) needed += static_cast<int64_t>(row.tokens.size());
  while (size < needed) size *= 2;
  return {size > kMinTokens && size / 4 * 3 >= needed ? size / 4 * 3 : size};
}

RaggedStep::RaggedStep(KvPool& pool, Shape shape)
    : pool_(pool), shape_(shape), page_rows_(pool.slab_tokens_ * pool.layers_.front().k.size(2)) {
  const auto on_device = at::TensorOptions().device(pool.device());
  tokens_ = at::zeros({3 * shape.tokens + kMaxPrompts}, on_device.dtype(at::kLong));
  sequences_ = at::zeros({3 * kSequences + 2}, on_device.dtype(at::kInt));
  batch_.ids = tokens_.narrow(0, 0, shape.tokens);
  batch_.positions = tokens_.narrow(0, shape.tokens, shape.tokens);
  batch_.cache_rows = tokens_.narrow(0, 2 * shape.tokens, shape.tokens);
  batch_.last_tokens = tokens_.narrow(0, 3 * shape.tokens, kMaxPrompts);
  batch_.query_start = sequences_.narrow(0, 0, kSequences + 1);
  batch_.key_start = sequences_.narrow(0, kSequences + 1, kSequences + 1);
  batch_.seq_lens = sequences_.narrow(0, 2 * (kSequences + 1), kSequences);
  batch_.lengths.assign(shape.tokens, pool.slab_tokens_);
  batch_.row_adapters.assign(shape.tokens, -1);
  batch_.new_tokens = 1;
  batch_.kv_len_bucket = batch_.capacity = pool.slab_tokens_;
  batch_.is_static = batch_.is_ragged = true;
}

int64_t RaggedStep::page_begin(const StepRow& row) const { return pool_.row(row.sequence) * page_rows_; }

void RaggedStep::set(const std::vector<StepRow>& rows, const Tensor& /*drawn*/) {
  set_ = pool_.by_row(rows);
  std::vector<int64_t> ids, positions, cache_rows, last, queries{0, 0}, keys{0}, lengths{0};
  for (const StepRow& row : set_) {
    const int64_t past = pool_.length(row.sequence), begin = page_begin(row);
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      positions.push_back(past + static_cast<int64_t>(i));
      cache_rows.push_back(begin + positions.back());
    }
    ids.insert(ids.end(), row.tokens.begin(), row.tokens.end());
    last.push_back(static_cast<int64_t>(ids.size()) - 1);
    queries.push_back(static_cast<int64_t>(ids.size()));
    keys.push_back(begin);
    lengths.push_back(positions.back() + 1);
  }
  ids.resize(shape_.tokens, 0);
  positions.resize(shape_.tokens, 0);
  cache_rows.resize(shape_.tokens, page_begin(set_.front()) + pool_.slab_tokens_ - 1);
  last.resize(kMaxPrompts, 0);
  queries.resize(kSequences + 1, queries.back());
  keys.resize(kSequences + 1, page_begin(set_.back()) + pool_.slab_tokens_);
  lengths.resize(kSequences, 0);
  const auto write = [](const Tensor& to, std::initializer_list<const std::vector<int64_t>*> parts) {
    std::vector<int64_t> all;
    for (const auto* part : parts) all.insert(all.end(), part->begin(), part->end());
    Tensor(to).copy_(staged(all, to.scalar_type(), to.device()), /*non_blocking=*/true);
  };
  write(tokens_, {&ids, &positions, &cache_rows, &last});
  write(sequences_, {&queries, &keys, &lengths});
}

void RaggedStep::commit() {
  for (const StepRow& row : set_) pool_.at(row.sequence).length += static_cast<int64_t>(row.tokens.size());
}

Tensor RaggedStep::of_rows(const Tensor& logits) const {
  return logits.narrow(0, 0, static_cast<int64_t>(set_.size()));
}

std::pair<Tensor, Tensor> RaggedStep::writable_rows(int64_t layer, int64_t batch) {
  const KvPool::Layer& kept = pool_.layer(layer);
  const auto of_all = [&](const Tensor& pages) { return as_one_row(pages).unsqueeze(0).expand({batch, -1, -1, -1}); };
  return {of_all(kept.k), of_all(kept.v)};
}

std::pair<Tensor, Tensor> RaggedStep::update(int64_t /*layer*/, const Tensor& /*k*/, const Tensor& /*v*/) { refuse(); }

RecurrentStates RaggedStep::states(int64_t /*layer*/, const Tensor& /*x*/, at::IntArrayRef /*conv*/,
                                   at::IntArrayRef /*ssm*/) {
  refuse();
}

}  // namespace hotswap
