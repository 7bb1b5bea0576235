// Ops of the moe package: schemas and rows.
#include "kernels/common/torch/ops.h"
#include "kernels/moe/torch-ext/packed.h"
#if defined(CUDA_KERNEL)
#include "kernels/moe/torch-ext/gpu.h"
#endif

namespace moe {
namespace {

using FiveTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using SixTensors = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Tensor moe_experts(const Tensor& x, const Tensor& index, const Tensor& weights, const Tensor& w_up,
                   const MaybeTensor& b_up, const Tensor& w_down, const MaybeTensor& b_down, std::string activation,
                   double alpha, double limit, bool interleaved, bool transposed, bool scale_input) {
  const Call c("moe_experts", x, index, weights, w_up, b_up, w_down, b_down,
               {activation, alpha, limit, interleaved, transposed, scale_input});
#if defined(CUDA_KERNEL)
  if (!c.device.is_cpu()) return gpu::forward(c, false).y;
#endif
  return cpu::forward(c).y;
}

Tensor moe_experts_packed(const Tensor& x, const Tensor& index, const Tensor& weights, const Tensor& w_up,
                          std::string up_format, const MaybeTensor& b_up, const Tensor& w_down, std::string down_format,
                          const MaybeTensor& b_down, std::string activation, double alpha, double limit,
                          bool interleaved, bool transposed, bool scale_input) {
  constexpr const char* kOp = "moe_experts_packed";
  check(kernels::device_of(x).is_cpu(), kOp,
        ": expected tensors on the CPU; got another device; dequantise the experts");
  const kernels::Packing up = cpu::packing_of(kOp, up_format), down = cpu::packing_of(kOp, down_format);
  Call::check_dimensions(kOp, w_up, w_down);
  const bool plain = down == kernels::Packing::kNone;
  const Call c(kOp, x, index, weights, w_up, b_up, w_down, b_down,
               {activation, alpha, limit, interleaved, transposed, scale_input},
               plain ? w_down.size(transposed ? 1 : 2) : cpu::columns_of(w_down, down));
  const cpu::Matrix first{w_up, up, c.p.columns(), c.p.hidden}, second{w_down, down, c.p.hidden, c.p.inner};
  first.plain() ? c.check_up() : cpu::check_packed(c, first);
  second.plain() ? c.check_down() : cpu::check_packed(c, second);
  return cpu::packed_forward(c, first, second);
}

FiveTensors moe_experts_train(const Tensor& x, const Tensor& index, const Tensor& weights, const Tensor& w_up,
                              const MaybeTensor& b_up, const Tensor& w_down, const MaybeTensor& b_down,
                              std::string activation, double alpha, double limit, bool interleaved, bool transposed,
                              bool scale_input) {
  const Call c("moe_experts_train", x, index, weights, w_up, b_up, w_down, b_down,
               {activation, alpha, limit, interleaved, transposed, scale_input});
#if defined(CUDA_KERNEL)
  if (!c.device.is_cpu()) {
    Forward r = gpu::forward(c, true);
    return {r.y, r.h, r.sorted.order, r.sorted.slots, r.sorted.offsets};
  }
#endif
  Forward r = cpu::forward(c);
  return {r.y, r.h, r.sorted.order, r.sorted.slots, r.sorted.offsets};
}

// moe_experts_bwd, and moe_experts_bwd_, which writes dh over h.
template <bool kInPlace>
SixTensors backward(const Tensor& dy, const Tensor& x, const Tensor& index, const Tensor& weights, const Tensor& w_up,
                    const MaybeTensor& b_up, const Tensor& w_down, const MaybeTensor& b_down, const Tensor& h,
                    const Tensor& order, const Tensor& slots, const Tensor& offsets, std::string activation,
                    double alpha, double limit, bool interleaved, bool transposed, bool scale_input,
                    bool weight_grads) {
  const Call c(kInPlace ? "moe_experts_bwd_" : "moe_experts_bwd", x, index, weights, w_up, b_up, w_down, b_down,
               {activation, alpha, limit, interleaved, transposed, scale_input});
  const Saved saved(c, dy, h, order, slots, offsets);
  check(!kInPlace || h.is_contiguous(), c.op,
        ": expected h contiguous, which becomes its gradient; got strides; call the op without _ at the end");
  const Tensor dh = kInPlace ? saved.h : c.new_like(saved.h);
  const auto run = [&] {
#if defined(CUDA_KERNEL)
    if (!c.device.is_cpu()) return gpu::backward(c, saved, dh, weight_grads);
#endif
    return cpu::backward(c, saved, dh, weight_grads);
  };
  Gradients g = run();
  return {g.dx, g.dscores, g.dw_up, g.db_up, g.dw_down, g.db_down};
}

#define MOE_INPUTS "Tensor x, Tensor index, Tensor weights, Tensor w_up, Tensor? b_up, Tensor w_down, Tensor? b_down, "
#define MOE_OPTIONS "str activation, float alpha, float limit, bool interleaved, bool transposed, bool scale_input"
#define MOE_GRADIENTS "(Tensor dx, Tensor dweights, Tensor dw_up, Tensor db_up, Tensor dw_down, Tensor db_down)"

constexpr std::array kOps{
    kernels::op<&moe_experts>("moe_experts(" MOE_INPUTS MOE_OPTIONS ") -> Tensor"),
    kernels::op<&moe_experts_packed>(
        "moe_experts_packed(Tensor x, Tensor index, Tensor weights, Tensor w_up, str "
        "up_format, Tensor? b_up, Tensor w_down, str down_format, Tensor? b_down, " MOE_OPTIONS ") -> Tensor y"),
    kernels::op<&moe_experts_train>("moe_experts_train(" MOE_INPUTS MOE_OPTIONS
                                    ") -> (Tensor y, Tensor h, Tensor order, Tensor slots, Tensor offsets)"),
    kernels::op<&backward<false>>("moe_experts_bwd(Tensor dy, " MOE_INPUTS
                                  "Tensor h, Tensor order, Tensor slots, Tensor offsets, " MOE_OPTIONS
                                  ", bool weight_grads) -> " MOE_GRADIENTS),
    kernels::op<&backward<true>>("moe_experts_bwd_(Tensor dy, " MOE_INPUTS
                                 "Tensor(a!) h, Tensor order, Tensor slots, Tensor offsets, " MOE_OPTIONS
                                 ", bool weight_grads) -> " MOE_GRADIENTS),
};
const kernels::Library<kOps> library;

}  // namespace
}  // namespace moe
