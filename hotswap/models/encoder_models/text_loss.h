// The losses of a TextModel, as transformers has them for each task.
#pragma once

#include "hotswap/layers/loss.h"

namespace hotswap {

// Classes of texts or of tokens. The kernel is the one of a causal language model's loss, which shifts nothing itself.
class ClassLoss : public Module {
 public:
  // logits: [..., classes], labels: [...] int64, -100 where a row does not count -> scalar float32
  Tensor forward(const Tensor& logits, const Tensor& labels) const;

 private:
  Slot<CrossEntropyForward> loss_{this, "ForCausalLMLoss", "cross_entropy/1", stock::cross_entropy};
};

// Of whole texts, logits [batch, labels]: classes, regression or several labels a text, by problem_type; where it
// is empty, by the number of labels and their type do.
struct TextLabels {
  const Tensor& logits;
  const Tensor& labels;
  std::string problem_type;  // config.json's; empty: none
  bool soft = false;         // TextParts::soft_labels
};
Tensor text_loss(const ClassLoss& classes, const TextLabels& of);

}  // namespace hotswap
