#include "hotswap/layers/self_attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/div.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/mul.h>

#include <cmath>

#include "hotswap/layers/linked.h"
#include "hotswap/layers/multiplied.h"
#include "hotswap/layers/whole_vectors.h"

namespace hotswap {
namespace {

// In the contract's words: what a kernel that takes this layer's place must have.
SlotNeeds needs_of(const SelfAttentionOptions& o) {
  SlotNeeds needs{.features = {}, .numbers = {{"head_dims", {o.head_dim}}}};
  const auto need = [&](bool needed, const char* feature) {
    if (needed) needs.features.emplace_back(feature);
  };
  need(o.causal, "causal");
  need(o.num_heads != o.num_kv_heads, "gqa");
  need(o.sliding_window > 0, "window");
  need(o.chunk > 0, "chunk");
  need(o.softcap != 0, "softcap");
  need(o.sinks, "sinks");
  need(o.dropout > 0, "dropout");
  return needs;
}

// By the places in a row, or in its sequence where several are packed into one; padding counts.
// -> [1 or batch, time, 1, 1] float32
Tensor factors(const AttentionMetadata& metadata, const Tensor& q, const Temperature& t) {
  const Tensor places = metadata.places(q.size(1), q.device()).to(at::kFloat);
  const Tensor steps = at::floor(at::div(at::add(places, 1), t.floor));
  return at::add(at::mul(at::log1p(steps), t.scale), 1).view({-1, q.size(1), 1, 1});
}

}  // namespace

SelfAttention::SelfAttention(const SelfAttentionOptions& o)
    : options_(o),
      q_proj_(o.hidden_size, o.num_heads * o.head_dim * (o.output_gate ? 2 : 1), o.qkv_bias),
      k_proj_(o.hidden_size, o.num_kv_heads * o.head_dim, o.qkv_bias),
      v_proj_(o.hidden_size, o.num_kv_heads * o.head_dim, o.qkv_bias),
      o_proj_(o.num_heads * o.head_dim, o.hidden_size, o.output_bias),
      rotary_fn_(o.interleaved_rotary),
      attention_options_{.scale = o.scale.value_or(std::pow(static_cast<double>(o.head_dim), -0.5)),
                         .causal = o.causal,
                         .window_left = o.sliding_window - 1,
                         .window_right = o.causal ? -1 : o.sliding_window - 1,
                         .chunk = o.chunk,
                         .softcap = o.softcap},
      attention_(this, "attention", "attention/1", stock::sdpa, needs_of(o)) {
  own("q_proj", q_proj_);
  own("k_proj", k_proj_);
  own("v_proj", v_proj_);
  own("o_proj", o_proj_);
  if (o.qk_norm) {
    const auto width = [&](int64_t heads) { return o.qk_norm_of_all_heads ? heads * o.head_dim : o.head_dim; };
    q_norm_ = std::make_unique<RMSNorm>(width(o.num_heads), *o.qk_norm);
    k_norm_ = std::make_unique<RMSNorm>(width(o.num_kv_heads), *o.qk_norm);
    own("q_norm", *q_norm_);
    own("k_norm", *k_norm_);
  }
  if (o.qk_layer_norm) {
    const auto norm = [&](int64_t heads) {
      LayerNormOptions options = *o.qk_layer_norm;
      options.heads = o.norm_for_each_head ? heads : 0;
      return std::make_unique<LayerNorm>(o.head_dim, options);
    };
    q_norm_ = norm(o.num_heads);
    k_norm_ = norm(o.num_kv_heads);
    own("q_norm", *q_norm_);
    own("k_norm", *k_norm_);
  }
  if (o.sinks) own("sinks", sinks_, {o.num_heads});
  if (o.l2_norm_eps) {
    l2_norm_ = std::make_unique<WeightlessRMSNorm>(*o.l2_norm_eps);
    own("qk_norm", *l2_norm_);
  }
  if (o.has_rotary) own("rotary_fn", rotary_fn_);
}

// One new token of each row in memory of a fixed size: a kernel makes the heads ready and writes keys and values, where
// there are else a norm, a rotary embedding and two writes by index. Undefined where it cannot.
Tensor SelfAttention::one_token(const Tensor& x, const ForwardContext& context) const {
  const RotaryTables& rope = context.rope_of(options_.sliding_window > 0);
  const SequenceInfo& sequence = context.attention.sequence();
  const bool fits = layer_slot_ != nullptr && options_.key_multiplier == 1 && !options_.output_gate &&
                    layer_slot_->op<WriteHeads>() && x.size(1) == 1 && context.memory != nullptr &&
                    context.position.defined() && sequence.positions.defined() && !sequence.padding.defined() &&
                    !at::GradMode::is_enabled() && rope.cos.size(-1) == options_.head_dim &&
                    rope.cos.scalar_type() == x.scalar_type();
  if (!fits) return {};
  const int64_t batch = x.size(0);
  const auto [k, v] = context.memory->writable_rows(options_.layer, batch);
  if (!k.defined()) return {};
  const bool is_ragged = sequence.step != nullptr && sequence.step->is_ragged;
  const std::vector<Tensor> made = Linear::products({&q_proj_, &k_proj_, &v_proj_}, x);
  DecoderHeads heads{.q = made[0],
                     .k = made[1],
                     .v = made[2],
                     .cos = rope.cos,
                     .sin = rope.sin,
                     .k_cache = k,
                     .v_cache = v,
                     .position = context.position};
  if (q_norm_) {
    heads.q_norm = q_norm_->weight, heads.k_norm = k_norm_->weight;
    heads.head_eps = options_.qk_norm->eps;
  }
  const Tensor q = layer_slot_->op<WriteHeads>()(heads);
  const Tensor attended =
      is_ragged ? attention_.op<AttendRagged>()(q, k.select(0, 0), v.select(0, 0), attention_options_, *sequence.step)
                : attention_(q, k, v, attention_options_, context.attention);
  return o_proj_.forward(attended.reshape({batch, 1, -1}));
}

bool SelfAttention::serves_ragged() const {
  return layer_slot_ != nullptr && options_.key_multiplier == 1 && layer_slot_->op<WriteHeads>() &&
         attention_.op<AttendRagged>();
}

Tensor SelfAttention::forward(const Tensor& x, const ForwardContext& context) const {
  if (Tensor out = one_token(x, context); out.defined()) return out;
  const int64_t batch = x.size(0), time = x.size(1), dim = options_.head_dim;
  const auto heads = [&](const Tensor& y) { return y.view({batch, time, -1, dim}); };
  // As the rotary embedding wants them. Of one token it is the same memory: a step of a small model is mostly views.
  const auto heads_first = [&](const Tensor& y) { return time == 1 ? y.view({batch, -1, 1, dim}) : y.transpose(1, 2); };
  LinkedProjections linked(rotary_fn_.bound() || attention_.bound());  // stock stays torch's own
  const auto clipped = [&](const Tensor& y) {
    return options_.clip_qkv > 0 ? at::clamp(y, -options_.clip_qkv, options_.clip_qkv) : y;
  };
  Tensor q = clipped(linked(q_proj_, x)), k = multiplied(clipped(linked(k_proj_, x)), options_.key_multiplier);
  Tensor gate;  // [batch, time, heads * head_dim]
  if (options_.output_gate) {
    const Tensor both = q.view({batch, time, -1, 2 * dim});
    q = both.narrow(-1, 0, dim).flatten(2);
    gate = both.narrow(-1, dim, dim).flatten(2);
  }
  const auto normalise = [&] {
    q = q_norm_->forward(q);
    k = k_norm_->forward(k);
  };
  if (q_norm_ && options_.qk_norm_of_all_heads) normalise();
  const bool by_head = q_norm_ && !options_.qk_norm_of_all_heads;
  if (time > 1 || by_head) {
    q = heads(q);  // [batch, time, heads, head_dim]
    k = heads(k);  // [batch, time, kv_heads, head_dim]
  }
  if (by_head) normalise();
  if (options_.rotary) {
    RotaryTables rope = context.rope_of(options_.sliding_window > 0);
    if (options_.wide_rotary) rope = {rope.cos.to(at::kFloat), rope.sin.to(at::kFloat)};
    std::tie(q, k) = rotary_fn_.forward(heads_first(q), heads_first(k), rope);
    q = q.transpose(1, 2);
    k = k.transpose(1, 2);
  } else {
    q = heads(q);
    k = heads(k);
  }
  if (l2_norm_) {
    q = l2_norm_->forward(q);
    k = l2_norm_->forward(k);
  }
  if (options_.temperature.floor > 0)
    q = at::mul(q, factors(context.attention, q, options_.temperature)).to(q.scalar_type());
  Tensor v = heads(clipped(linked(v_proj_, x)));
  if (context.memory != nullptr) std::tie(k, v) = context.memory->update(options_.layer, k, v);
  AttentionOptions attention = attention_options_;
  attention.dropout = training() ? options_.dropout : 0;
  attention.sinks = sinks_;
  const Tensor y = attention_(q, k, v, attention, context.attention).reshape({batch, time, -1});
  return o_proj_.forward(gate.defined() ? at::mul(y, row_sigmoid(gate)) : y);
}

void SelfAttention::add_to(DecoderLayerParts& p) const {
  p.q = q_proj_.data(), p.q_bias = q_proj_.bias;
  p.k = k_proj_.data(), p.k_bias = k_proj_.bias;
  p.v = v_proj_.data(), p.v_bias = v_proj_.bias;
  p.o = o_proj_.data(), p.o_bias = o_proj_.bias;
  if (q_norm_) p.q_norm = q_norm_->weight, p.k_norm = k_norm_->weight, p.head_eps = options_.qk_norm->eps;
  p.scale = attention_options_.scale;
  p.window = attention_options_.window_left;
}

std::unique_ptr<CacheLayer> SelfAttention::make_cache_layer(int64_t reserve) const {
  return make_key_value_layer(reserve, options_.sliding_window);
}

const char* stock_attention_of(Module& module) {
  const char* found = "sdpa";
  module.each_slot([&](const std::string&, SlotBase& slot) {
    if (slot.as<AttentionForward>() == nullptr) return;  // others may need something of the same name
    for (const std::string& feature : slot.needs().features) {
      if (feature == "softcap" || feature == "sinks" || feature == "score_bias") found = "eager";
    }
  });
  return found;
}

void set_stock_attention(Module& module, const AttentionKind& kind) {
  module.each_slot([&](const std::string&, SlotBase& slot) {
    if (auto* attention = slot.as<AttentionForward>()) attention->set_stock(kind.forward);
  });
}

}  // namespace hotswap
