// causal_conv1d/1, selective_scan/1, ssd/1, gated_rms_norm/1, and the steps of one token: causal_conv1d_update/1,
// selective_state_update/1. What the tensors mean is in layers/mamba.h; beside that a package keeps to this:
//
//   - Tensors of any strides; results in the layout of x or u, final states in float32.
//   - Gradients of tensors that were not given are [0]. A final state may be asked for its gradient, or not.
//   - chunk_size is a hint: results may differ in rounding alone.
//   - The updates write their state, whose rows state_indices picks; cache_seqlens makes it a ring. The host passes
//   neither.
#include "hotswap/layers/mamba.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/rand.h>

#include <cmath>
#include <limits>

#include "hotswap/kernelize/bind/bind_impl.h"
#include "hotswap/kernelize/bind/example.h"
#include "hotswap/kernelize/bind/fields.h"

namespace hotswap {

namespace {

using binding::Fields;

// Tensors, and what is passed after them: a backward op has tensors of its own between the two.
template <typename Inputs>
struct InputFields {
  Fields<Inputs> tensors, options;
};

const InputFields<SelectiveScanInputs>& scan_fields() {
  using In = SelectiveScanInputs;
  static const InputFields<In> fields = {{{"Tensor u", &In::u},
                                          {"Tensor delta", &In::delta},
                                          {"Tensor A", &In::A},
                                          {"Tensor B", &In::B},
                                          {"Tensor C", &In::C},
                                          {"Tensor? D", &In::D},
                                          {"Tensor? z", &In::z},
                                          {"Tensor? delta_bias", &In::delta_bias},
                                          {"Tensor? initial_state", &In::initial_state},
                                          {"Tensor? seq_idx", &In::seq_idx}},
                                         {{"bool delta_softplus", &In::delta_softplus}}};
  return fields;
}

const InputFields<SsdInputs>& ssd_fields() {
  using In = SsdInputs;
  static const InputFields<In> fields = {{{"Tensor x", &In::x},
                                          {"Tensor dt", &In::dt},
                                          {"Tensor A", &In::A},
                                          {"Tensor B", &In::B},
                                          {"Tensor C", &In::C},
                                          {"Tensor? D", &In::D},
                                          {"Tensor? z", &In::z},
                                          {"Tensor? dt_bias", &In::dt_bias},
                                          {"Tensor? initial_state", &In::initial_state},
                                          {"Tensor? seq_idx", &In::seq_idx}},
                                         {{"int chunk_size", &In::chunk_size},
                                          {"bool dt_softplus", &In::dt_softplus},
                                          {"float dt_min", &In::dt_min},
                                          {"float dt_max", &In::dt_max}}};
  return fields;
}

const InputFields<StateUpdateInputs>& update_fields() {
  using In = StateUpdateInputs;
  static const InputFields<In> fields = {{{"Tensor(a!) state", &In::state},
                                          {"Tensor x", &In::x},
                                          {"Tensor dt", &In::dt},
                                          {"Tensor A", &In::A},
                                          {"Tensor B", &In::B},
                                          {"Tensor C", &In::C},
                                          {"Tensor? D", &In::D},
                                          {"Tensor? z", &In::z},
                                          {"Tensor? dt_bias", &In::dt_bias},
                                          {"Tensor? state_indices", {}}},
                                         {{"bool dt_softplus", &In::dt_softplus}}};
  return fields;
}

template <typename Inputs>
void push_all(binding::Values& values, const Inputs& in, const InputFields<Inputs>& fields) {
  binding::push_fields(values, in, fields.tensors);
  binding::push_fields(values, in, fields.options);
}

template <typename Inputs>
void take_all(const binding::Values& values, size_t& next, Inputs& in, const InputFields<Inputs>& fields) {
  binding::take_fields(values, next, in, fields.tensors);
  binding::take_fields(values, next, in, fields.options);
}

}  // namespace

static void push(binding::Values& values, const SelectiveScanInputs& in) { push_all(values, in, scan_fields()); }
static void push(binding::Values& values, const SsdInputs& in) { push_all(values, in, ssd_fields()); }
static void push(binding::Values& values, const StateUpdateInputs& in) { push_all(values, in, update_fields()); }

static void take(const binding::Values& values, size_t& next, SelectiveScanInputs& in) {
  take_all(values, next, in, scan_fields());
}
static void take(const binding::Values& values, size_t& next, SsdInputs& in) {
  take_all(values, next, in, ssd_fields());
}
static void take(const binding::Values& values, size_t& next, StateUpdateInputs& in) {
  take_all(values, next, in, update_fields());
  in.state = in.state.clone();  // an example may run again
}

namespace binding {
namespace {

// An op without a gradient.
struct UpdateOp {
  explicit UpdateOp(const LayerOps& layer)
      : forward(c10::Dispatcher::singleton().findSchemaOrThrow(layer.op("forward").c_str(), "")) {}
  Tensor operator()(Values& stack) const {
    const at::AutoDispatchBelowADInplaceOrView guard;
    forward.callBoxed(&stack);
    return stack[0].toTensor();
  }
  c10::OperatorHandle forward;
};

void bind_conv_update(SlotBase& slot, const LayerOps& layer) {
  const auto* op = ops_of<UpdateOp>(layer);
  bind_slot<CausalConv1dUpdateForward>(slot, [op](const Tensor& x, const Tensor& state, const Tensor& weight,
                                                  const OptionalTensor& bias, const std::string& activation) {
    Values stack = {x, state, weight};
    push(stack, bias);
    stack.insert(stack.end(), {c10::IValue(), c10::IValue(), activation});
    return (*op)(stack);
  });
}

void bind_state_update(SlotBase& slot, const LayerOps& layer) {
  const auto* op = ops_of<UpdateOp>(layer);
  bind_slot<StateUpdateForward>(slot, [op](const StateUpdateInputs& in) {
    Values stack;
    push(stack, in);
    return (*op)(stack);
  });
}

// A stock scan leaves x in float32; kernels read one dtype.
void bind_gated_norm(SlotBase& slot, const LayerOps& layer) {
  const auto forward = forward_of(regular_ops(layer, Gradients::kRows), static_cast<GatedRmsNormForward*>(nullptr));
  bind_slot<GatedRmsNormForward>(slot, [forward](const Tensor& x, const Tensor& z, const Tensor& weight, double eps,
                                                 int64_t group_size, bool norm_before_gate) {
    return forward(x.to(z.scalar_type()), z, weight, eps, group_size, norm_before_gate);
  });
}

constexpr int64_t kWidth = 4, kState = 16, kHeadDim = 32;  // of examples; a head is no wider

// Decays as trained models have them.
Tensor decays(at::IntArrayRef shape) { return -(at::rand(shape, at::kFloat) * 4 + 0.1); }

Result<Example> conv_example(const std::string&, const ExampleSize& size) {
  return make_example<CausalConv1dForward>(
      stock::causal_conv1d, {random({1, size.dim, size.rows}), random({size.dim, kWidth}) / 2, random({size.dim}),
                             c10::IValue(), c10::IValue(), "silu"});
}

Result<Example> conv_update_example(const std::string&, const ExampleSize& size) {
  Example example;
  example.shape = cat(size.rows, "x", size.dim);
  example.arguments = {random({size.rows, size.dim, 1}),
                       random({size.rows, size.dim, kWidth}),
                       random({size.dim, kWidth}) / 2,
                       random({size.dim}),
                       c10::IValue(),
                       c10::IValue(),
                       "silu"};
  const auto run = [](const auto& forward) -> ExampleForward {
    return [forward](const Values& a) {
      return Tensors{forward(a[0].toTensor(), a[1].toTensor().clone(), a[2].toTensor(), OptionalTensor(a[3].toTensor()),
                             a[6].toStringRef())};
    };
  };
  example.stock = example.exact = run(stock::causal_conv1d_update);
  example.bound = [run](const LayerOps& layer) {
    const auto module = std::make_shared<BoundLayer<CausalConv1dUpdateForward>>(layer, stock::causal_conv1d_update);
    return run([module](const auto&... each) { return module->slot(each...); });
  };
  return example;
}

Result<Example> scan_example(const std::string&, const ExampleSize& size) {
  Values arguments;
  push(arguments, SelectiveScanInputs{.u = random({1, size.dim, size.rows}),
                                      .delta = random({1, size.dim, size.rows}) - 2,
                                      .A = decays({size.dim, kState}),
                                      .B = random({1, kState, size.rows}),
                                      .C = random({1, kState, size.rows}),
                                      .D = random({size.dim}),
                                      .z = random({1, size.dim, size.rows}),
                                      .delta_bias = random({size.dim})});
  return make_example<SelectiveScanForward>(stock::selective_scan, std::move(arguments));
}

Result<Example> state_update_example(const std::string&, const ExampleSize& size) {
  Values arguments;
  push(arguments, StateUpdateInputs{.state = random({size.rows, size.dim, kState}),
                                    .x = random({size.rows, size.dim}),
                                    .dt = random({size.rows, size.dim}) - 2,
                                    .A = decays({size.dim, kState}),
                                    .B = random({size.rows, kState}),
                                    .C = random({size.rows, kState}),
                                    .D = random({size.dim}),
                                    .z = random({size.rows, size.dim}),
                                    .dt_bias = random({size.dim})});
  return make_example<StateUpdateForward>(stock::selective_state_update, std::move(arguments));
}

Result<Example> ssd_example(const std::string&, const ExampleSize& size) {
  const int64_t head_dim = size.dim % kHeadDim == 0 ? kHeadDim : size.dim, heads = size.dim / head_dim;
  Values arguments;
  push(arguments, SsdInputs{.x = random({1, size.rows, heads, head_dim}),
                            .dt = random({1, size.rows, heads}) - 2,
                            .A = decays({heads}),
                            .B = random({1, size.rows, 1, 4 * kState}),
                            .C = random({1, size.rows, 1, 4 * kState}),
                            .D = random({heads}),
                            .dt_bias = random({heads}),
                            .chunk_size = 64,
                            .dt_max = std::numeric_limits<double>::infinity()});
  return make_example<SsdForward>(stock::ssd, std::move(arguments));
}

Result<Example> gated_norm_example(const std::string&, const ExampleSize& size) {
  return make_example<GatedRmsNormForward>(
      stock::gated_rms_norm,
      {random({size.rows, size.dim}), random({size.rows, size.dim}), random({size.dim}), 1e-5, size.dim, false});
}

}  // namespace

std::vector<Contract> mamba_contracts() {
  const std::string conv = "Tensor x, Tensor weight, Tensor? bias, Tensor? initial_state, Tensor? seq_idx, ";
  const std::string scan = schema_of(scan_fields().tensors) + ", ", softplus = schema_of(scan_fields().options);
  const std::string ssd = schema_of(ssd_fields().tensors) + ", ", chunks = schema_of(ssd_fields().options) + ")";
  const std::string update = schema_of(update_fields().tensors) + ", " + schema_of(update_fields().options);
  const ExampleSize sequence = {.rows = 128, .dim = 256}, long_sequence = {.rows = 1024, .dim = 1536};
  const ExampleSize step = {.rows = 1, .dim = 1536}, steps = {.rows = 64, .dim = 4096};
  return {
      {"causal_conv1d/1",
       {{"forward", "(" + conv + "str activation) -> Tensor"},
        {"forward_train", "(" + conv + "str activation) -> Tensor y"},
        {"backward", "(Tensor dy, " + conv +
                         "str activation) -> (Tensor dx, Tensor dweight, Tensor dbias, Tensor dinitial_state)"}},
       bind_regular<CausalConv1dForward, Gradients::kAny>,
       conv_example,
       sequence,
       long_sequence},
      {"causal_conv1d_update/1",
       {{"forward",
         "(Tensor x, Tensor(a!) state, Tensor weight, Tensor? bias, Tensor? cache_seqlens, Tensor? state_indices, "
         "str activation) -> Tensor"}},
       bind_conv_update,
       conv_update_example,
       step,
       steps,
       {},
       {},
       /*optional=*/false,
       nullptr,
       /*steps_only=*/true},
      {"selective_scan/1",
       {{"forward", "(" + scan + softplus + ") -> (Tensor y, Tensor last_state)"},
        {"forward_train", "(" + scan + softplus + ") -> (Tensor y, Tensor last_state, Tensor checkpoints)"},
        {"backward", "(Tensor dy, Tensor? dlast_state, " + scan + "Tensor checkpoints, " + softplus +
                         ") -> (Tensor du, Tensor ddelta, Tensor dA, Tensor dB, "
                         "Tensor dC, Tensor dD, Tensor dz, Tensor ddelta_bias, Tensor dinitial_state)"}},
       bind_regular<SelectiveScanForward, Gradients::kAny>,
       scan_example,
       sequence,
       long_sequence},
      {"selective_state_update/1",
       {{"forward", "(" + update + ") -> Tensor"}},
       bind_state_update,
       state_update_example,
       step,
       steps,
       {},
       {},
       /*optional=*/false,
       nullptr,
       /*steps_only=*/true},
      {"ssd/1",
       {{"forward", "(" + ssd + chunks + " -> (Tensor y, Tensor final_state)"},
        {"forward_train", "(" + ssd + chunks + " -> (Tensor y, Tensor final_state, Tensor states)"},
        {"backward", "(Tensor dy, Tensor? dfinal_state, " + ssd + "Tensor states, " + chunks +
                         " -> (Tensor dx, Tensor ddt, Tensor dA, Tensor dB, Tensor dC, Tensor dD, Tensor dz, "
                         "Tensor ddt_bias, Tensor dinitial_state)"}},
       bind_regular<SsdForward, Gradients::kAny>,
       ssd_example,
       sequence,
       long_sequence},
      {"gated_rms_norm/1",
       {{"forward", "(Tensor x, Tensor z, Tensor weight, float eps, int group_size, bool norm_before_gate) -> Tensor"},
        {"forward_train",
         "(Tensor x, Tensor z, Tensor weight, float eps, int group_size, bool norm_before_gate) -> "
         "(Tensor y, Tensor rstd)"},
        {"backward",
         "(Tensor dy, Tensor x, Tensor z, Tensor weight, Tensor rstd, int group_size, bool norm_before_gate) -> "
         "(Tensor dx, Tensor dz, Tensor dweight)"}},
       bind_gated_norm,
       gated_norm_example,
       {.rows = 128},
       {.rows = 32768}},
  };
}

}  // namespace binding
}  // namespace hotswap
