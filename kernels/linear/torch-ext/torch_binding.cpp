// Schemas, checks and registration of the linear package. Stable ABI only; GEMMs go to aten through the dispatcher.
#include <tuple>

#include "kernels/common/torch/ops.h"
#include "kernels/linear/cuda/linear.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/torch-ext/packed.h"
#include "kernels/linear/torch-ext/sample.h"

namespace {

using kernels::check;
using kernels::check_tensor;
using kernels::Rows;
using torch::stable::Tensor;
using torch::stable::detail::from;
using torch::stable::detail::to;

const linear::Table& table() {
  static const linear::Table& chosen = HOTSWAP_CHOOSE_TABLE(linear);
  return chosen;
}

// Of 16 bits on a CPU without instructions that multiply them: torch's library takes several times as long as for
// float32 there (docs/notes/linear_cpu.md).
bool is_slow_in_torch(const Tensor& x) {
  if (!kernels::device_of(x).is_cpu()) return false;
  if (x.scalar_type() == kernels::ScalarType::BFloat16) return !kernels::multiplies_bfloat16();
  return x.scalar_type() == kernels::ScalarType::Half && !kernels::multiplies_float16();
}

Tensor in_float32(const Tensor& x) { return torch::stable::to(x, kernels::ScalarType::Float); }

Tensor aten_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  if (is_slow_in_torch(x)) {
    const auto wide_bias = bias ? std::optional(in_float32(*bias)) : std::nullopt;
    return torch::stable::to(aten_linear(in_float32(x), in_float32(weight), wide_bias), x.scalar_type());
  }
  std::array<StableIValue, 3> stack{from(x), from(weight), from(bias)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION));
  return to<Tensor>(stack[0]);
}

Tensor aten_mm(const Tensor& a, const Tensor& b) {
  if (is_slow_in_torch(a)) return torch::stable::to(aten_mm(in_float32(a), in_float32(b)), a.scalar_type());
  std::array<StableIValue, 2> stack{from(a), from(b)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mm", "", stack.data(), TORCH_ABI_VERSION));
  return to<Tensor>(stack[0]);
}

Tensor aten_argmax(const Tensor& x) {
  std::array<StableIValue, 3> stack{from(x), from(std::optional<int64_t>(-1)), from(false)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::argmax", "", stack.data(), TORCH_ABI_VERSION));
  return to<Tensor>(stack[0]);
}

void check_arguments(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  check_tensor(weight.dim() == 2, weight, "[out, in]; got ", kernels::shape_of(weight), "; reshape it");
  check_tensor(x.dim() >= 1 && x.size(x.dim() - 1) == weight.size(1), x, "[..., ", weight.size(1), "] for weight ",
               kernels::shape_of(weight), "; got ", kernels::shape_of(x), "; check the layer's sizes");
  const kernels::Device device = kernels::device_of(x);
  kernels::check_device(weight, device);
  const kernels::DType dtype = kernels::dtype_of(x);
  kernels::check_same_dtype(weight, dtype, "x");
  if (!bias) return;
  kernels::check_device(*bias, device);
  kernels::check_same_dtype(*bias, dtype, "x");
  check_tensor(bias->dim() == 1 && bias->size(0) == weight.size(0), *bias, "[", weight.size(0), "]; got ",
               kernels::shape_of(*bias), "; check the layer's sizes");
}

// Few rows, each contiguous: the kernel. Everything else is a GEMM and torch's library is good at those.
bool wants_gemv(const Tensor& x, const Tensor& weight, int64_t max_rows) {
  const int64_t in = weight.size(1);
  return in > 0 && x.numel() > 0 && x.numel() <= max_rows * in && weight.size(0) > 0 &&
         (weight.stride(1) == 1 || in == 1);
}

Tensor output(const Tensor& x, int64_t out, kernels::DType dtype, const kernels::Device& device) {
  std::array<int64_t, 16> sizes{};
  check(x.dim() <= 16, "linear: expected at most 16 dimensions; got ", x.dim(), "; flatten the leading ones");
  for (int64_t d = 0; d + 1 < x.dim(); ++d) sizes[d] = x.size(d);
  sizes[x.dim() - 1] = out;
  return kernels::empty_like_shape(sizes.data(), x.dim(), kernels::torch_dtype(dtype), device);
}

// What the kernel does not take (float32, odd widths, memory off the vectors' grid), or multiplies slower than torch's
// library, is a GEMM as well.
Tensor linear_gpu(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                  const kernels::Device& device) {
  if (!wants_gemv(x, weight, kernels::gpu::kMaxFewRows)) return aten_linear(x, weight, bias);
  const kernels::DType dtype = kernels::dtype_of(x);
  const Rows in = kernels::as_rows(x, device);
  const Tensor contiguous_bias = bias ? torch::stable::contiguous(*bias) : Tensor(weight);
  kernels::gpu::FewRows args{.dtype = dtype,
                             .x = in.data,
                             .x_stride = in.stride,
                             .rows = int(in.rows),
                             .in = int(in.cols),
                             .w = {{.data = weight.data_ptr(),
                                    .bias = bias ? contiguous_bias.data_ptr() : nullptr,
                                    .stride = weight.stride(0),
                                    .rows = int(weight.size(0))}},
                             .out = nullptr,
                             .out_stride = weight.size(0)};
  bool pays = kernels::gpu::fits_few_rows(args);
  kernels::run_on(
      device, [&](auto) { pays = pays && linear::cuda::few_rows_pay(args); }, [] {});
  if (!pays) return aten_linear(x, weight, bias);
  Tensor y = output(x, weight.size(0), dtype, device);
  args.out = y.data_ptr();
  kernels::run_on(
      device, [&](auto stream) { linear::cuda::few_rows(args, stream); }, [] {});
  return y;
}

// Many rows, of which the kernel makes float32 tile by tile.
bool wants_plain(const Tensor& x, const Tensor& weight) {
  const int64_t in = weight.size(1);
  return x.numel() > linear::kMaxRows * in && in > 0 && in % kernels::kPackedGroup == 0 && weight.stride(1) == 1 &&
         weight.size(0) > 0 && is_slow_in_torch(x);
}

Tensor linear_plain(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                    const kernels::Device& device) {
  const kernels::DType dtype = kernels::dtype_of(x);
  const Rows in = kernels::as_rows(x);
  const Tensor contiguous_bias = bias ? torch::stable::contiguous(*bias) : Tensor(weight);
  const int64_t out = weight.size(0);
  Tensor y = output(x, out, dtype, device);
  const kernels::PackedProduct args{.dtype = dtype,
                                    .packing = kernels::Packing::kNone,
                                    .x = nullptr,
                                    .w = weight.data_ptr(),
                                    .bias = bias ? contiguous_bias.data_ptr() : nullptr,
                                    .y = nullptr,
                                    .rows = 0,
                                    .in = in.cols,
                                    .w_stride = weight.stride(0) * kernels::size_of(dtype),
                                    .y_stride = out,
                                    .room = nullptr};
  linear::product_on_cpu(in, y, args, table(), table().plain);
  return y;
}

Tensor linear_op(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  check_arguments(x, weight, bias);
  const kernels::Device device = kernels::device_of(x);
  if (!device.is_cpu()) return linear_gpu(x, weight, bias, device);
  if (wants_plain(x, weight)) return linear_plain(x, weight, bias, device);
  if (!wants_gemv(x, weight, linear::kMaxRows)) return aten_linear(x, weight, bias);
  const kernels::DType dtype = kernels::dtype_of(x);
  const Rows in = kernels::as_rows(x);
  const Tensor contiguous_bias = bias ? torch::stable::contiguous(*bias) : Tensor(weight);
  const int64_t out = weight.size(0);
  Tensor y = output(x, out, dtype, device);

  thread_local std::vector<float> prepared;  // reused: a decode step makes hundreds of these calls
  prepared.resize(in.rows * in.cols);
  table().prepare(prepared.data(), in.data, dtype, in.rows, in.cols, in.stride);
  const linear::Gemv args{.dtype = dtype,
                          .x = prepared.data(),
                          .w = weight.data_ptr(),
                          .bias = bias ? contiguous_bias.data_ptr() : nullptr,
                          .y = y.data_ptr(),
                          .rows = in.rows,
                          .in = in.cols,
                          .out = out,
                          .w_stride = weight.stride(0)};
  const int64_t groups = (out + linear::kGroup - 1) / linear::kGroup;
  kernels::parallel_rows(groups, linear::kGroup * in.cols, [&](int64_t begin, int64_t end) {
    const int64_t last = end * linear::kGroup;
    table().gemv(args, begin * linear::kGroup, last < out ? last : out);
  });
  return y;
}

std::tuple<Tensor, Tensor, Tensor> linear_bwd(const Tensor& dy, const Tensor& x, const Tensor& weight, bool with_bias) {
  check(weight.dim() == 2 && x.dim() >= 1 && x.size(x.dim() - 1) == weight.size(1),
        "linear_bwd: expected x [..., in] and weight [out, in]; got ", kernels::shape_of(x), " and ",
        kernels::shape_of(weight), "; pass what linear was given");
  const int64_t in = weight.size(1), out = weight.size(0), rows = in > 0 ? x.numel() / in : 0;
  check(dy.dim() == x.dim() && dy.size(dy.dim() - 1) == out && dy.numel() == rows * out,
        "linear_bwd: expected dy [..., ", out, "] for x ", kernels::shape_of(x), "; got ", kernels::shape_of(dy),
        "; pass the gradient of linear's output");
  const kernels::Device device = kernels::device_of(dy);
  const kernels::DType dtype = kernels::dtype_of(dy);
  for (const Tensor* t : {&x, &weight}) kernels::check_device(*t, device), kernels::check_same_dtype(*t, dtype, "dy");
  const Tensor dy2 = torch::stable::reshape(dy, {rows, out}), x2 = torch::stable::reshape(x, {rows, in});
  const Tensor dx = torch::stable::reshape(aten_mm(dy2, weight), x.sizes());
  const Tensor dweight = aten_mm(torch::stable::transpose(dy2, 0, 1), x2);
  if (!with_bias) return {dx, dweight, kernels::empty({0}, dtype, device)};
  const int64_t first = 0;
  return {dx, dweight, torch::stable::sum(dy2, torch::headeronly::IntHeaderOnlyArrayRef(&first, 1), false)};
}

// Blocks: their scales are inside, so that there are no tensors beside the data.
Tensor packed_linear(const Tensor& x, const Tensor& data, const std::optional<Tensor>& scales,
                     const std::optional<Tensor>& zeros, const std::optional<Tensor>& global_scale,
                     const std::optional<Tensor>& table_of_codes, const std::optional<Tensor>& order, int64_t /*group*/,
                     int64_t /*group_rows*/, const std::string& format, int64_t columns,
                     const std::optional<Tensor>& bias) {
  for (const auto* t : {&scales, &zeros, &global_scale, &table_of_codes, &order}) {
    if (*t)
      check_tensor(false, **t, "absent; got one in ", kernels::dtype_name(**t), "; blocks of ", format, " hold all");
  }
  const linear::PackedCall call = linear::packed_call(x, data, format, columns, bias);
  const int64_t out = call.data.size(0);
  const auto fresh = [&] { return output(x, out, call.dtype, call.device); };
  if (call.x.rows == 0 || out == 0) return fresh();
#if defined(CUDA_KERNEL)
  if (!call.device.is_cpu()) {
    if (linear::takes_packed_rows(call)) return linear::packed_rows(call, x, fresh());
    return linear::by_unpacked_rows(call, x, fresh, aten_linear);
  }
#endif
  return linear::packed_on_cpu(call, fresh(), table());
}

// The choice of a greedy decoder, where the next step of a graph looks for it.
void largest(const Tensor& place, const Tensor& x, const std::optional<Tensor>& said, const std::optional<Tensor>& at) {
  constexpr const char* kOp = "largest_";
  const kernels::Device device = kernels::device_of(x);
  const kernels::DType dtype = kernels::dtype_of(x);
  const Rows in = kernels::as_rows(x, device);
  check_tensor(in.cols > 0 && in.cols <= INT32_MAX, x, "[..., elements], at least one; got ", kernels::shape_of(x),
               "; there is no argmax of none");
  const auto check_places = [&](const Tensor& t, bool fits, const auto&... parts) {
    kernels::check_device(t, device);
    check_tensor(fits && t.scalar_type() == kernels::ScalarType::Long && t.is_contiguous(), t, parts...,
                 " int64 without gaps; got ", kernels::shape_of(t), " in ", kernels::dtype_name(t),
                 "; make it for the rows of x ", kernels::shape_of(x));
  };
  check_places(place, place.numel() == in.rows, "as ", in.rows);
  check(said.has_value() == at.has_value(), kOp, ": expected said and at, or neither; got one; at says where");
  if (said) {
    check_places(*said, said->dim() == 2 && said->size(1) == in.rows, "[places, ", in.rows, "] as");
    check_places(*at, at->numel() == 1, "as one");
  }
  kernels::run_on(
      device,
      [&](auto stream) {
        linear::cuda::argmax({.dtype = dtype,
                              .x = in.data,
                              .x_stride = in.stride,
                              .rows = in.rows,
                              .cols = in.cols,
                              .place = static_cast<int64_t*>(place.data_ptr()),
                              .said = said ? static_cast<int64_t*>(said->data_ptr()) : nullptr,
                              .at = at ? static_cast<const int64_t*>(at->data_ptr()) : nullptr},
                             stream);
      },
      [&] {
        Tensor to = torch::stable::reshape(place, {in.rows});
        torch::stable::copy_(to, aten_argmax(torch::stable::reshape(x, {in.rows, in.cols})));
        if (!said) return;
        const int64_t row = *static_cast<const int64_t*>(at->data_ptr());
        check(row >= 0 && row < said->size(0), kOp, ": expected a place from 0 to ", said->size(0) - 1, "; got ", row,
              "; make said longer");
        std::memcpy(static_cast<int64_t*>(said->data_ptr()) + row * in.rows, to.data_ptr(),
                    size_t(in.rows) * sizeof(int64_t));
      });
}

// A token of each row, drawn by the row's settings (sample.h).
Tensor sample(const Tensor& x, const Tensor& settings) {
  const kernels::Device device = kernels::device_of(x);
  check_tensor(x.dim() == 2 && x.size(1) > 0 && x.size(1) <= INT32_MAX, x, "[rows, ids], at least one id; got ",
               kernels::shape_of(x), "; reshape it");
  const Rows in = kernels::as_rows(x, device);
  kernels::check_device(settings, device);
  check_tensor(settings.scalar_type() == kernels::ScalarType::Double && settings.dim() == 2 &&
                   settings.size(0) == in.rows && settings.size(1) == linear::kSettings && settings.is_contiguous(),
               settings, "[", in.rows, ", ", int64_t{linear::kSettings},
               "], float64 without gaps: scale, top_k, top_p, log of min_p, uniform; got ", kernels::shape_of(settings),
               " in ", kernels::dtype_name(settings), "; make them for these rows");
  const int64_t sizes[] = {in.rows};
  Tensor ids = kernels::empty_like_shape(sizes, 1, int32_t(kernels::ScalarType::Long), device);
  const linear::Sample args{.dtype = kernels::dtype_of(x),
                            .x = in.data,
                            .x_stride = in.stride,
                            .rows = in.rows,
                            .cols = in.cols,
                            .settings = static_cast<const double*>(settings.data_ptr()),
                            .ids = static_cast<int64_t*>(ids.data_ptr())};
  kernels::run_on(
      device, [&](auto stream) { linear::cuda::sample(args, stream); },
      [&] {
        kernels::parallel_rows(in.rows, in.cols, [&](int64_t begin, int64_t end) {
          std::vector<float> scores(size_t(in.cols));
          for (int64_t row = begin; row < end; ++row) {
            const auto* x_row = static_cast<const char*>(args.x) + row * args.x_stride * kernels::size_of(args.dtype);
            table().widen(scores.data(), x_row, args.dtype, 1, args.cols, args.cols);
            args.ids[row] = linear::cpu::draw(scores, args.settings + row * linear::kSettings);
          }
        });
      });
  return ids;
}

constexpr std::array kOps{
    kernels::op<&linear_op>("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor"),
    kernels::op<&largest>("largest_(Tensor(a!) place, Tensor x, Tensor(b!)? said=None, Tensor? at=None) -> ()"),
    kernels::op<&sample>("sample(Tensor x, Tensor settings) -> Tensor"),
    kernels::op<&packed_linear>(
        "packed_linear(Tensor x, Tensor data, Tensor? scales, Tensor? zeros, Tensor? global_scale, Tensor? table, "
        "Tensor? order, int group, int group_rows, str format, int columns, Tensor? bias) -> Tensor"),
    kernels::op<&linear_bwd>(
        "linear_bwd(Tensor dy, Tensor x, Tensor weight, bool with_bias) -> (Tensor dx, Tensor dweight, Tensor dbias)"),
};
const kernels::Library<kOps> library;

}  // namespace
