// Attention of encoders: every token sees those before and after it. Projections are the block's own, since each
// family's checkpoints name them otherwise.
#pragma once

#include <functional>
#include <optional>

#include "hotswap/layers/attention.h"
#include "hotswap/layers/slot.h"

namespace hotswap {

struct BidirectionalAttentionOptions {
  int64_t num_heads, head_dim;
  int64_t window = 0;                          // tokens that a query sees to each side; 0: all
  double dropout = 0;                          // in training
  std::optional<double> scale = std::nullopt;  // of the scores; none: head_dim^-0.5
  bool biased = false;                         // forward() gets a ScoreBias
};

// What is added to the scaled scores: of q, k [rows, time, heads, head_dim] -> [rows, heads, time, time].
using ScoreBias = std::function<Tensor(const Tensor& q, const Tensor& k)>;

class BidirectionalAttention : public Module {
 public:
  explicit BidirectionalAttention(const BidirectionalAttentionOptions& options);
  // q, k, v: [rows, time, heads, head_dim] -> [rows, time, heads * head_dim]. `lengths`: of the sequences that one row
  // packs, where it packs some.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMetadata& metadata,
                 const std::vector<int64_t>& lengths, const ScoreBias& bias = nullptr) const;
  int64_t num_heads() const { return options_.num_heads; }
  Tensor heads(const Tensor& x) const;  // [rows, time, heads * head_dim] -> [rows, time, heads, head_dim]

 private:
  BidirectionalAttentionOptions options_;
  AttentionOptions attention_options_;
  Slot<AttentionForward> attention_;
};

// Of packed sequences: `forward` of each run of neighbours of one length as a batch of its own, so that no mask is made
// and no token meets one of another sequence.
template <typename Forward, typename... Inputs>  // Tensor(inputs...), each [sequences, length, ...]
Tensor by_length(const std::vector<int64_t>& lengths, const Forward& forward, const Inputs&... inputs) {
  std::vector<Tensor> outputs;
  int64_t begin = 0;
  for (size_t i = 0; i < lengths.size();) {
    size_t end = i + 1;
    while (end < lengths.size() && lengths[end] == lengths[i]) ++end;
    const int64_t count = static_cast<int64_t>(end - i), tokens = count * lengths[i];
    const auto part = [&](const Tensor& x) {
      return x.squeeze(0).narrow(0, begin, tokens).unflatten(0, {count, lengths[i]});
    };
    outputs.push_back(forward(part(inputs)...).flatten(0, 1));
    begin += tokens;
    i = end;
  }
  return joined_rows(std::move(outputs)).unsqueeze(0);
}

}  // namespace hotswap
