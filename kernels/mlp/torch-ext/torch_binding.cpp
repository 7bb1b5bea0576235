// Ops of the mlp package: schemas, checks, rows.
#include "kernels/common/torch/ops.h"
#include "kernels/mlp/cuda/mlp.h"

namespace mlp {
namespace {

using kernels::as_rows;
using kernels::check;
using kernels::Name;
using kernels::Rows;
using kernels::Tensor;

const Table& table() {
  static const Table& chosen = HOTSWAP_CHOOSE_TABLE(mlp);
  return chosen;
}

DType checked(const Tensor& gate, const Tensor& up) {
  kernels::check_same_shape(gate, up, "gate");
  const DType dtype = kernels::dtype_of(gate);
  kernels::check_same_dtype(up, dtype, "gate");
  return dtype;
}

// One long row where all inputs are contiguous, so that small rows cost nothing.
void run(const kernels::Device& device, GatedArgs a, bool flat) {
  if (flat) {
    a.cols *= a.rows;
    a.rows = 1;
  }
  if (a.rows == 0 || a.cols == 0) return;
  const int64_t block = a.cols < kGatedBlock ? a.cols : kGatedBlock;
  kernels::run_on(
      device, [&](auto stream) { cuda::gated(a, stream); },
      [&] {
        kernels::parallel_rows(gated_blocks(a), block,
                               [&](int64_t begin, int64_t end) { table().gated(a, begin, end); });
      });
}

bool flat(const Rows& r) { return r.stride == r.cols || r.rows == 1; }

template <GatedAct kAct>
Tensor forward(const Tensor& gate, const Tensor& up) {
  const DType dtype = checked(gate, up);
  const kernels::Device device = kernels::device_of(gate);
  const Rows g = as_rows(gate, device), u = as_rows(up, device);
  Tensor y = kernels::empty_like(gate, dtype);
  run(device,
      {.dtype = dtype,
       .act = kAct,
       .gate = g.data,
       .up = u.data,
       .dy = nullptr,
       .gate_stride = g.stride,
       .up_stride = u.stride,
       .dy_stride = 0,
       .y = y.data_ptr(),
       .dgate = nullptr,
       .dup = nullptr,
       .rows = g.rows,
       .cols = g.cols},
      flat(g) && flat(u));
  return y;
}

struct Gradients {
  void *gate, *up;    // contiguous
  void* y = nullptr;  // what forward gave, where it is wanted again
};

// gradients(dtype): where they go, asked for after the checks.
template <GatedAct kAct>
void run_backward(const Tensor& dy, const Tensor& gate, const Tensor& up, const auto& gradients) {
  const DType dtype = checked(gate, up);
  kernels::check_same_shape(gate, dy, "gate");
  kernels::check_same_dtype(dy, dtype, "gate");
  const kernels::Device device = kernels::device_of(gate);
  const Rows d = as_rows(dy, device), g = as_rows(gate, device), u = as_rows(up, device);
  const Gradients out = gradients(dtype);
  run(device,
      {.dtype = dtype,
       .act = kAct,
       .gate = g.data,
       .up = u.data,
       .dy = d.data,
       .gate_stride = g.stride,
       .up_stride = u.stride,
       .dy_stride = d.stride,
       .y = out.y,
       .dgate = out.gate,
       .dup = out.up,
       .rows = g.rows,
       .cols = g.cols},
      flat(d) && flat(g) && flat(u));
}

template <GatedAct kAct>
std::tuple<Tensor, Tensor> backward(const Tensor& dy, const Tensor& gate, const Tensor& up) {
  std::tuple<Tensor, Tensor> out;
  run_backward<kAct>(dy, gate, up, [&](DType dtype) {
    out = {kernels::empty_like(gate, dtype), kernels::empty_like(gate, dtype)};
    return Gradients{std::get<0>(out).data_ptr(), std::get<1>(out).data_ptr()};
  });
  return out;
}

// gate becomes dgate, up becomes dup: nothing new while both gradients are alive. kAgain: and dy becomes what forward
// gave, so that whoever needs that in backward, for the gradient of the projection behind it, need not keep it.
template <Name kOp, GatedAct kAct, bool kAgain = false>
void backward_in_place(const Tensor& dy, const Tensor& gate, const Tensor& up) {
  const char* op = kOp.text;
  run_backward<kAct>(dy, gate, up, [&](DType) {
    check(gate.is_contiguous() && up.is_contiguous(), op,
          ": expected contiguous gate and up, which become dgate and dup;", " got a strided ",
          gate.is_contiguous() ? "up" : "gate", "; call the op without _ at the end");
    if constexpr (kAgain)
      check(dy.is_contiguous(), op, ": expected a contiguous dy, which becomes y; got a strided one; call _bwd");
    const auto apart = [](const Tensor& a, const Tensor& b) {  // b: any strides, which are never negative
      int64_t last = 0;
      for (int64_t i = 0; i < b.dim(); ++i) last += (b.size(i) - 1) * b.stride(i);
      const char *a_begin = static_cast<const char*>(a.data_ptr()), *b_begin = static_cast<const char*>(b.data_ptr());
      return a_begin + a.numel() * a.element_size() <= b_begin || b_begin + (last + 1) * b.element_size() <= a_begin;
    };
    check(gate.numel() == 0 || (apart(gate, up) && apart(gate, dy) && apart(up, dy)), op,
          ": expected dy, gate and up in memory of their own; got two that overlap; clone one of them");
    return Gradients{gate.data_ptr(), up.data_ptr(), kAgain ? dy.data_ptr() : nullptr};
  });
}

// NAME, NAME_bwd, NAME_bwd_ and NAME_bwd_again_.
template <Name kOp, GatedAct kAct, Name kBackward = kOp + "_bwd", Name kInPlace = kOp + "_bwd_",
          Name kAgain = kOp + "_bwd_again_">
constexpr std::array kGated{
    kernels::op<&forward<kAct>>(kOp.text, "(Tensor gate, Tensor up) -> Tensor"),
    kernels::op<&backward<kAct>>(kBackward.text, "(Tensor dy, Tensor gate, Tensor up) -> (Tensor dgate, Tensor dup)"),
    kernels::op<&backward_in_place<kInPlace, kAct>>(kInPlace.text, "(Tensor dy, Tensor(a!) gate, Tensor(b!) up) -> ()"),
    kernels::op<&backward_in_place<kAgain, kAct, true>>(kAgain.text,
                                                        "(Tensor(a!) dy, Tensor(b!) gate, Tensor(c!) up) -> ()"),
};

constexpr auto kOps = kernels::join(kGated<"swiglu", GatedAct::kSwiGlu>, kGated<"geglu", GatedAct::kGeGlu>);
const kernels::Library<kOps> library;

}  // namespace
}  // namespace mlp
