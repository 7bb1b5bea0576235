// One new token of each row through a kernel for a whole layer of Llama's kind (layers/decoder_layer.h): a block has it
// beside its parts, which go on without it where it is not bound, or not what is asked.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "hotswap/layers/decoder_layer.h"
#include "hotswap/layers/mlp.h"
#include "hotswap/layers/self_attention.h"
#include "hotswap/models/block.h"
#include "hotswap/models/config.h"
#include "hotswap/models/fused_step.h"

namespace hotswap {

class Trunk;

class DecoderStep {
 public:
  struct Parts {  // of the owner, which outlive this
    SelfAttention& attention;
    const GatedMLP& mlp;
    const RMSNorm &input_norm, &post_norm;
  };
  DecoderStep(Module* owner, const ModelConfig& config, const Parts& parts);
  void tensors_changed();  // of the parts
  // The hidden state behind the layer; undefined where the layer's parts are to do it.
  Tensor forward(const HiddenState& in, const ForwardContext& context) const;

 private:
  DecoderLayerParts weights() const;
  bool fuses() const;
  Parts parts_;
  std::vector<const Linear*> products_;  // of the parts: q, k, v, o, gate, up, down
  FusedProducts fused_;                  // of these
  double eps_;
  std::string activation_;  // "silu", "gelu_tanh", or another
  DecoderLayerSlot slot_;
};

// Of a trunk whose blocks have it: by the kernel of the first one's slot. Null where a step of the model begins with
// more than rows of two tables.
std::unique_ptr<FusedStep> make_fused_decoder_step(const ModelConfig& config, Trunk& trunk);

}  // namespace hotswap
