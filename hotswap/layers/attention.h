// Attention of one layer, and what all layers of a forward know of their tokens. The stock forwards are transformers'
// "sdpa" and "eager".
//
//   AttentionMetadata metadata({.start = 0, .padding = mask});
//   stock::sdpa(q, k, v, {.scale = 0.125, .window_left = 4095}, metadata);
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hotswap/layers/module.h"
#include "hotswap/layers/row_adapters.h"
#include "hotswap/layers/step_batch.h"

namespace hotswap {

struct AttentionOptions {
  double scale = 1;
  bool causal = true;  // query i sees keys up to its own
  int64_t window_left = -1,
          window_right = -1;  // keys seen before and behind a query's own; -1: all. causal: right is 0
  int64_t chunk = 0;          // a query sees its own chunk of so many tokens alone; 0: off
  double softcap = 0;         // scores become softcap * tanh(scores / softcap); 0: off
  Tensor sinks = {};          // [heads]: one more score in each softmax, of no value; or undefined
  Tensor alibi_slopes = {};   // [heads]: takes slope * the distance of query and key away; or undefined
  Tensor bias = {};           // [batch, heads, time, kv_time], added to the scaled scores; or undefined
  double dropout = 0;         // of the weights; already 0 outside training
};

struct SequenceInfo {
  int64_t start = 0;    // tokens before the first query
  Tensor padding = {};  // [batch, tokens] bool, false where a token is padding; or undefined: none is
  Tensor cu_seqlens =
      {};  // [sequences + 1] int32, where each of the sequences packed into one row begins; or undefined
  int64_t max_seqlen = 0;  // of the packed ones: not shorter than the longest
  // [time] or, where rows are of different length, [batch, time] int64 on the device: the queries' places in keys of a
  // fixed size, whose other places hold nothing yet. Undefined: the queries are the last of the keys.
  Tensor positions = {};
  // Rows with lengths of their own, all of them with tokens before this step's: keys and values are then the pages of a
  // StepMemory, in which each row's are found by the step's block_table. It outlives the forward. Null: none of it.
  const StepBatch* step = nullptr;
};

// Each of several sequences in one row counts from 0. [time] int64
Tensor packed_places(const Tensor& cu_seqlens, int64_t time);
// Which of them a token is of. [time] int32
Tensor packed_sequences(const Tensor& cu_seqlens, int64_t time);

// The tokens of a padded batch that are none of padding, one behind the other.
struct RealTokens {
  Tensor index;       // [tokens] int64, into [batch * time]
  Tensor cu_seqlens;  // [batch + 1] int32
  int64_t max_seqlen;
};

// Rows of keys of a fixed size that begin with padding, as sequences one behind the other: of queries all, of keys
// those between a row's padding and what it does not hold yet.
struct PaddedRows {
  Tensor cu_seqlens_q, cu_seqlens_k;  // [batch + 1] int32
  Tensor used_k;                      // [batch] int32: keys from each cu_seqlens_k on
};

class AttentionMetadata;
Tensor joined_rows(std::vector<Tensor> parts);  // one below another

// Rows [first, first + count) of a step, whose sequences are of one length.
struct KeyRows {
  int64_t first, count;
  Tensor k, v;                        // [count, length, kv_heads, head_dim]
  const AttentionMetadata& metadata;  // of these rows: the keys end with the queries, none is padding
};

// What is masked, made once per forward at the model's entrance. It describes; a mask as a tensor is made for stock
// forwards alone, once for each kind of layer.
class AttentionMetadata {
 public:
  AttentionMetadata() = default;
  explicit AttentionMetadata(SequenceInfo sequence) : sequence_(std::move(sequence)) {}
  const SequenceInfo& sequence() const { return sequence_; }

  // Whether a query misses a key for any other reason than causality.
  bool hides(int64_t time, int64_t kv_time, const AttentionOptions& options) const;
  // true where a query may see a key; the same as values to add to the scores: 0, or the lowest of k's dtype.
  Tensor visible(int64_t time, const Tensor& k,
                 const AttentionOptions& options) const;                              // [1 or batch, 1, time, kv_time]
  Tensor bias(int64_t time, const Tensor& k, const AttentionOptions& options) const;  // [1 or batch, 1, time, kv_time]
  Tensor distance(int64_t time, const Tensor& k) const;  // a key's place less a query's: [time, kv_time] int64, or
                                                         // [batch, 1, time, kv_time]

  Tensor places(int64_t time, at::Device device) const;  // of the queries in their sequence: [1 or batch, time]

  // For kernels, which get no mask. The real ones of the last `time` tokens; the first call waits for the device.
  const RealTokens& real_tokens(int64_t time) const;
  // Of keys of a fixed size: how many tokens a row holds, the queries included. [batch] int32 on the device
  const Tensor& seen(int64_t batch) const;
  // The same of rows with padding, of so many queries and keys each. Padding stands at their beginning: looking costs
  // nothing on a CPU alone, and there other padding is an Error.
  const PaddedRows& padded_rows(int64_t time, int64_t kv_time) const;
  // Of a step: its rows in order, as few groups as their lengths and pages allow. k, v: pages,
  // [pages, page_size, kv_heads, head_dim]. One page a row is not copied.
  std::vector<KeyRows> key_rows(const Tensor& k, const Tensor& v) const;
  size_t masks() const { return made_.size(); }  // tensors that `visible` and `bias` have made so far

 private:
  using Key = std::tuple<bool, int64_t, int64_t, bool, int64_t, int64_t, int64_t>;
  template <typename Make>
  const Tensor& made_once(const Key& key, const Make& make) const;
  SequenceInfo sequence_;
  mutable std::vector<std::pair<Key, Tensor>> made_;  // few: as many as there are kinds of layers
  mutable std::map<int64_t, RealTokens> real_;        // by time
  mutable Tensor seen_;
  mutable std::optional<PaddedRows> padded_rows_;
  mutable std::vector<std::shared_ptr<const AttentionMetadata>> row_metadata_;  // of key_rows(), in order
};

// attention/1. q: [batch, time, heads, head_dim], k, v: [batch, kv_time, kv_heads, head_dim], any strides but the last,
// heads a multiple of kv_heads -> [batch, time, heads, head_dim]. `metadata` says which tokens there are.
using AttentionForward = Tensor(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                                const AttentionMetadata& metadata);

// Of a step, group after group: `forward` of each group's queries, keys and values.
template <typename Forward>  // Tensor(q, k, v, metadata)
Tensor attend_rows(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMetadata& metadata,
                   const Forward& forward) {
  const StepBatch& step = *metadata.sequence().step;
  std::vector<Tensor> outputs;
  for (const KeyRows& rows : metadata.key_rows(k, v)) {
    const RowAdapters adapters(step.adapters_of(rows.first, rows.count));  // of a forward that projects its keys
    const Tensor queries = q.narrow(0, rows.first, rows.count);
    outputs.push_back(forward(step.exact_rows ? queries.clone() : queries, rows.k, rows.v, rows.metadata));
  }
  return joined_rows(std::move(outputs));
}

// A role of attention/1: of a ragged step (step_batch.h). q: [tokens, 1, heads, head_dim], k, v: of all pages, one row
// of tokens, [tokens, kv_heads, head_dim], in which heads may overlap -> as q.
struct AttendRagged {
  static constexpr std::string_view kRole = "varlen_forward";
  using Signature = Tensor(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                           const StepBatch& step);
};

namespace stock {
AttentionForward sdpa;   // torch's scaled_dot_product_attention; Error for softcap, sinks and ALiBi, which it has not
AttentionForward eager;  // the formula, operation by operation
}  // namespace stock

struct AttentionKind {
  const char* name;
  AttentionForward* forward;
};

// Error naming the known ones when `name` is none of them.
const AttentionKind& attention_kind(const std::string& name);

}  // namespace hotswap
