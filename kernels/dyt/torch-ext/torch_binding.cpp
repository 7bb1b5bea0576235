// Schemas, checks and registrations: torch's stable ABI only. The formulas are in dyt.h.
#include <optional>

#include "kernels/common/cpu/nontemporal.h"
#include "kernels/common/torch/ops.h"
#include "kernels/dyt/dyt_cuda.h"

namespace dyt {
namespace {

using kernels::as_rows;
using kernels::check;
using kernels::Device;
using kernels::device_of;
using kernels::dtype_of;
using kernels::Rows;
using kernels::Tensor;

const Table& table() {
  static const Table& chosen = HOTSWAP_CHOOSE_TABLE(dyt);
  return chosen;
}

constexpr int64_t kGrain = 8192;  // numbers a thread, at least: a tanh each

// A parameter of `size` numbers, in float32.
Tensor parameter(const char* op, const Tensor& t, const char* name, int64_t size, const Device& device) {
  kernels::check_device(t, device, op);
  check(t.dim() == 1 && t.size(0) == size, op, ": wanted ", name, " [", size, "]; got ", kernels::shape_of(t),
        "; alpha is one number, gamma and beta have the size of x's last dimension");
  dtype_of(t, op);
  const Tensor wide = torch::stable::to(t, kernels::ScalarType::Float);
  return wide.is_contiguous() ? wide : torch::stable::contiguous(wide);
}
float* numbers(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }

Tensor forward(const Tensor& x, const Tensor& alpha, const Tensor& gamma, std::optional<Tensor> beta) {
  constexpr auto kOp = "dyt";
  const DType dtype = dtype_of(x, kOp);
  const Device device = device_of(x);
  const Rows in = as_rows(x, kOp, device);
  const Tensor a = parameter(kOp, alpha, "alpha", 1, device), g = parameter(kOp, gamma, "gamma", in.cols, device);
  const std::optional<Tensor> b =
      beta.has_value() ? std::optional(parameter(kOp, *beta, "beta", in.cols, device)) : std::nullopt;
  Tensor y = kernels::empty_like(x, dtype);
  const Forward args{.dtype = dtype,
                     .y = y.data_ptr(),
                     .x = in.data,
                     .alpha = numbers(a),
                     .gamma = numbers(g),
                     .beta = b ? numbers(*b) : nullptr,
                     .rows = in.rows,
                     .cols = in.cols,
                     .x_stride = in.stride,
                     .stream = kernels::wants_stream(in.rows * in.cols * kernels::size_of(dtype))};
  kernels::run_on(
      device, [&](auto stream) { cuda::forward(args, stream); },
      [&] {
        kernels::parallel_rows(
            in.rows, in.cols, [&](int64_t begin, int64_t end) { table().forward(args, begin, end); }, kGrain);
      });
  return y;
}

// [rows, cols] float32 -> the sums of its columns, like `as`.
Tensor column_sum(const Tensor& partial, const Tensor& as) {
  const DType dtype = dtype_of(as, "dyt_bwd");
  Tensor out = kernels::empty_like(as, dtype);
  const ColumnSum args{.dtype = dtype,
                       .out = out.data_ptr(),
                       .partial = numbers(partial),
                       .rows = partial.size(0),
                       .cols = partial.size(1)};
  kernels::run_on(
      device_of(as), [&](auto stream) { cuda::column_sum(args, stream); },
      [&] {
        kernels::parallel_rows(args.cols, args.rows,
                               [&](int64_t begin, int64_t end) { table().column_sum(args, begin, end); });
      });
  return out;
}

// On the CPU; a GPU has a plan of its own.
struct Plan {
  int64_t chunk, chunks, strips;
};
Plan plan(int64_t rows) {
  constexpr int64_t kLeastRows = 16, kMostChunks = 64;
  const int64_t chunk = std::max(kLeastRows, (rows + kMostChunks - 1) / kMostChunks);
  return {chunk, std::max<int64_t>(1, (rows + chunk - 1) / chunk), 1};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const Tensor& dy, const Tensor& x, const Tensor& alpha,
                                                    const Tensor& gamma) {
  constexpr auto kOp = "dyt_bwd";
  const DType dtype = dtype_of(x, kOp);
  const Device device = device_of(x);
  kernels::check_same_shape(x, dy, kOp, "x", "dy");
  check(dtype_of(dy, kOp) == dtype, kOp, ": wanted dy in x's dtype; got another; cast it");
  const Rows in = as_rows(x, kOp, device), gradient = as_rows(dy, kOp, device);
  const Tensor a = parameter(kOp, alpha, "alpha", 1, device), g = parameter(kOp, gamma, "gamma", in.cols, device);
  Plan p = plan(in.rows);
  kernels::run_on(
      device,
      [&](auto) {
        const cuda::Plan of_gpu = cuda::plan(in.rows, in.cols, dtype);
        p = {of_gpu.chunk, of_gpu.chunks, of_gpu.strips};
      },
      [] {});
  Tensor dx = kernels::empty_like(x, dtype);
  const Tensor alphas = kernels::empty({p.chunks * p.strips, 1}, DType::kFloat32, device),
               gammas = kernels::empty({p.chunks, in.cols}, DType::kFloat32, device),
               betas = kernels::empty({p.chunks, in.cols}, DType::kFloat32, device);
  const Backward args{.dtype = dtype,
                      .dx = dx.data_ptr(),
                      .partial_alpha = numbers(alphas),
                      .partial_gamma = numbers(gammas),
                      .partial_beta = numbers(betas),
                      .dy = gradient.data,
                      .x = in.data,
                      .alpha = numbers(a),
                      .gamma = numbers(g),
                      .rows = in.rows,
                      .cols = in.cols,
                      .dy_stride = gradient.stride,
                      .x_stride = in.stride,
                      .chunk = p.chunk,
                      .strips = p.strips};
  kernels::run_on(
      device, [&](auto stream) { cuda::backward(args, stream); },
      [&] {
        kernels::parallel_rows(p.chunks, in.cols * p.chunk,
                               [&](int64_t begin, int64_t end) { table().backward(args, begin, end); });
      });
  return {std::move(dx), column_sum(alphas, alpha), column_sum(gammas, gamma), column_sum(betas, gamma)};
}

constexpr std::array kOps{
    kernels::op<&forward>("dyt(Tensor x, Tensor alpha, Tensor gamma, Tensor? beta) -> Tensor"),
    kernels::op<&backward>("dyt_bwd(Tensor dy, Tensor x, Tensor alpha, Tensor gamma) -> (Tensor dx, Tensor dalpha, "
                           "Tensor dgamma, Tensor dbeta)"),
};
const kernels::Library<kOps> library;

}  // namespace
}  // namespace dyt
