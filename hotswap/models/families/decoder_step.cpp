#include "hotswap/models/families/decoder_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/models/trunk.h"

namespace hotswap {
namespace {

std::string activation_of(const ModelConfig& c) {
  const std::string layer = activation_kind(c.hidden_act, "hidden_act").layer;
  return layer == "SiLU" ? "silu" : layer == "GeluTanh" ? "gelu_tanh" : layer;
}

bool is_llamas(const RMSNormOptions& norm) { return norm.casting == "llama" && norm.offset == 0; }

// In the contract's words, and in others where no kernel of it can do.
SlotNeeds needs_of(const ModelConfig& c, const SelfAttentionOptions& o) {
  SlotNeeds needs{.features = {activation_of(c)},
                  .numbers = {{"head_dims", {o.head_dim}}, {"group_sizes", {o.num_heads / o.num_kv_heads}}}};
  const auto need = [&](bool needed, const char* feature) {
    if (needed) needs.features.emplace_back(feature);
  };
  need(o.qkv_bias || o.output_bias || c.mlp_bias, "bias");
  need(o.qk_norm.has_value(), "qk_norm");
  need(o.sliding_window > 0, "window");
  need(o.chunk > 0, "chunk");
  need(o.softcap != 0, "softcap");
  need(o.sinks, "sinks");
  need(!o.rotary, "layer without rotary embedding");
  need(o.interleaved_rotary, "interleaved rotary embedding");
  need(o.qk_norm_of_all_heads, "norm of all heads together");
  need(o.l2_norm_eps.has_value(), "norm behind the rotary embedding");
  need(o.temperature.floor > 0, "temperature of queries");
  need(o.key_multiplier != 1, "multiplier of keys");
  need(c.residual_multiplier != 1, "residual multiplier");
  need(!is_llamas(c.norm()) || (o.qk_norm && !is_llamas(*o.qk_norm)), "norm that rounds otherwise than Llama's");
  return needs;
}

// Rows of one sequence see keys of the rows before them, which the kernel writes while its threads already attend: a
// call before it leaves the same keys and values there. What else it computes is as little as the kernel allows.
DecoderLayerParts keys_alone(const DecoderLayerParts& all, const Tensor& x) {
  constexpr int64_t kWidth = 16;  // of a gated MLP whose output is not read
  const int64_t hidden = x.size(-1), width = all.k_cache.size(2) * all.k_cache.size(3);
  const Tensor zeros = at::zeros({1, std::max({hidden, width, kWidth})}, x.options());
  const auto nothing = [&](int64_t out, int64_t in) { return zeros.narrow(1, 0, in).expand({out, in}); };
  DecoderLayerParts p = all;
  p.q = all.q.narrow(0, 0, width);
  if (p.q_bias.defined()) p.q_bias = p.q_bias.narrow(0, 0, width);
  p.o = nothing(hidden, width);
  p.gate = p.up = nothing(kWidth, hidden);
  p.down = nothing(hidden, kWidth);
  p.o_bias = p.gate_bias = p.up_bias = p.down_bias = Tensor();
  return p;
}

}  // namespace

DecoderStep::DecoderStep(Module* owner, const ModelConfig& c, const Parts& parts)
    : parts_(parts),
      products_(parts.attention.projections()),
      eps_(c.rms_norm_eps),
      activation_(activation_of(c)),
      slot_(owner, "DecoderLayer", "decoder_layer/1", stock::decoder_layer, needs_of(c, parts.attention.options())) {
  slot_.set_weights([this] { return weights_by_name(weights()); });
  for (const Linear* product : {&parts.mlp.gate_proj, &parts.mlp.up_proj, &parts.mlp.down_proj})
    products_.push_back(product);
  parts_.attention.set_layer_slot(&slot_);
}

DecoderLayerParts DecoderStep::weights() const {
  const GatedMLP& mlp = parts_.mlp;
  DecoderLayerParts p{.input_norm = parts_.input_norm.weight,
                      .post_norm = parts_.post_norm.weight,
                      .gate = mlp.gate_proj.data(),
                      .gate_bias = mlp.gate_proj.bias,
                      .up = mlp.up_proj.data(),
                      .up_bias = mlp.up_proj.bias,
                      .down = mlp.down_proj.data(),
                      .down_bias = mlp.down_proj.bias,
                      .eps = eps_,
                      .activation = activation_};
  parts_.attention.add_to(p);
  p.formats = fused_.formats;
  return p;
}

void DecoderStep::tensors_changed() {
  SlotNeeds needs = slot_.needs();
  fused_ = fused_products(products_, needs);
  slot_.set_needs(std::move(needs));
  const bool of_rows =
      std::any_of(products_.begin(), products_.end(), [](const Linear* l) { return l->has_row_adapters(); });
  slot_.set_passes_by(of_rows ? "rows with an adapter by its parts" : "");
}

// Only the weights: no adapter of the layer, and none of a row of this step.
bool DecoderStep::fuses() const {
  return fused_.fuse &&
         std::none_of(products_.begin(), products_.end(), [](const Linear* l) { return l->adapts_rows(); });
}

Tensor DecoderStep::forward(const HiddenState& in, const ForwardContext& context) const {
  const SelfAttentionOptions& o = parts_.attention.options();
  const RotaryTables& rope = context.rope_of(o.sliding_window > 0);
  const StepBatch* step = context.attention.sequence().step;
  const bool is_ragged = step != nullptr && step->is_ragged;  // rows see each other's keys
  const bool one_token = !is_ragged && context.memory != nullptr && context.position.defined() && in.x.size(1) == 1 &&
                         takes_rows(slot_, in.x.size(0)) &&
                         (context.position.size(0) == 1 || slot_.claims(kRowPositions)) &&
                         !at::GradMode::is_enabled() && fuses() && !context.attention.sequence().padding.defined();
  if (!one_token || rope.cos.size(-1) != o.head_dim || rope.cos.scalar_type() != in.x.scalar_type()) return {};
  const auto [k, v] = context.memory->writable_rows(o.layer, in.x.size(0));
  if (!k.defined()) return {};
  DecoderLayerParts parts = weights();
  parts.cos = rope.cos, parts.sin = rope.sin;
  parts.k_cache = k, parts.v_cache = v;
  parts.position = context.position;
  const Tensor x = in.residual.defined() ? at::add(in.residual, in.x) : in.x;
  if (step != nullptr && step->one_sequence && x.size(0) > 1) slot_(x, keys_alone(parts, x));
  return slot_(x, parts);
}

namespace {

class FusedDecoderStep : public FusedStep {
 public:
  FusedDecoderStep(const Trunk& trunk, const DecoderLayerSlot& slot) : trunk_(trunk), slot_(slot) {}
  bool begin(StepBatch& step, const Tensor& position) const override {
    const Embedding& embedding = trunk_.embed_tokens;
    const bool serves = takes_rows(slot_, step.ids.size(0)) && slot_.op<BeginStep>() && embedding.plain() &&
                        step.ids.is_contiguous() && embedding.data().is_contiguous() && !at::GradMode::is_enabled();
    if (!serves) return false;
    const Tensor& table = embedding.data();
    const Tensor rope = trunk_.rotary()->rows(step.capacity, table.scalar_type(), table.device());
    if (!rope.defined()) return false;
    DecoderInputs made = slot_.op<BeginStep>()(step.ids.unsqueeze(1), table, rope, position);
    step.inputs_embeds = std::move(made.x);
    step.rope = std::move(made.row);
    step.positions = std::move(made.position);
    return true;
  }

 private:
  const Trunk& trunk_;
  const DecoderLayerSlot& slot_;
};

}  // namespace

std::unique_ptr<FusedStep> make_fused_decoder_step(const ModelConfig& c, Trunk& trunk) {
  const DecoderLayerSlot* first = nullptr;
  trunk.each_slot([&](const std::string&, SlotBase& slot) {
    if (first == nullptr) first = slot.as<DecoderLayerForward>();
  });
  const bool two_tables =
      trunk.rotary() != nullptr && !c.sliding_rope_parameters && !c.rotates_in_float32 && c.embedding_multiplier == 1;
  if (first == nullptr || !two_tables) return nullptr;
  return std::make_unique<FusedDecoderStep>(trunk, *first);
}

}  // namespace hotswap
