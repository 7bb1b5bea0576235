// One step of several sequences, as trunk, blocks and attention see it: which tokens are new, and where the memory of
// the tokens before them is. One token a row is the common case; a chunk of a prompt, or the several tokens of a guess
// that is verified, are the others. engine/kv_pool.h makes it; engine/step_runner.h splits what is ragged, so that a
// trunk sees as many new tokens in every row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace hotswap {

using at::Tensor;

struct StepBatch {
  Tensor ids;          // [tokens] int64: the rows' new tokens, one row after another
  Tensor positions;    // [tokens] int64: of each in its own sequence, from 0. Of a static step of one length: [1]
  Tensor query_start;  // [batch + 1] int32: where each row's tokens begin in ids, and the end
  Tensor seq_lens;     // [batch] int32: tokens of each sequence, the new ones included
  Tensor block_table;  // [batch, pages] int32: key j of a row is in page block_table[row, j / page_size]
  Tensor state_slots;  // [batch] int64: rows of the memory of recurrent states

  // On the host, so that nothing waits for a device.
  std::vector<int64_t> lengths;   // seq_lens
  std::vector<int64_t> rope_for;  // [batch]: lengths for which frequencies of a rotary embedding are chosen, where they
                                  // depend on one: of a chunk its whole prompt's, else as `lengths`
  int64_t new_tokens = 0;         // of each row
  std::vector<int64_t> row_adapters;  // [batch]: ForwardArguments::row_adapters; or empty
  // A row's result has the bits of a step of its own. torch's attention has them where each row is a call: its threads
  // keep sums in memory that begins anywhere, and MKL adds by where a product begins (docs/serving.md).
  bool exact_rows = false;
  int64_t kv_len_bucket = 0;  // kernels read keys [0, kv_len_bucket); no sequence is longer
  bool from_start = false;    // no row has tokens before these
  int64_t first_row = -1;     // state_slots are [first_row, first_row + batch), in order; -1: they are not
  int64_t first_page = -1;    // each row has one page, [first_page, first_page + batch), in order; -1: not so
  bool one_length = false;    // all rows have as many tokens
  // Rows are tokens of one sequence, consecutive, and share its memory: a guess that is verified. A row
  // attends to those before it, whose keys come in the same forward. first_page is then the page of all.
  bool one_sequence = false;
  // Of static shape: which tokens each row has only the device knows, by `positions`. `lengths` are no more than
  // as many as there are rows, seq_lens and block_table are undefined, and keys are rows, [batch, kv_len_bucket, ...].
  bool is_static = false;
  // Of static shape, too: each row is one token of a prompt, and a prompt's tokens follow one another. Where they are
  // and what they see only the device knows: all pages are one row of tokens, [tokens, kv_heads, head_dim], in which
  // the keys of i are [key_start[i], key_start[i] + seq_lens[i]); query_start and seq_lens are of these, too. The first
  // one, and any other, may have no tokens. Rows after query_start's last element have none.
  bool is_ragged = false;
  Tensor key_start;      // [prompts + 1] int32: from 0, never falling
  Tensor cache_rows;     // [batch] int64: where in that row of tokens each new one's keys and values are written
  Tensor last_tokens;    // [prompts] int64: rows whose logits are wanted
  int64_t capacity = 0;  // of a static step: no position is beyond it, whatever the tensors hold when it runs again

  // What a kernel may have made of ids and positions (models/fused_step.h), else undefined.
  Tensor inputs_embeds;  // [batch, 1, hidden]
  Tensor rope;           // [1, 1, 2 rotary dim]: cos and sin

  std::vector<int64_t> adapters_of(int64_t first, int64_t count) const {
    const auto begin = row_adapters.begin() + (row_adapters.empty() ? 0 : first);
    return {begin, row_adapters.empty() ? begin : begin + count};
  }
  int64_t batch() const { return static_cast<int64_t>(lengths.size()); }
};

// The two states of a recurrence. Its kernels write them in place.
struct RecurrentStates {
  Tensor conv;  // the last tokens: [batch, channels, width], in their dtype
  Tensor ssm;   // [batch, ...] float32
};

// The memory that a forward reads and writes, a part for each layer.
class StepMemory {
 public:
  virtual ~StepMemory() = default;
  // Writes the new tokens' keys and values, [batch, new, kv_heads, head_dim], and returns what attention reads:
  // [batch, keys, kv_heads, head_dim], or of a StepBatch with tokens before it all pages, [pages, page_size, ...].
  virtual std::pair<Tensor, Tensor> update(int64_t layer, const Tensor& k, const Tensor& v) = 0;
  // For a kernel that itself writes the one new token of each of `batch` rows, which counts as written:
  // [batch, capacity, kv_heads, head_dim] twice. Undefined where there is no such memory: nothing was counted.
  virtual std::pair<Tensor, Tensor> writable_rows(int64_t layer, int64_t batch) = 0;
  // Of a recurrence, zero before the first token. `x`: dtype and device of new ones; conv, ssm: their shapes.
  virtual RecurrentStates states(int64_t layer, const Tensor& x, at::IntArrayRef conv, at::IntArrayRef ssm) = 0;
};

}  // namespace hotswap
