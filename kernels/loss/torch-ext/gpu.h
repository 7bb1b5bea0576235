// Both losses where the logits are on a GPU: nothing here waits for it.
#pragma once

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>

#include <optional>

#include "kernels/loss/loss_cuda.h"
#include "kernels/loss/torch-ext/options.h"

namespace loss::gpu {

using kernels::Device;
using kernels::Rows;
using kernels::Stream;

inline float* floats(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }

struct Targets {
  Tensor tensor;
  const int64_t* data;
};
inline Targets targets(const Tensor& target, int64_t rows, const Device& device) {
  check_target(target, rows, device);
  Tensor t = target.is_contiguous() ? target : torch::stable::contiguous(target);
  const auto* data = static_cast<const int64_t*>(t.data_ptr());
  return {std::move(t), data};
}

// dloss checked: a number a row for reduction none, else one.
struct Incoming {
  Tensor tensor;
  const float *rows, *one;
};
inline Incoming incoming(const Tensor& dloss, const Options& o, int64_t rows, const Device& device) {
  check_dloss(dloss, o, rows, device);
  Tensor t = dloss.is_contiguous() ? dloss : torch::stable::contiguous(dloss);
  const float* data = floats(t);
  const bool each = o.reduction == Reduction::kNone;
  return {std::move(t), each ? data : nullptr, each ? nullptr : data};
}

inline Tensor reduced(const Tensor& row_loss, const Targets& t, const Options& o, const Device& device, Stream stream) {
  if (o.reduction == Reduction::kNone) return row_loss;
  Tensor out = kernels::empty({}, DType::kFloat32, device);
  cuda::reduce({.row_loss = floats(row_loss),
                .target = t.data,
                .out = floats(out),
                .rows = row_loss.size(0),
                .ignore_index = o.ignore_index,
                .mean = o.reduction == Reduction::kMean},
               stream);
  return out;
}

// What every gradient is multiplied by, on the GPU; undefined where it is 1.
inline std::optional<Tensor> factor(const Targets& t, const float* dloss, int64_t rows, const Options& o,
                                    const Device& device, Stream stream) {
  if (o.reduction == Reduction::kNone || (o.reduction == Reduction::kSum && dloss == nullptr)) return std::nullopt;
  Tensor out = kernels::empty({}, DType::kFloat32, device);
  cuda::scale({.target = t.data,
               .dloss = dloss,
               .out = floats(out),
               .rows = rows,
               .ignore_index = o.ignore_index,
               .mean = o.reduction == Reduction::kMean},
              stream);
  return out;
}
inline const float* data_of(const std::optional<Tensor>& t) { return t.has_value() ? floats(*t) : nullptr; }

// ---- linear cross-entropy
struct Inputs {
  const Tensor &hidden, &weight;      // [rows, dim], [vocab, dim]
  const std::optional<Tensor>& bias;  // [vocab]
  const Tensor& target;               // [rows]
};
struct Wanted {
  bool gradients, float32_dweight;
  const float *dloss_rows, *dloss;  // a number a row, or one; null: 1
  const float* known_lse;           // [rows] of an earlier call, or null
};
struct LinearLoss {
  Tensor loss, lse;                // reduced; [rows] float32
  Tensor dhidden, dweight, dbias;  // like hidden, weight, bias; [0] where not wanted
};

// A strided [rows, cols] window of the GPU's memory as a tensor: no dispatcher call, no autograd history.
struct Window {
  void* data;
  int64_t rows, cols, row_stride;

  Tensor tensor(DType dtype, const Device& device, bool transposed = false) const {
    const std::array<int64_t, 2> sizes = {transposed ? cols : rows, transposed ? rows : cols};
    const std::array<int64_t, 2> strides = {transposed ? 1 : row_stride, transposed ? row_stride : 1};
    AtenTensorHandle handle;
    TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob(
        data, 2, sizes.data(), strides.data(), 0, kernels::torch_dtype(dtype), device.type, device.index, &handle));
    return Tensor(handle);
  }
};
inline void multiply(const Tensor& out, const Tensor& a, const Tensor& b) {
  TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_mm_out(out.get(), a.get(), b.get()));
}
inline void multiply_add(const Tensor& out, const Tensor& add, const Tensor& a, const Tensor& b) {
  TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_addmm_out(out.get(), add.get(), a.get(), b.get(), 1.0, 1.0));
}

// dweight over all chunks where it is summed in float32: each chunk's product is made for some of the vocabulary at
// once, in the dtype, and joins the sum. Else the GEMM adds to dweight itself.
class WideSum {
 public:
  WideSum(int64_t vocab, int64_t dim, DType dtype, const Device& device)
      : dtype_(dtype),
        block_(kernels::empty({std::min(kBlock, vocab), dim}, dtype, device)),
        sum_(kernels::empty({vocab, dim}, DType::kFloat32, device)) {}

  // += dlogits^T @ hidden
  void add(const Window& dlogits, const Tensor& hidden, bool first, const Device& device, Stream stream) {
    const int64_t vocab = dlogits.cols, dim = block_.size(1);
    for (int64_t begin = 0; begin < vocab; begin += kBlock) {
      const int64_t n = std::min(kBlock, vocab - begin);
      const Window some{static_cast<char*>(dlogits.data) + begin * kernels::size_of(dtype_), dlogits.rows, n,
                        dlogits.row_stride};
      multiply(Window{block_.data_ptr(), n, dim, dim}.tensor(dtype_, device), some.tensor(dtype_, device, true),
               hidden);
      cuda::accumulate({dtype_, block_.data_ptr(), floats(sum_) + begin * dim, first}, n * dim, stream);
    }
  }
  const Tensor& sum() const { return sum_; }

 private:
  static constexpr int64_t kBlock = 16384;  // of the vocabulary: GEMMs near their peak
  DType dtype_;
  Tensor block_, sum_;
};

// Chunk by chunk: logits, in their place their gradients, from these dhidden and a part of dweight, which is summed in
// its own type unless float32 is asked for (few chunks; a float32 copy of it would be larger than a chunk of logits).
// Each GEMM sums in float32.
inline LinearLoss linear(const Inputs& in, const Options& o, const Wanted& wanted, const Device& device,
                         Stream stream) {
  const Rows hidden = kernels::as_rows(in.hidden, "linear_cross_entropy: hidden", device);
  const Rows weight = kernels::as_rows(in.weight, "linear_cross_entropy: weight", device);
  const int64_t rows = hidden.rows, dim = hidden.cols, vocab = in.weight.size(0);
  check_linear(in.hidden, in.weight, in.bias);
  if (in.bias) kernels::check_device(*in.bias, device, "linear_cross_entropy: bias");
  const Targets target = targets(in.target, rows, device);
  const DType dtype = kernels::dtype_of(in.hidden, "linear_cross_entropy: hidden");
  const int64_t size = kernels::size_of(dtype), chunk = cuda::chunk_rows(rows, vocab, size);
  const auto at = [&](const Tensor& t, int64_t element) { return static_cast<char*>(t.data_ptr()) + element * size; };

  const Tensor row_loss = kernels::empty({rows}, DType::kFloat32, device);
  LinearLoss result;
  result.lse = kernels::empty({rows}, DType::kFloat32, device);
  result.dhidden = wanted.gradients ? kernels::empty({rows, dim}, dtype, device) : kernels::empty({0}, dtype, device);
  const bool sums_wide = wanted.gradients && wanted.float32_dweight && dtype != DType::kFloat32 && rows > chunk;
  result.dweight =
      wanted.gradients && !sums_wide ? kernels::empty({vocab, dim}, dtype, device) : kernels::empty({0}, dtype, device);
  result.dbias = kernels::empty({wanted.gradients && in.bias ? vocab : 0}, dtype, device);
  // Small gradients divided by many rows would be lost to float16: there the sums are scaled, else the rows.
  const auto scale = factor(target, wanted.dloss, rows, o, device, stream);
  const bool scale_last = dtype == DType::kFloat16 && scale.has_value();
  std::optional<Tensor> bias_sum;
  if (wanted.gradients && in.bias) {
    bias_sum = kernels::empty({vocab}, DType::kFloat32, device);
    torch::stable::zero_(*bias_sum);
  }
  if (wanted.gradients && rows == 0) torch::stable::zero_(result.dweight);
  std::optional<WideSum> wide;
  if (sums_wide) wide.emplace(vocab, dim, dtype, device);
  Tensor logits = kernels::empty({chunk, vocab}, dtype, device);
  const Tensor w = Window{weight.data, vocab, dim, weight.stride}.tensor(dtype, device);
  const Tensor w_transposed = Window{weight.data, vocab, dim, weight.stride}.tensor(dtype, device, true);

  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t n = std::min(chunk, rows - first);
    const Window z{logits.data_ptr(), n, vocab, vocab};
    const Window h{static_cast<char*>(hidden.data) + first * hidden.stride * size, n, dim, hidden.stride};
    const Tensor z_tensor = z.tensor(dtype, device), h_tensor = h.tensor(dtype, device);
    if (in.bias)
      multiply_add(z_tensor, *in.bias, h_tensor, w_transposed);
    else
      multiply(z_tensor, h_tensor, w_transposed);
    float* lse = wanted.known_lse != nullptr ? const_cast<float*>(wanted.known_lse) : floats(result.lse);
    cuda::rows({.dtype = dtype,
                .logits = z.data,
                .logits_stride = vocab,
                .dlogits = wanted.gradients ? z.data : nullptr,
                .dlogits_stride = vocab,
                .target = target.data + first,
                .loss = floats(row_loss) + first,
                .lse = lse + first,
                .dloss = wanted.dloss_rows == nullptr ? nullptr : wanted.dloss_rows + first,
                .grad_scale = 1.f,
                .lse_known = wanted.known_lse != nullptr,
                .rows = n,
                .vocab = vocab,
                .ignore_index = o.ignore_index,
                .label_smoothing = static_cast<float>(o.label_smoothing),
                .softcap = static_cast<float>(o.softcap),
                .z_loss = static_cast<float>(o.z_loss)},
               scale_last ? nullptr : data_of(scale), stream);
    if (!wanted.gradients) continue;
    multiply(Window{at(result.dhidden, first * dim), n, dim, dim}.tensor(dtype, device), z_tensor, w);
    const Tensor z_transposed = z.tensor(dtype, device, true);
    if (wide)
      wide->add(z, h_tensor, first == 0, device, stream);
    else if (first == 0)
      multiply(result.dweight, z_transposed, h_tensor);
    else
      multiply_add(result.dweight, result.dweight, z_transposed, h_tensor);
    if (bias_sum) {
      cuda::column_sum(
          {.dtype = dtype, .x = z.data, .stride = vocab, .rows = n, .sum = floats(*bias_sum), .scale = 1.f}, vocab,
          stream);
    }
  }
  if (scale_last && wanted.gradients) {
    cuda::multiply(dtype, result.dhidden.data_ptr(), rows * dim, data_of(scale), stream);
    if (wide)
      cuda::multiply(DType::kFloat32, wide->sum().data_ptr(), vocab * dim, data_of(scale), stream);
    else
      cuda::multiply(dtype, result.dweight.data_ptr(), vocab * dim, data_of(scale), stream);
    if (bias_sum) cuda::multiply(DType::kFloat32, bias_sum->data_ptr(), vocab, data_of(scale), stream);
  }
  logits = Tensor();  // given back before the cast asks for memory
  if (wide) result.dweight = torch::stable::to(wide->sum(), in.hidden.scalar_type());
  if (bias_sum) result.dbias = torch::stable::to(*bias_sum, in.hidden.scalar_type());
  if (wanted.known_lse == nullptr) result.loss = reduced(row_loss, target, o, device, stream);
  return result;
}

}  // namespace loss::gpu
