#include "hotswap/engine/guess_step.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/index_put.h>

#include <tuple>

#include "hotswap/base/error.h"
#include "hotswap/engine/device_copy.h"

namespace hotswap {

GuessStep::GuessStep(KvPool& pool, int64_t sequence, const std::vector<int64_t>& tokens)
    : pool_(pool), sequence_(sequence), past_(pool.length(sequence)) {
  const auto rows = static_cast<int64_t>(tokens.size());
  if (rows == 0 || past_ == 0) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "at least one token after a prompt that has run",
                 .got = cat(rows, " tokens after ", past_),
                 .next = "run the prompt first, as a KvStep"});
  }
  pool_.reserve(sequence, past_ + rows);
  const at::Device device = pool_.device();
  const auto ints = at::TensorOptions().device(device);
  const KvPool::Entry& entry = pool_.at(sequence);
  std::vector<int64_t> table;
  for (int64_t row = 0; row < rows; ++row) {
    batch_.lengths.push_back(past_ + row + 1);
    table.insert(table.end(), entry.pages.begin(), entry.pages.end());
  }
  batch_.rope_for = batch_.lengths;
  batch_.ids = to_device(tokens, at::kLong, device);
  batch_.positions = at::arange(past_, past_ + rows, ints.dtype(at::kLong));
  batch_.query_start = at::arange(rows + 1, ints.dtype(at::kInt));
  batch_.seq_lens = to_device(batch_.lengths, at::kInt, device);
  batch_.block_table = to_device(table, at::kInt, device).view({rows, -1});
  batch_.state_slots = to_device(std::vector<int64_t>(rows, entry.row), at::kLong, device);
  batch_.new_tokens = 1;
  batch_.row_adapters.assign(rows, -1);
  batch_.kv_len_bucket = past_ + rows;
  batch_.one_length = rows == 1;
  batch_.one_sequence = true;
  if (pool_.one_page_each()) batch_.first_page = entry.row;
}

void GuessStep::commit() { pool_.at(sequence_).length = past_ + batch_.batch(); }

// fresh: [rows, 1, kv_heads, head_dim]
void GuessStep::write(const Tensor& pages, const Tensor& fresh) {
  const int64_t rows = batch_.batch();
  if (batch_.first_page >= 0) {
    pages.select(0, batch_.first_page).narrow(0, past_, rows).copy_(fresh.squeeze(1));
    return;
  }
  if (!page_of_.defined()) std::tie(page_of_, offset_of_) = pool_.positions_of(pool_.at(sequence_), past_, rows);
  Tensor(pages).index_put_({page_of_, offset_of_}, fresh.squeeze(1));
}

std::pair<Tensor, Tensor> GuessStep::update(int64_t layer, const Tensor& k, const Tensor& v) {
  check_without_gradients(k, v);
  KvPool::Layer& kept = pool_.layer(layer);
  write(kept.k, k);
  write(kept.v, v);
  return {kept.k, kept.v};
}

// The one memory of all rows, seen from each.
std::pair<Tensor, Tensor> GuessStep::writable_rows(int64_t layer, int64_t batch) {
  const KvPool::Layer& kept = pool_.layer(layer);
  if (!kept.k.defined() || batch_.first_page < 0) return {};
  const auto seen = [&](const Tensor& pages) {
    return pages.narrow(0, batch_.first_page, 1).expand({batch, -1, -1, -1});
  };
  return {seen(kept.k), seen(kept.v)};
}

RecurrentStates GuessStep::states(int64_t /*layer*/, const Tensor& /*x*/, at::IntArrayRef /*conv*/,
                                  at::IntArrayRef /*ssm*/) {
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "layers that keep keys and values only",
               .got = "a recurrent state, which no step takes back",
               .next = "generate without guesses: leave out prompt_lookup_num_tokens and the assistant"});
}

}  // namespace hotswap
