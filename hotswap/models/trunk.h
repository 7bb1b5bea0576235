// What all families share between tokens and hidden states: an embedding, a family's blocks one after another, a last
// norm. Here it is decided, once per forward, where the tokens stand and what is masked.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "hotswap/layers/linear.h"
#include "hotswap/layers/norm.h"
#include "hotswap/models/block.h"
#include "hotswap/models/checkpointed.h"
#include "hotswap/models/config.h"
#include "hotswap/models/trunk_input.h"

namespace hotswap {

// The norms of a model's blocks and of its trunk, of its kind.
std::unique_ptr<Norm> make_norm(const ModelConfig& config);

class Trunk : public Module {
 public:
  using MakeBlock = std::unique_ptr<Block> (*)(const ModelConfig& config, int64_t layer);
  Trunk(const ModelConfig& config, MakeBlock make_block);
  Tensor forward(const TrunkInput& in);  // -> [batch, time, hidden_size], of a step [batch, new, hidden_size]
  std::unique_ptr<Cache> make_cache(int64_t reserve) const;
  at::ScalarType dtype() const;                                                    // in which it computes
  const RotaryEmbedding* rotary() const { return rotary_ ? &*rotary_ : nullptr; }  // null: the model has none
  // Training forwards keep of these layers only what goes in; none: all is kept.
  void set_checkpointing(std::optional<GradientCheckpointing> checkpointing) { checkpointing_ = checkpointing; }
  const std::optional<GradientCheckpointing>& checkpointing() const { return checkpointing_; }
  Embedding embed_tokens;

 private:
  Tensor embedded(const Tensor& input_ids) const;  // [batch, time] -> [batch, time, hidden_size]
  // With the learned embedding of where its tokens stand, where the model has one.
  Tensor with_positions(const Tensor& x, const Tensor& positions) const;  // positions: [1 or batch, time]
  Tensor positions_of(const TrunkInput& in) const;
  ForwardContext context_for(const TrunkInput& in, at::ScalarType dtype);
  ForwardContext step_context(const TrunkInput& in, at::ScalarType dtype);
  HiddenState through_layers(const Tensor& x, const ForwardContext& context);
  Tensor normed(const HiddenState& state);  // [batch, time, hidden_size] in dtype()
  std::vector<std::unique_ptr<Block>> layers_;
  std::unique_ptr<Norm> norm_;
  std::unique_ptr<Embedding> embed_positions_;  // null: the model has none
  double embedding_dropout_;
  std::optional<RotaryEmbedding> rotary_, sliding_rotary_;
  bool rotates_in_float32_;
  double multiplier_;
  bool rounds_multiplier_;
  int64_t vocab_size_;
  std::optional<GradientCheckpointing> checkpointing_;
};

}  // namespace hotswap
