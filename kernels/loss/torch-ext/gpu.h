// Both losses where the logits are on a GPU: nothing here waits for it.
#pragma once

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>

#include <optional>

#include "kernels/common/torch/gemm.h"
#include "kernels/loss/cuda/loss.h"
#include "kernels/loss/torch-ext/options.h"
#include "kernels/loss/torch-ext/sum_product.h"

namespace loss::gpu {

using kernels::Device;
using kernels::Rows;
using kernels::Stream;
using kernels::Window;

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

inline Tensor reduced(const Tensor& row_loss, const Targets& t, int64_t vocab, const Options& o, const Device& device,
                      Stream stream) {
  const bool none = o.reduction == Reduction::kNone;
  Tensor out = none ? row_loss : kernels::empty({}, DType::kFloat32, device);
  cuda::reduce({.row_loss = floats(row_loss),
                .target = t.data,
                .out = none ? nullptr : floats(out),
                .rows = row_loss.size(0),
                .vocab = vocab,
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
  int64_t chunk_bytes;  // of logits at once; 0: cuda::kChunkBytes
  bool gradients, float32_dweight;
  const float *dloss_rows, *dloss;  // a number a row, or one; null: 1
  const float* known_lse;           // [rows, 2] of an earlier call, or null
  bool predicted;
};
struct LinearLoss {
  Tensor loss, lse;                // reduced; [rows, 2] float32
  Tensor dhidden, dweight, dbias;  // like hidden, weight, bias; [0] where not wanted
  Tensor predicted;                // [rows] int64; [0] where not wanted
};

inline void multiply(const Tensor& out, const Tensor& a, const Tensor& b) {
  TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_mm_out(out.get(), a.get(), b.get()));
}
inline void multiply_add(const Tensor& out, const Tensor& add, const Tensor& a, const Tensor& b) {
  TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_addmm_out(out.get(), add.get(), a.get(), b.get(), 1.0, 1.0));
}

// out (+)= a^T b by `product`, or where it does not take these by torch's. out and b contiguous in columns.
inline void add_product(const SumProduct& product, const Tensor& out, const Window& a, const Tensor& b, bool add,
                        DType dtype, const Device& device, Stream stream) {
  if (product(out.data_ptr(), a.data, b.data_ptr(), add, stream)) return;
  const Tensor transposed = a.transposed().tensor(dtype, device);
  if (add)
    multiply_add(out, out, transposed, b);
  else
    multiply(out, transposed, b);
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
      multiply(Window{block_.data_ptr(), n, dim, dim}.tensor(dtype_, device), some.transposed().tensor(dtype_, device),
               hidden);
      cuda::accumulate({dtype_, block_.data_ptr(), floats(sum_) + begin * dim, 1.f, first}, n * dim, stream);
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
// Each GEMM sums in float32. The first rows' logits may lie in dweight's own memory.
class Linear {
 public:
  Linear(const Inputs& in, const Options& o, const Wanted& wanted, const Device& device, Stream stream);
  LinearLoss run();

 private:
  Window hidden_rows(int64_t first, int64_t n) const {
    return {static_cast<char*>(hidden_.data) + first * hidden_.stride * size_, n, dim_, hidden_.stride};
  }
  Window dhidden_rows(int64_t first, int64_t n) const { return {at(result_.dhidden, first * dim_), n, dim_, dim_}; }
  char* at(const Tensor& t, int64_t element) const { return static_cast<char*>(t.data_ptr()) + element * size_; }
  Tensor tensor(const Window& w) const { return w.tensor(dtype_, device_); }
  const float* row_scale() const { return scale_last_ ? nullptr : data_of(scale_); }
  int64_t rows_in_dweight() const;
  void predict(int64_t first, int64_t n, const Tensor& logits, int64_t vocab_dim);
  LossRows loss_args(int64_t first, const Window& logits, int64_t n) const;
  void in_dweight(int64_t n);
  void chunk(int64_t first, int64_t n);
  void add_to_dweight(const Window& dlogits, const Tensor& hidden);
  void finish();

  const Inputs& in_;
  Options o_;
  Wanted wanted_;
  Device device_;
  Stream stream_;
  Rows hidden_, weight_;
  DType dtype_;
  int64_t rows_, dim_, vocab_, size_, bytes_;
  Targets target_;
  Tensor w_, row_loss_, logits_;
  LinearLoss result_;
  std::optional<Tensor> scale_, bias_sum_;
  std::optional<WideSum> wide_;
  std::optional<SumProduct> sum_product_;
  bool scale_last_, begun_ = false;  // begun: dweight holds a sum
};

inline Linear::Linear(const Inputs& in, const Options& o, const Wanted& wanted, const Device& device, Stream stream)
    : in_(in),
      o_(o),
      wanted_(wanted),
      device_(device),
      stream_(stream),
      hidden_(kernels::as_rows(in.hidden, device)),
      weight_(kernels::as_rows(in.weight, device)),
      dtype_(kernels::dtype_of(in.hidden)),
      rows_(hidden_.rows),
      dim_(hidden_.cols),
      vocab_(in.weight.size(0)),
      size_(kernels::size_of(dtype_)),
      bytes_(wanted.chunk_bytes > 0 ? wanted.chunk_bytes : cuda::kChunkBytes) {
  check_linear(in.hidden, in.weight, in.bias);
  check_classes(o, vocab_, device);
  if (in.bias) kernels::check_device(*in.bias, device);
  target_ = targets(in.target, rows_, device);
  w_ = tensor(Window{weight_.data, vocab_, dim_, weight_.stride});
  row_loss_ = kernels::empty({rows_}, DType::kFloat32, device);
  result_.lse = kernels::empty({rows_, 2}, DType::kFloat32, device);
  result_.predicted = empty_words(wanted.predicted ? rows_ : 0, device);
  const bool gradients = wanted.gradients;
  const bool sums_wide = gradients && wanted.float32_dweight && dtype_ != DType::kFloat32 &&
                         rows_ > cuda::chunk_rows(rows_, vocab_, size_, bytes_);
  const auto empty_if = [&](bool there, std::initializer_list<int64_t> sizes) {
    return there ? kernels::empty(sizes, dtype_, device) : kernels::empty({0}, dtype_, device);
  };
  result_.dhidden = empty_if(gradients, {rows_, dim_});
  result_.dweight = empty_if(gradients && !sums_wide, {vocab_, dim_});
  result_.dbias = empty_if(gradients && in.bias, {vocab_});
  // Small gradients divided by many rows would be lost to float16: there the sums are scaled, else the rows.
  scale_ = factor(target_, wanted.dloss, rows_, o, device, stream);
  scale_last_ = dtype_ == DType::kFloat16 && scale_.has_value();
  if (gradients && in.bias) {
    bias_sum_ = kernels::empty({vocab_}, DType::kFloat32, device);
    torch::stable::zero_(*bias_sum_);
  }
  if (gradients && rows_ == 0) torch::stable::zero_(result_.dweight);
  if (sums_wide) wide_.emplace(vocab_, dim_, dtype_, device);
}

inline LinearLoss Linear::run() {
  const int64_t first = rows_in_dweight();
  if (first > 0) in_dweight(first);
  const int64_t most = cuda::chunk_rows(rows_ - first, vocab_, size_, bytes_);
  logits_ = kernels::empty({most, vocab_}, dtype_, device_);
  for (int64_t row = first; row < rows_; row += most) chunk(row, std::min(most, rows_ - row));
  logits_ = Tensor();  // given back before the casts below ask for memory
  finish();
  return std::move(result_);
}

inline LossRows Linear::loss_args(int64_t first, const Window& logits, int64_t n) const {
  const float* lse = wanted_.known_lse != nullptr ? wanted_.known_lse : floats(result_.lse);
  return with_options({.dtype = dtype_,
                       .logits = logits.data,
                       .logits_stride = logits.row_stride,
                       .dlogits = wanted_.gradients ? logits.data : nullptr,
                       .dlogits_stride = logits.row_stride,
                       .target = target_.data + first,
                       .loss = floats(row_loss_) + first,
                       .lse = const_cast<float*>(lse) + 2 * first,
                       .dloss = wanted_.dloss_rows == nullptr ? nullptr : wanted_.dloss_rows + first,
                       .grad_scale = 1.f,
                       .lse_known = wanted_.known_lse != nullptr,
                       .rows = n,
                       .vocab = vocab_},
                      o_);
}

inline void Linear::predict(int64_t first, int64_t n, const Tensor& logits, int64_t vocab_dim) {
  if (!wanted_.predicted) return;
  Tensor words = torch::stable::narrow(result_.predicted, 0, first, n);
  torch::stable::copy_(words, highest(logits, vocab_dim));
}

// Rows whose logits fit there: as many as hidden has columns, in whole blocks of the kernel. 0 where all rows are one
// chunk, where dweight is not what is written in the end, and where some rows are left for chunks that are long enough
// for GEMMs to hide dweight's way through memory; and with the two options that its kernels do not know.
inline int64_t Linear::rows_in_dweight() const {
  constexpr int64_t kLong = 1024;
  const bool plain = !o_.token_scaling && !o_.class_sum.has_value();
  const bool fits = wanted_.gradients && !wide_ && !in_.bias && vocab_ <= INT32_MAX && plain;
  const int64_t chunk = cuda::chunk_rows(rows_, vocab_, size_, bytes_);
  const int64_t n = std::min(rows_, dim_) / cuda::kColumnRows * cuda::kColumnRows;
  if (!fits || rows_ <= chunk || (n < rows_ && chunk >= kLong)) return 0;
  return vocab_ * (dim_ - n) * size_ % kernels::kVectorBytes == 0 ? n : 0;
}

// Transposed, [vocab, n] at the end of dweight. Row v of dweight needs row v of their gradients and no other, and it
// ends where row v + 1 of them begins, or before. So dweight is written from the first row to the last, each block of
// the gradients copied out of the way first.
inline void Linear::in_dweight(int64_t n) {
  const Window z{at(result_.dweight, vocab_ * (dim_ - n)), vocab_, n, n};
  const Tensor h = tensor(hidden_rows(0, n));
  multiply(tensor(z), w_, tensor(hidden_rows(0, n).transposed()));
  predict(0, n, tensor(z), 0);
  {
    const LossRows args = loss_args(0, z, n);
    const Tensor scratch = kernels::empty({cuda::column_scratch(args)}, DType::kFloat32, device_);
    cuda::columns(args, row_scale(), floats(scratch), stream_);
  }
  multiply(tensor(dhidden_rows(0, n)), tensor(z.transposed()), w_);
  constexpr int64_t kMaxBlock = 4096;  // GEMMs near their peak
  const int64_t block = std::clamp<int64_t>(bytes_ / (n * size_), 1, std::min(kMaxBlock, vocab_));
  const Tensor copied = kernels::empty({block, n}, dtype_, device_);
  for (int64_t v = 0; v < vocab_; v += block) {
    const int64_t some = std::min(block, vocab_ - v);
    cuda::copy(copied.data_ptr(), static_cast<char*>(z.data) + v * n * size_, some * n * size_, stream_);
    multiply(tensor(Window{at(result_.dweight, v * dim_), some, dim_, dim_}),
             tensor(Window{copied.data_ptr(), some, n, n}), h);
  }
  begun_ = true;
}

inline void Linear::chunk(int64_t first, int64_t n) {
  const Window z{logits_.data_ptr(), n, vocab_, vocab_};
  const Tensor logits = tensor(z), h = tensor(hidden_rows(first, n));
  const Tensor w_transposed = tensor(Window{weight_.data, vocab_, dim_, weight_.stride}.transposed());
  if (in_.bias)
    multiply_add(logits, *in_.bias, h, w_transposed);
  else
    multiply(logits, h, w_transposed);
  predict(first, n, logits, 1);
  cuda::rows(loss_args(first, z, n), row_scale(), stream_);
  if (!wanted_.gradients) return;
  multiply(tensor(dhidden_rows(first, n)), logits, w_);
  if (wide_)
    wide_->add(z, h, !begun_, device_, stream_);
  else
    add_to_dweight(z, h);
  begun_ = true;
  if (bias_sum_) {
    cuda::column_sum(
        {.dtype = dtype_, .x = z.data, .stride = vocab_, .rows = n, .sum = floats(*bias_sum_), .scale = 1.f}, vocab_,
        stream_);
  }
}

inline void Linear::add_to_dweight(const Window& z, const Tensor& h) {
  if (!sum_product_ || sum_product_->terms() != z.rows) sum_product_.emplace(dtype_, vocab_, dim_, z.rows, h.stride(0));
  add_product(*sum_product_, result_.dweight, z, h, begun_, dtype_, device_, stream_);
}

inline void Linear::finish() {
  if (wanted_.gradients && scale_last_) {
    const auto scaled = [&](DType dtype, const Tensor& t) {
      cuda::multiply(dtype, t.data_ptr(), t.numel(), data_of(scale_), stream_);
    };
    scaled(dtype_, result_.dhidden);
    if (wide_)
      scaled(DType::kFloat32, wide_->sum());
    else
      scaled(dtype_, result_.dweight);
    if (bias_sum_) scaled(DType::kFloat32, *bias_sum_);
  }
  if (wide_) result_.dweight = torch::stable::to(wide_->sum(), in_.hidden.scalar_type());
  if (bias_sum_) result_.dbias = torch::stable::to(*bias_sum_, in_.hidden.scalar_type());
  if (wanted_.known_lse == nullptr) result_.loss = reduced(row_loss_, target_, vocab_, o_, device_, stream_);
}

}  // namespace loss::gpu
