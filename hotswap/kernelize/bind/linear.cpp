// linear/1, packed_linear/2, and packed_linear/1 of packages that were built before it. A Linear that claims
// torch_products trains by torch's own products: a node of several projections may make them in its place.
#include "hotswap/layers/linear.h"

#include "hotswap/kernelize/bind/bind_impl.h"
#include "hotswap/kernelize/contract/arguments.h"

namespace hotswap::binding {
namespace {

void bind_tokens(SlotBase& slot, const LayerOps& layer) {
  if (const auto op =
          typed_op<void(const Tensor&, const Tensor&, const OptTensor&, const OptTensor&)>(layer, "argmax")) {
    slot.bind_op<Argmax>([op = *op](const Tensor& out, const Tensor& x, const Tensor& history, const Tensor& row) {
      below_autograd(op, out, x, given(history), given(row));
    });
  }
  if (const auto op = typed_op<Tensor(const Tensor&, const Tensor&)>(layer, "sample")) {
    slot.bind_op<Sample>(
        [op = *op](const Tensor& x, const Tensor& settings) { return below_autograd(op, x, settings); });
  }
}

void bind_linear(SlotBase& slot, const LayerOps& layer) {
  bind_regular<LinearForward>(slot, layer);
  if (layer.claims("torch_products")) slot.set_claims({"torch_products"});
  bind_tokens(slot, layer);
}

void bind_packed(SlotBase& slot, const LayerOps& layer) {
  bind_regular<PackedLinearForward>(slot, layer);
  bind_tokens(slot, layer);
}

// packed_linear/1 takes ggml's blocks as a bare tensor.
void bind_blocks(SlotBase& slot, const LayerOps& layer) {
  const auto forward = forward_of(regular_ops(layer, Gradients::kContiguous), static_cast<LinearForward*>(nullptr));
  bind_slot<PackedLinearForward>(slot, [forward](const Tensor& x, const Weight& weight, const OptTensor& bias) {
    return forward(x, weight.data, bias);
  });
}

}  // namespace

std::vector<Contract> linear_contracts() {
  const Role argmax = optional_role("(Tensor(a!) place, Tensor x, Tensor(b!)? said=None, Tensor? at=None) -> ()"),
             sample = optional_role("(Tensor x, Tensor settings) -> Tensor ids");
  return {{"linear/1",
           {{"forward", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor y"},
            {"forward_train", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor y"},
            {"backward",
             "(Tensor dy, Tensor x, Tensor weight, bool with_bias) -> (Tensor dx, Tensor dweight, Tensor dbias)"},
            {"argmax", argmax},
            {"sample", sample}},
           bind_linear,
           {"torch_products"}},
          {.name = "packed_linear/2",
           .roles = {{"forward", "(Tensor x, " + weight_schema() + ", Tensor? bias) -> Tensor y"},
                     {"argmax", argmax},
                     {"sample", sample}},
           .bind = bind_packed,
           .weights = {}},
          {.name = "packed_linear/1",
           .roles = {{"forward", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor y"}},
           .bind = bind_blocks,
           .weights = kPackedFormats,
           .serves_slots_of = "packed_linear/2"}};
}

}  // namespace hotswap::binding
