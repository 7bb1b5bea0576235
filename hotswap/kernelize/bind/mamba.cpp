// causal_conv1d/1, selective_scan/1, ssd/1, gated_rms_norm/1, and the steps of one token: causal_conv1d_update/1,
// selective_state_update/1. What the tensors mean is in layers/mamba.h; beside that a package keeps to this:
//
//   - Tensors of any strides; results in the layout of x or u, final states in float32.
//   - Gradients of tensors that were not given are [0]. A final state may be asked for its gradient, or not.
//   - chunk_size is a hint: results may differ in rounding alone.
//   - The updates write their state, whose rows state_indices picks; cache_seqlens makes it a ring. The host passes
//   neither.
#include "hotswap/layers/mamba.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "hotswap/kernelize/bind/bind_impl.h"
#include "hotswap/kernelize/contract/arguments.h"

namespace hotswap::binding {
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

}  // namespace

std::vector<Contract> mamba_contracts() {
  const std::string conv = "Tensor x, Tensor weight, Tensor? bias, Tensor? initial_state, Tensor? seq_idx, ";
  const std::string scan = schema_of(scan_fields().tensors) + ", ", softplus = schema_of(scan_fields().options);
  const std::string ssd = schema_of(ssd_fields().tensors) + ", ", chunks = schema_of(ssd_fields().options) + ")";
  const std::string update = schema_of(update_fields().tensors) + ", " + schema_of(update_fields().options);
  return {
      {"causal_conv1d/1",
       {{"forward", "(" + conv + "str activation) -> Tensor"},
        {"forward_train", "(" + conv + "str activation) -> Tensor y"},
        {"backward", "(Tensor dy, " + conv +
                         "str activation) -> (Tensor dx, Tensor dweight, Tensor dbias, Tensor dinitial_state)"}},
       bind_regular<CausalConv1dForward, Gradients::kAny>},
      {"causal_conv1d_update/1",
       {{"forward",
         "(Tensor x, Tensor(a!) state, Tensor weight, Tensor? bias, Tensor? cache_seqlens, Tensor? state_indices, "
         "str activation) -> Tensor"}},
       bind_conv_update,
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
       bind_regular<SelectiveScanForward, Gradients::kAny>},
      {"selective_state_update/1",
       {{"forward", "(" + update + ") -> Tensor"}},
       bind_state_update,
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
       bind_regular<SsdForward, Gradients::kAny>},
      {"gated_rms_norm/1",
       {{"forward", "(Tensor x, Tensor z, Tensor weight, float eps, int group_size, bool norm_before_gate) -> Tensor"},
        {"forward_train",
         "(Tensor x, Tensor z, Tensor weight, float eps, int group_size, bool norm_before_gate) -> "
         "(Tensor y, Tensor rstd)"},
        {"backward",
         "(Tensor dy, Tensor x, Tensor z, Tensor weight, Tensor rstd, int group_size, bool norm_before_gate) -> "
         "(Tensor dx, Tensor dz, Tensor dweight)"}},
       bind_gated_norm},
  };
}

}  // namespace hotswap::binding
