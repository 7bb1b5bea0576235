// Schemas, checks and registrations: torch's stable ABI only. The formulas are in dyt.h.
#include <optional>

#include "kernels/common/cpu/nontemporal.h"
#include "kernels/common/torch/ops.h"
#include "kernels/dyt/cuda/dyt.h"

namespace dyt {
namespace {

using kernels::as_rows;
using kernels::check_tensor;
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

// A parameter of `size` numbers: on the CPU in float32, on a GPU in its own type.
Tensor parameter(const Tensor& t, int64_t size, const Device& device) {
  kernels::check_device(t, device);
  check_tensor(t.dim() == 1 && t.size(0) == size, t, "[", size, "]; got ", kernels::shape_of(t),
               "; alpha is one number, gamma and beta have the size of x's last dimension");
  dtype_of(t);
  const Tensor read = device.is_cpu() ? torch::stable::to(t, kernels::ScalarType::Float) : t;
  return read.is_contiguous() ? read : torch::stable::contiguous(read);
}
Parameter values(const Tensor& t) { return {t.data_ptr(), dtype_of(t)}; }

Tensor forward(const Tensor& x, const Tensor& alpha, const Tensor& gamma, std::optional<Tensor> beta) {
  const DType dtype = dtype_of(x);
  const Device device = device_of(x);
  const Rows in = as_rows(x, device);
  const Tensor a = parameter(alpha, 1, device), g = parameter(gamma, in.cols, device);
  const std::optional<Tensor> b = beta.has_value() ? std::optional(parameter(*beta, in.cols, device)) : std::nullopt;
  Tensor y = kernels::empty_like(x, dtype);
  const Forward args{.dtype = dtype,
                     .y = y.data_ptr(),
                     .x = in.data,
                     .alpha = values(a),
                     .gamma = values(g),
                     .beta = b ? values(*b) : Parameter{},
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

// Chunks of rows on the CPU; a GPU has a plan of its own.
int64_t chunk_of(int64_t rows) {
  constexpr int64_t kLeastRows = 16, kMaxChunks = 64;
  return std::max(kLeastRows, (rows + kMaxChunks - 1) / kMaxChunks);
}
void add_up(const float* partial, int64_t chunks, Tensor& out) {
  const ColumnSum args{
      .dtype = dtype_of(out), .out = out.data_ptr(), .partial = partial, .rows = chunks, .cols = out.numel()};
  kernels::parallel_rows(args.cols, args.rows,
                         [&](int64_t begin, int64_t end) { table().column_sum(args, begin, end); });
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const Tensor& dy, const Tensor& x, const Tensor& alpha,
                                                    const Tensor& gamma) {
  const DType dtype = dtype_of(x);
  const Device device = device_of(x);
  kernels::check_same_shape(x, dy, "x");
  kernels::check_same_dtype(dy, dtype, "x");
  const Rows in = as_rows(x, device), gradient = as_rows(dy, device);
  const Tensor a = parameter(alpha, 1, device), g = parameter(gamma, in.cols, device);
  Tensor dx = kernels::empty_like(x, dtype), dalpha = kernels::empty_like(alpha, dtype_of(alpha)),
         dgamma = kernels::empty_like(gamma, dtype_of(gamma)), dbeta = kernels::empty_like(gamma, dtype_of(gamma));
  Backward args{.dtype = dtype,
                .dx = dx.data_ptr(),
                .partial_alpha = nullptr,
                .partial_gamma = nullptr,
                .partial_beta = nullptr,
                .dy = gradient.data,
                .x = in.data,
                .alpha = values(a),
                .gamma = values(g),
                .rows = in.rows,
                .cols = in.cols,
                .dy_stride = gradient.stride,
                .x_stride = in.stride,
                .chunk = chunk_of(in.rows)};
  Tensor partial;
  const auto make_partial = [&](int64_t chunks, int64_t strips) {
    partial = kernels::empty({chunks * (2 * in.cols + strips)}, DType::kFloat32, device);
    args.partial_gamma = static_cast<float*>(partial.data_ptr());
    args.partial_beta = args.partial_gamma + chunks * in.cols;
    args.partial_alpha = args.partial_beta + chunks * in.cols;
  };
  kernels::run_on(
      device,
      [&](auto stream) {
        const cuda::Plan p = cuda::plan_backward(args);
        make_partial(p.chunks, p.strips);
        cuda::backward(args, p, {dalpha.data_ptr(), dgamma.data_ptr(), dbeta.data_ptr()}, stream);
      },
      [&] {
        const int64_t chunks = std::max<int64_t>(1, (in.rows + args.chunk - 1) / args.chunk);
        make_partial(chunks, 1);
        kernels::parallel_rows(chunks, in.cols * args.chunk,
                               [&](int64_t begin, int64_t end) { table().backward(args, begin, end); });
        add_up(args.partial_alpha, chunks, dalpha);
        add_up(args.partial_gamma, chunks, dgamma);
        add_up(args.partial_beta, chunks, dbeta);
      });
  return {std::move(dx), std::move(dalpha), std::move(dgamma), std::move(dbeta)};
}

constexpr std::array kOps{
    kernels::op<&forward>("dyt(Tensor x, Tensor alpha, Tensor gamma, Tensor? beta) -> Tensor"),
    kernels::op<&backward>("dyt_bwd(Tensor dy, Tensor x, Tensor alpha, Tensor gamma) -> (Tensor dx, Tensor dalpha, "
                           "Tensor dgamma, Tensor dbeta)"),
};
const kernels::Library<kOps> library;

}  // namespace
}  // namespace dyt
