#include "hotswap/layers/experts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/div.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/layers/adapter.h"
#include "hotswap/layers/linear.h"
#include "hotswap/layers/whole_vectors.h"

namespace hotswap {
namespace {

Tensor expert_silu(const Tensor& x) { return row_silu(x); }
Tensor expert_gelu(const Tensor& x) { return at::gelu(x); }
Tensor expert_gelu_tanh(const Tensor& x) { return at::gelu(x, "tanh"); }
Tensor relu(const Tensor& x) { return at::relu(x); }
Tensor expert_relu_squared(const Tensor& x) { return at::pow(at::relu(x), 2.0); }

template <Tensor (*kAct)(const Tensor&)>
Tensor gated(const Tensor& gate, const Tensor& up, const ExpertsOptions&) {
  return at::mul(kAct(gate), up);
}

Tensor swiglu_clamped(const Tensor& gate, const Tensor& up, const ExpertsOptions& o) {
  return at::mul(row_silu(at::clamp_max(gate, o.limit)), at::clamp(up, -o.limit, o.limit));
}

Tensor swiglu_oai(const Tensor& gate, const Tensor& up, const ExpertsOptions& o) {
  const Tensor g = at::clamp_max(gate, o.limit), u = at::clamp(up, -o.limit, o.limit);
  return at::mul(at::add(u, 1.0), at::mul(g, row_sigmoid(at::mul(g, o.alpha))));
}

struct ExpertActivation {
  const char* name;
  Tensor (*gated)(const Tensor& gate, const Tensor& up, const ExpertsOptions& options);  // or
  Tensor (*plain)(const Tensor& x);
};

constexpr ExpertActivation kActivations[] = {
    {"swiglu", gated<expert_silu>, nullptr},  {"geglu_tanh", gated<expert_gelu_tanh>, nullptr},
    {"geglu", gated<expert_gelu>, nullptr},   {"reglu", gated<relu>, nullptr},
    {"swiglu_oai", swiglu_oai, nullptr},      {"swiglu_clamped", swiglu_clamped, nullptr},
    {"relu2", nullptr, expert_relu_squared},  {"silu", nullptr, expert_silu},
    {"gelu_tanh", nullptr, expert_gelu_tanh}, {"gelu", nullptr, expert_gelu},
};

const ExpertActivation& activation_of(const ExpertsOptions& o) {
  std::vector<std::string> known;
  for (const ExpertActivation& activation : kActivations) {
    if (o.activation == activation.name) return activation;
    known.emplace_back(activation.name);
  }
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("an activation of experts: ", join(known)),
               .got = cat('"', o.activation, '"'),
               .next = "choose one of them"});
}

Tensor activate(const Tensor& h, const ExpertsOptions& o) {  // [rows, n] -> [rows, hidden]
  const ExpertActivation& activation = activation_of(o);
  if (activation.plain != nullptr) return activation.plain(h);
  const int64_t n = h.size(1), hidden = n / 2;
  if (o.interleaved) return activation.gated(h.slice(1, 0, n, 2), h.slice(1, 1, n, 2), o);
  return activation.gated(h.narrow(1, 0, hidden), h.narrow(1, hidden, hidden), o);
}

// One expert's product; its bias is added to what was rounded already, as transformers does.
Tensor project(const Tensor& x, const Tensor& weight, const Tensor& bias, bool transposed) {
  const Tensor y = at::mm(x, transposed ? weight : weight.t());
  return bias.defined() ? at::add(y, bias) : y;
}

// One tensor an expert: the gradient of all is one tensor again, zero where an expert had no token.
std::vector<Tensor> of_each(const Tensor& weights, int64_t experts) {
  return weights.defined() ? weights.unbind() : std::vector<Tensor>(experts);
}

// What one expert gives for its rows.
using OneExpert = std::function<Tensor(const Tensor& rows, int64_t expert)>;

Tensor by_expert(const Tensor& x, const Routing& routing, int64_t experts, bool scale_input, const OneExpert& expert) {
  const int64_t tokens = x.size(0), k = routing.index.size(1);
  const auto [ids, order] = at::sort(routing.index.reshape({-1}), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const Tensor begins = at::searchsorted(ids, at::arange(experts + 1, ids.options())).to(at::kCPU);
  const int64_t* begin = begins.const_data_ptr<int64_t>();                    // of each expert's rows, and their end
  const Tensor slots = order.narrow(0, begin[0], begin[experts] - begin[0]);  // [rows] into [tokens * k]
  const Tensor weights = routing.weights.reshape({-1, 1}).index_select(0, slots);
  Tensor rows = x.index_select(0, at::div(slots, k, "floor"));
  if (scale_input) rows = at::mul(rows, weights).to(x.scalar_type());
  std::vector<Tensor> parts;
  for (int64_t e = 0; e < experts; ++e) {
    if (begin[e] == begin[e + 1]) continue;
    parts.push_back(expert(rows.narrow(0, begin[e] - begin[0], begin[e + 1] - begin[e]), e));
  }
  Tensor y = parts.empty() ? rows : at::cat(parts);  // [rows, dim]
  if (!scale_input) y = at::mul(y, weights);
  const Tensor all = at::index_copy(at::zeros({tokens * k, x.size(1)}, y.options()), 0, slots, y);
  return all.view({tokens, k, x.size(1)}).sum(1).to(x.scalar_type());
}

// The product with a packed weight, some rows of it at a time: all of a large expert in float32 would be more memory
// than a layer's packed experts.
Tensor packed_product(const Tensor& x, const Weight& weight, const Tensor& bias) {
  constexpr int64_t kAtOnce = int64_t{4} << 20;
  const std::optional<Tensor> with = bias.defined() ? std::optional(bias) : std::nullopt;
  if (at::GradMode::is_enabled() && x.requires_grad()) return frozen_product(x, {weight, with, nullptr, false}).first;
  const int64_t rows = weight.rows(), some = std::max<int64_t>(1, kAtOnce / weight.columns());
  std::vector<Tensor> parts;
  for (int64_t first = 0; first < rows; first += some) {
    const int64_t count = std::min(some, rows - first);
    const Weight part = *weight.with_rows([&](const Tensor& t) { return t.narrow(0, first, count); });
    parts.push_back(
        stock::packed_linear(x, part, bias.defined() ? std::optional(bias.narrow(0, first, count)) : std::nullopt));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
}

}  // namespace

Tensor stock::experts(const Tensor& x, const Routing& routing, const ExpertWeights& w, const ExpertsOptions& o) {
  const int64_t experts = w.up.size(0);
  const auto up = of_each(w.up, experts), up_bias = of_each(w.up_bias, experts);
  const auto down = of_each(w.down, experts), down_bias = of_each(w.down_bias, experts);
  return by_expert(x, routing, experts, o.scale_input, [&](const Tensor& rows, int64_t e) {
    const Tensor h = project(rows, up[e], up_bias[e], o.transposed);
    return project(activate(h, o), down[e], down_bias[e], o.transposed);
  });
}

Tensor stock::packed_experts(const Tensor& x, const Routing& routing, const PackedExpertWeights& w,
                             const ExpertsOptions& o) {
  const auto multiply = [&](const Tensor& rows, const Weight& weight, const Tensor& bias, int64_t e) {
    const Weight one = weight.of_expert(e);
    const Tensor own_bias = bias.defined() ? bias.select(0, e) : Tensor();
    return one.encoded() ? packed_product(rows, one, own_bias) : project(rows, one.data, own_bias, o.transposed);
  };
  return by_expert(x, routing, w.up.shape().at(0), o.scale_input, [&](const Tensor& rows, int64_t e) {
    return multiply(activate(multiply(rows, w.up, w.up_bias, e), o), w.down, w.down_bias, e);
  });
}

std::string gated_by(const std::string& hidden_act, const std::string& where) {
  if (hidden_act == "silu" || hidden_act == "swish") return "swiglu";
  if (hidden_act == "gelu_pytorch_tanh") return "geglu_tanh";
  if (hidden_act == "gelu") return "geglu";
  if (hidden_act == "relu") return "reglu";
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "an activation that experts are gated by: silu, swish, gelu_pytorch_tanh, gelu, relu",
               .got = cat(where, " = \"", hidden_act, '"'),
               .next = "add it to hotswap/layers/experts.cpp and to the contract moe/1"});
}

Experts::Experts(const ExpertsShape& s, ExpertsOptions options, std::string layer)
    : options_(std::move(options)), forward_(this, std::move(layer), "moe/1", stock::experts) {
  forward_.set_stock_needs_host_sync();  // to learn how many tokens each expert has
  const bool has_gate = activation_of(options_).gated != nullptr;
  const int64_t n = has_gate ? 2 * s.hidden : s.hidden;
  const auto shape = [&](int64_t out, int64_t in) {
    return options_.transposed ? std::vector<int64_t>{s.experts, in, out} : std::vector<int64_t>{s.experts, out, in};
  };
  const std::string up = has_gate ? "gate_up_proj" : "up_proj";
  own(up, weights_.up, shape(n, s.dim));
  if (s.bias) own(up + "_bias", weights_.up_bias, {s.experts, n}, Init::constant(0));
  own("down_proj", weights_.down, shape(s.dim, s.hidden));
  if (s.bias) own("down_proj_bias", weights_.down_bias, {s.experts, s.dim}, Init::constant(0));
  packed_.set_stock_needs_host_sync();
  packed_.set_in_use(false);
}

Tensor Experts::forward(const Tensor& x, const Routing& routing) const {
  const auto& w = weights_;
  if (!packed()) return forward_(x, routing, {w.up.data, w.up_bias, w.down.data, w.down_bias}, options_);
  const bool learns = at::GradMode::is_enabled() && (x.requires_grad() || routing.weights.requires_grad());
  return learns ? stock::packed_experts(x, routing, w, options_) : packed_(x, routing, w, options_);
}

void Experts::on_tensors_changed() {
  forward_.set_in_use(!packed());
  packed_.set_in_use(packed());
  std::set<std::string> formats;
  for (const Weight* weight : {&weights_.up, &weights_.down}) formats.insert(name_of(weight->format));
  packed_.set_needs({.weights = {formats.begin(), formats.end()}});
}

void Experts::dequantise(at::ScalarType dtype) {
  for (Weight* weight : {&weights_.up, &weights_.down}) make_plain(*weight, dtype);
}

}  // namespace hotswap
