// Adapters of causal-conv1d and mamba-ssm: their convolution and selective scan. Neither begins with a state, and a
// scan knows no packed sequences and no gradient of its final state: asked for these, ours is an Error.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "hotswap/base/error.h"
#include "hotswap/kernelize/foreign/foreign_impl.h"

namespace hotswap {
namespace {

using at::Tensor;
using Values = AdapterValues;

bool has_value(const c10::IValue& value) { return !value.isNone(); }

void refuse_option(bool asked, const char* what) {
  if (!asked) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a call without ", what, ", which this package has not"),
               .got = "one with it",
               .next = "use the bundled package hotswap/mamba, or leave the layer stock"});
}

Tensor without_gaps(const c10::IValue& value) { return value.toTensor().contiguous(); }
c10::IValue in_float32(const c10::IValue& value) {
  return has_value(value) ? c10::IValue(value.toTensor().to(at::kFloat).contiguous()) : value;
}
// What stands in for the gradient of a tensor that was not given.
Tensor nothing(const Tensor& like) { return at::empty({0}, like.options()); }

struct Convolution {
  Tensor x;  // either channels or tokens beside each other
  c10::IValue weight, bias;
  bool silu;
};

Convolution read(const AdapterArguments& a) {
  refuse_option(has_value(a["initial_state"]), "an initial state");
  refuse_option(has_value(a["seq_idx"]), "packed sequences");
  const Tensor x = a["x"].toTensor(), weight = a["weight"].toTensor().contiguous();
  const int64_t width = weight.size(1);
  refuse_option(width < 2 || width > 4, "a width other than 2 to 4");
  // Theirs takes channels beside each other where these and all strides are multiples of 8.
  const bool channel_last = x.stride(1) == 1 && x.size(1) % 8 == 0 && x.stride(0) % 8 == 0 && x.stride(2) % 8 == 0;
  const c10::IValue bias =
      has_value(a["bias"]) ? c10::IValue(a["bias"].toTensor().to(weight.scalar_type())) : a["bias"];
  return {channel_last || x.stride(2) == 1 ? x : x.contiguous(), weight, bias, a["activation"].toStringRef() != "none"};
}

CallAdapter convolves(const c10::OperatorHandle& op) {
  return [op](const AdapterArguments& a) -> Values {
    const Convolution c = read(a);
    Tensor out = at::empty_like(c.x);
    if (out.numel() > 0) call_boxed(op, {c.x, c.weight, c.bias, {}, {}, out, {}, c.silu});
    return {out};
  };
}

CallAdapter convolves_backward(const c10::OperatorHandle& op) {
  return [op](const AdapterArguments& a) -> Values {
    const Convolution c = read(a);
    const Tensor weight = c.weight.toTensor();
    const auto sum = [&](const Tensor& of) { return at::zeros(of.sizes(), of.options().dtype(at::kFloat)); };
    Tensor dx = at::empty_like(c.x), dout = at::empty_like(c.x).copy_(a["dy"].toTensor());
    const Tensor dweight = sum(weight);
    const c10::IValue dbias = has_value(c.bias) ? c10::IValue(sum(c.bias.toTensor())) : c10::IValue();
    if (dx.numel() > 0) {
      call_boxed(op, {c.x, c.weight, c.bias, dout, {}, {}, {}, dx, dweight, dbias, {}, c.silu});
    }
    const auto back = [](const Tensor& t, const c10::IValue& of) { return t.to(of.toTensor().scalar_type()); };
    return {dx, back(dweight, a["weight"]), has_value(a["bias"]) ? back(dbias.toTensor(), a["bias"]) : nothing(dx),
            nothing(dx)};
  };
}

CallAdapter convolves_step(const c10::OperatorHandle& op) {
  return [op](const AdapterArguments& a) -> Values {
    const Tensor x = without_gaps(a["x"]), out = at::empty_like(x);
    if (out.numel() > 0) {
      call_boxed(op, {x, a["state"], without_gaps(a["weight"]), a["bias"], out, a["activation"].toStringRef() != "none",
                      a["cache_seqlens"], a["state_indices"]});
    }
    return {out};
  };
}

// As theirs takes them.
Values scan_inputs(const AdapterArguments& a) {
  refuse_option(has_value(a["initial_state"]), "an initial state");
  refuse_option(has_value(a["seq_idx"]), "packed sequences");
  const auto of_groups = [&](const char* name) {  // [batch, state, time], or with groups
    const Tensor t = without_gaps(a[name]);
    return t.dim() == 3 ? t.unsqueeze(1) : t;
  };
  const c10::IValue& z = a["z"];
  return {without_gaps(a["u"]),
          without_gaps(a["delta"]),
          without_gaps(a["A"]),
          of_groups("B"),
          of_groups("C"),
          in_float32(a["D"]),
          has_value(z) ? c10::IValue(without_gaps(z)) : z,
          in_float32(a["delta_bias"])};
}

// out, x, and with z out_z. x has pairs of a chunk's product and state, the last ones those behind the last token.
Values scanned(const c10::OperatorHandle& op, Values inputs, bool softplus) {
  inputs.emplace_back(softplus);
  return call_boxed(op, std::move(inputs));
}

CallAdapter scans(const c10::OperatorHandle& op, bool trains) {
  return [op, trains](const AdapterArguments& a) -> Values {
    const Values found = scanned(op, scan_inputs(a), a["delta_softplus"].toBool());
    const Tensor x = found.at(1).toTensor();  // [batch, channels, chunks, 2 * state]
    const Tensor last = x.select(2, x.size(2) - 1).slice(2, 1, c10::nullopt, 2).contiguous();
    Values results = {has_value(a["z"]) ? found.at(2) : found.at(0), last};
    if (trains) results.emplace_back(x);
    return results;
  };
}

// With z theirs reads what the forward gave before the gate, for which the contract has no place: made again.
CallAdapter scans_backward(const c10::OperatorHandle& op, const c10::OperatorHandle& forward) {
  return [op, forward](const AdapterArguments& a) -> Values {
    refuse_option(has_value(a["dlast_state"]), "a gradient of the final state");
    const bool softplus = a["delta_softplus"].toBool(), gated = has_value(a["z"]);
    Values stack = scan_inputs(a);
    const Tensor u = stack[0].toTensor();
    const Values again = gated ? scanned(forward, stack, softplus) : Values{c10::IValue(), a["checkpoints"]};
    stack.insert(stack.end(),
                 {without_gaps(a["dy"]).to(u.scalar_type()), again.at(1), again.at(0), c10::IValue(), softplus,
                  /*recompute_out_z=*/false});
    const Values found = call_boxed(op, std::move(stack));
    const auto like = [&](size_t theirs, const char* ours) {  // in the form of the argument
      if (!has_value(a[ours])) return nothing(u);
      const Tensor of = a[ours].toTensor();
      return found.at(theirs).toTensor().reshape(of.sizes()).to(of.scalar_type());
    };
    return {like(0, "u"), like(1, "delta"), like(2, "A"),          like(3, "B"), like(4, "C"),
            like(5, "D"), like(7, "z"),     like(6, "delta_bias"), nothing(u)};
  };
}

constexpr const char* kConvForward =
    "(Tensor x, Tensor weight, Tensor? bias, Tensor? seq_idx, Tensor? initial_states, Tensor(a!) out, "
    "Tensor(b!)? final_states_out, bool silu_activation) -> ()";
constexpr const char* kConvBackward =
    "(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) dout, Tensor? seq_idx, Tensor? initial_states, "
    "Tensor? dfinal_states, Tensor(b!) dx, Tensor(c!) dweight, Tensor(d!)? dbias, Tensor(e!)? dinitial_states, "
    "bool silu_activation) -> ()";
constexpr const char* kConvUpdate =
    "(Tensor x, Tensor conv_state, Tensor weight, Tensor? bias, Tensor(a!) out, bool silu_activation, "
    "Tensor? cache_seqlens, Tensor? conv_state_indices) -> ()";
constexpr const char* kScanForward =
    "(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D_, Tensor? z_, Tensor? delta_bias_, "
    "bool delta_softplus) -> Tensor[]";
constexpr const char* kScanBackward =
    "(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D_, Tensor? z_, Tensor? delta_bias_, Tensor dout, "
    "Tensor? x_, Tensor? out_, Tensor(a!)? dz_, bool delta_softplus, bool recompute_out_z) -> Tensor[]";

}  // namespace

std::vector<ForeignPackage> mamba_packages() {
  const std::set<std::string> floats = {"float32", "bfloat16", "float16"};
  // Gradients are sums without a fixed order.
  const auto trained = [&](const char* contract, std::map<std::string, std::string> ops) {
    return LayerEntry{
        .contract = contract, .ops = std::move(ops), .capabilities = {.backward = true, .dtypes = floats}};
  };
  const std::map<std::string, LayerEntry> conv = {
      {"causal_conv1d_fn",
       trained("causal_conv1d/1",
               {{"forward", "causal_conv1d"}, {"forward_train", "causal_conv1d"}, {"backward", "causal_conv1d_bwd"}})},
      {"causal_conv1d_update",
       {.contract = "causal_conv1d_update/1",
        .ops = {{"forward", "causal_conv1d_update"}},
        .capabilities = {.deterministic = true, .dtypes = floats}}}};
  std::map<std::string, LayerEntry> both = conv;
  both.emplace("selective_scan_fn", trained("selective_scan/1", {{"forward", "selective_scan"},
                                                                 {"forward_train", "selective_scan_train"},
                                                                 {"backward", "selective_scan_bwd"}}));
  const std::vector<ForeignOp> conv_ops = {{"causal_conv1d_fwd", {kConvForward}},
                                           {"causal_conv1d_bwd", {kConvBackward}},
                                           {"causal_conv1d_update", {kConvUpdate}}};
  std::vector<ForeignOp> all_ops = conv_ops;
  all_ops.push_back({"selective_scan_fwd", {kScanForward}});
  all_ops.push_back({"selective_scan_bwd", {kScanBackward}});
  return {{.name = "causal-conv1d", .layers = conv, .ops = conv_ops, .missing = ""},
          {.name = "mamba-ssm", .layers = both, .ops = all_ops, .missing = ""}};
}

AdaptedOps mamba_adapters(const Manifest& m) {
  AdaptedOps all;
  const auto add = [&](const char* ours, const c10::OperatorHandle& theirs, CallAdapter adapter) {
    all.emplace(ours, AdaptedOp{theirs, std::move(adapter)});
  };
  const auto forward = find_op(m, "causal_conv1d_fwd"), backward = find_op(m, "causal_conv1d_bwd");
  const auto update = find_op(m, "causal_conv1d_update");
  add("causal_conv1d", forward, convolves(forward));
  add("causal_conv1d_bwd", backward, convolves_backward(backward));
  add("causal_conv1d_update", update, convolves_step(update));
  if (m.name != "mamba-ssm") return all;
  const auto scan = find_op(m, "selective_scan_fwd"), scan_backward = find_op(m, "selective_scan_bwd");
  add("selective_scan", scan, scans(scan, /*trains=*/false));
  add("selective_scan_train", scan, scans(scan, /*trains=*/true));
  add("selective_scan_bwd", scan_backward, scans_backward(scan_backward, scan));
  return all;
}

}  // namespace hotswap
