// The loss of a causal language model, from logits or, where a kernel is bound, straight from hidden states.
#pragma once

#include "hotswap/layers/slot.h"

namespace hotswap {

struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  double softcap = 0;  // 0: off; else logits become softcap * tanh(logits / softcap)
  double z_loss = 0;   // adds z_loss * logsumexp^2 to each row's loss
  std::string reduction = "mean";
  Tensor class_weight = {};      // [vocab] as torch's; z_loss is not weighted; or undefined
  bool token_scaling = false;    // a row's loss times its target's probability, a constant to the gradient
  bool float32_dweight = false;  // linear_cross_entropy: kernels sum the weight's gradient over chunks in float32
  int64_t chunk_bytes = 0;       // and hold so many bytes of logits at once; 0: what each has found best
};

// cross_entropy/1. logits: [n, vocab], target: [n] int64 -> float32 scalar, or [n] for reduction "none"
using CrossEntropyForward = Tensor(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options);

// linear_cross_entropy/1. hidden: [n, dim], weight: [vocab, dim], bias: [vocab], target: [n] -> as cross_entropy of
// hidden @ weight^T + bias, without holding those logits
using LinearCrossEntropyForward = Tensor(const Tensor& hidden, const Tensor& weight, const std::optional<Tensor>& bias,
                                         const Tensor& target, const CrossEntropyOptions& options);

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
  double softcap = 0;  // of from_hidden's logits; those that are given have had theirs
  Tensor bias = {};    // [vocab]: of from_hidden's head; or undefined
};

// Label i + 1 is what position i must predict; the last position predicts nothing.
class CausalLMLoss : public Module {
 public:
  // logits: [batch, time, vocab] -> scalar float32
  Tensor from_logits(const Tensor& logits, const LossArguments& arguments) const;
  // hidden: [batch, time, dim], weight: [vocab, dim] -> scalar float32; the logits never exist as a whole
  Tensor from_hidden(const Tensor& hidden, const Tensor& weight, const LossArguments& arguments) const;
  bool fuses() const { return linear_.bound(); }  // from_hidden would run a kernel
  // Is the head's weight all that makes logits? Where it is not, a kernel that takes it stays out, by its report.
  void set_head_fuses(bool fuses);

 private:
  Slot<CrossEntropyForward> loss_{this, "ForCausalLMLoss", "cross_entropy/1", stock::cross_entropy};
  Slot<LinearCrossEntropyForward> linear_{this, "LinearCrossEntropy", "linear_cross_entropy/1",
                                          stock::linear_cross_entropy};
};

}  // namespace hotswap
