// Checks and calls of the gated norm's ops. The formulas are in kernels/mamba/gated_norm.h.
#include "kernels/mamba/gated_norm.h"

#include "kernels/mamba/cuda/mamba.h"
#include "kernels/mamba/torch-ext/gated_norm.h"

namespace mamba {
namespace {

using kernels::Rows;

const gated_norm::Table& table() {
  static const gated_norm::Table& chosen = HOTSWAP_CHOOSE_TABLE(mamba::gated_norm);
  return chosen;
}

float* floats(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }

// The tensors of a call, kept while its kernels read them.
struct Inputs {
  Rows x, z;
  Tensor weight;
  gated_norm::Problem problem;
  int64_t groups() const { return problem.cols / problem.group; }
};

Inputs inputs_of(const Call& call, const Tensor& x, const Tensor& z, const Tensor& weight, double eps,
                 int64_t group_size, bool norm_before_gate) {
  const char* op = call.op;
  kernels::check_same_shape(x, z, "x");
  const DType type = call.type(x);
  kernels::check_same_dtype(z, type, "x");
  Rows rows = kernels::as_rows(x, call.device), gates = kernels::as_rows(z, call.device);
  const int64_t cols = rows.cols;
  call.shape(weight, {cols}, "[x's last dimension]");
  check(group_size >= 1 && cols % group_size == 0, op, ": expected a group_size that divides x's last dimension, ",
        cols, "; got ", group_size, "; ", cols, " itself is one group");
  const Tensor wide =
      call.type(weight) == DType::kFloat32 ? weight : torch::stable::to(weight, kernels::ScalarType::Float);
  Inputs in{std::move(rows), std::move(gates), wide.is_contiguous() ? wide : torch::stable::contiguous(wide), {}};
  in.problem = {.rows = in.x.rows,
                .cols = cols,
                .group = group_size,
                .type = type,
                .x = in.x.data,
                .z = in.z.data,
                .x_stride = in.x.stride,
                .z_stride = in.z.stride,
                .weight = floats(in.weight),
                .eps = float(eps),
                .norm_first = norm_before_gate};
  return in;
}

Tensor run_forward(const Inputs& in, const Tensor& x, const Tensor* rstd) {
  const gated_norm::Problem& p = in.problem;
  Tensor y = kernels::empty_like(x, p.type);
  const gated_norm::Forward args{.of = p, .y = y.data_ptr(), .rstd = rstd == nullptr ? nullptr : floats(*rstd)};
  kernels::run_on(
      device_of(y), [&](auto stream) { cuda::gated_norm_forward(args, stream); },
      [&] {
        kernels::parallel_rows(p.rows, p.cols, [&](int64_t begin, int64_t end) { table().forward(args, begin, end); });
      });
  return y;
}

}  // namespace

Tensor gated_rms_norm(const Tensor& x, const Tensor& z, const Tensor& weight, double eps, int64_t group_size,
                      bool norm_before_gate) {
  const Call call{"gated_rms_norm", device_of(x)};
  return run_forward(inputs_of(call, x, z, weight, eps, group_size, norm_before_gate), x, nullptr);
}

std::tuple<Tensor, Tensor> gated_rms_norm_fwd(const Tensor& x, const Tensor& z, const Tensor& weight, double eps,
                                              int64_t group_size, bool norm_before_gate) {
  const Call call{"gated_rms_norm_fwd", device_of(x)};
  const Inputs in = inputs_of(call, x, z, weight, eps, group_size, norm_before_gate);
  Tensor rstd = kernels::empty({in.problem.rows, in.groups()}, DType::kFloat32, call.device);
  Tensor y = run_forward(in, x, &rstd);
  return {std::move(y), std::move(rstd)};
}

GatedNormGradients gated_rms_norm_bwd(const Tensor& dy, const Tensor& x, const Tensor& z, const Tensor& weight,
                                      const Tensor& rstd, int64_t group_size, bool norm_before_gate) {
  const Call call{"gated_rms_norm_bwd", device_of(x)};
  const Inputs in = inputs_of(call, x, z, weight, 0, group_size, norm_before_gate);
  const gated_norm::Problem& p = in.problem;
  kernels::check_same_shape(x, dy, "x");
  kernels::check_same_dtype(dy, p.type, "x");
  const Rows gradient = kernels::as_rows(dy, call.device);
  call.shape(rstd, {p.rows, in.groups()}, "[rows, groups]");
  check_tensor(rstd.scalar_type() == kernels::ScalarType::Float && rstd.is_contiguous(), rstd,
               "in contiguous float32; got ", kernels::dtype_name(rstd), rstd.is_contiguous() ? "" : " with gaps",
               "; pass what gated_rms_norm_fwd returned");
  Tensor dx = kernels::empty_like(x, p.type), dz = kernels::empty_like(z, p.type);
  const DType weight_type = call.type(weight);
  Tensor dweight = kernels::empty_like(weight, weight_type);
  int64_t chunks = p.chunks();
  kernels::run_on(
      call.device, [&](auto) { chunks = cuda::gated_norm_partials(p); }, [] {});
  const Tensor partial = kernels::empty({chunks, p.cols}, DType::kFloat32, call.device);
  const gated_norm::Backward args{.of = p,
                                  .dy = gradient.data,
                                  .dy_stride = gradient.stride,
                                  .rstd = floats(rstd),
                                  .dx = dx.data_ptr(),
                                  .dz = dz.data_ptr(),
                                  .partial = floats(partial),
                                  .dweight = dweight.data_ptr(),
                                  .weight_type = weight_type};
  kernels::run_on(
      call.device, [&](auto stream) { cuda::gated_norm_backward(args, stream); },
      [&] {
        kernels::parallel_rows(chunks, p.cols * p.chunk(),
                               [&](int64_t begin, int64_t end) { table().backward(args, begin, end); });
        kernels::parallel_rows(p.cols, chunks,
                               [&](int64_t begin, int64_t end) { table().sum_partial(args, begin, end); });
      });
  return {std::move(dx), std::move(dz), std::move(dweight)};
}

}  // namespace mamba
