// The loss of a causal language model, from logits or, where a kernel is bound, straight from hidden states.
#pragma once

#include "hotswap/layers/forwards.h"
#include "hotswap/layers/slot.h"

namespace hotswap {

namespace stock {
Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options);
Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const std::optional<Tensor>& bias,
                            const Tensor& target, const CrossEntropyOptions& options);
}  // namespace stock

// class_weight: [vocab], target: [n] -> [n], the weight of each target, 0 where it is ignored
Tensor target_weights(const Tensor& class_weight, const Tensor& target, int64_t ignore_index);

struct LossArguments {
  const Tensor& labels;                        // [batch, time] int64, -100 where a token does not count
  std::optional<double> items = std::nullopt;  // divide the sum by this instead of by the labels that count
  int64_t ignore_index = -100;
};

// Label i + 1 is what position i must predict; the last position predicts nothing.
class CausalLMLoss : public Module {
 public:
  // logits: [batch, time, vocab] -> scalar float32
  Tensor from_logits(const Tensor& logits, const LossArguments& arguments) const;
  // hidden: [batch, time, dim], weight: [vocab, dim] -> scalar float32; the logits never exist as a whole
  Tensor from_hidden(const Tensor& hidden, const Tensor& weight, const LossArguments& arguments) const;
  bool fuses() const { return linear_.bound(); }  // from_hidden would run a kernel

 private:
  Slot<CrossEntropyForward> loss_{this, "ForCausalLMLoss", "cross_entropy/1", stock::cross_entropy};
  Slot<LinearCrossEntropyForward> linear_{this, "LinearCrossEntropy", "linear_cross_entropy/1",
                                          stock::linear_cross_entropy};
};

}  // namespace hotswap
