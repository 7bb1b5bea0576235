// What both losses are asked for, checked; and how row losses become the result.
#pragma once

#include <limits>
#include <optional>

#include "kernels/common/torch/binding.h"
#include "kernels/loss/loss.h"

namespace loss {

using kernels::check;
using kernels::check_tensor;
using kernels::shape_of;
using kernels::Tensor;

enum class Reduction { kNone, kMean, kSum };

struct Options {
  int64_t ignore_index;
  double label_smoothing, softcap, z_loss;
  Reduction reduction;
  bool token_scaling;
  // [vocab] float32, and their sum where it is needed; or none. A mean divides by the number of rows that count:
  // torch's divides by the sum of their targets' weights, which is the same of weights whose mean over these targets
  // is 1.
  std::optional<Tensor> class_weight, class_sum;
};

inline const Table& table() {
  static const Table& chosen = HOTSWAP_CHOOSE_TABLE(loss);
  return chosen;
}

inline Options options(int64_t ignore_index, double label_smoothing, double softcap, double z_loss,
                       const std::string& reduction, const std::optional<Tensor>& class_weight, bool token_scaling) {
  check(label_smoothing >= 0 && label_smoothing <= 1, "cross_entropy: expected label_smoothing from 0 to 1; got ",
        label_smoothing, "; 0 switches it off");
  check(softcap >= 0 && softcap <= 3e38, "cross_entropy: expected a finite softcap >= 0; got ", softcap,
        "; 0 switches it off");
  check(z_loss - z_loss == 0, "cross_entropy: expected a finite z_loss; got ", z_loss, "; 0 switches it off");
  check(reduction == "mean" || reduction == "sum" || reduction == "none",
        "cross_entropy: expected reduction mean, sum or none; got \"", reduction, "\"; pass one of these");
  Options o{.ignore_index = ignore_index,
            .label_smoothing = label_smoothing,
            .softcap = softcap,
            .z_loss = z_loss,
            .reduction = reduction == "mean"  ? Reduction::kMean
                         : reduction == "sum" ? Reduction::kSum
                                              : Reduction::kNone,
            .token_scaling = token_scaling,
            .class_weight = std::nullopt,
            .class_sum = std::nullopt};
  if (class_weight.has_value()) {
    const Tensor& w = *class_weight;
    kernels::check_dtype(w, kernels::ScalarType::Float);
    o.class_weight = w.is_contiguous() ? w : torch::stable::contiguous(w);
    if (label_smoothing != 0) o.class_sum = torch::stable::sum(w);
  }
  return o;
}

inline void check_classes(const Options& o, int64_t vocab, const kernels::Device& device) {
  if (!o.class_weight.has_value()) return;
  const Tensor& w = *o.class_weight;
  kernels::check_device(w, device);
  check_tensor(w.dim() == 1 && w.size(0) == vocab, w, "[", vocab, "]; got ", shape_of(w),
               "; one number a word of the vocabulary");
}

// The rows, with what the options say.
inline LossRows with_options(LossRows rows, const Options& o) {
  const auto data = [](const std::optional<Tensor>& t) {
    return t.has_value() ? static_cast<const float*>(t->data_ptr()) : nullptr;
  };
  rows.ignore_index = o.ignore_index;
  rows.label_smoothing = static_cast<float>(o.label_smoothing);
  rows.softcap = static_cast<float>(o.softcap);
  rows.z_loss = static_cast<float>(o.z_loss);
  rows.class_weight = data(o.class_weight);
  rows.class_sum = data(o.class_sum);
  rows.token_scaling = o.token_scaling;
  return rows;
}

// The word of the highest logit in each row, int64. dim: the one of the vocabulary. Softcapping changes no order.
inline Tensor highest(const Tensor& logits, int64_t dim) {
  std::array<StableIValue, 3> stack{torch::stable::detail::from(logits),
                                    torch::stable::detail::from(std::optional<int64_t>(dim)),
                                    torch::stable::detail::from(false)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::argmax", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

inline Tensor empty_words(int64_t rows, const kernels::Device& device) {  // [rows] int64
  return kernels::empty_like_shape(&rows, 1, aoti_torch_dtype_int64(), device);
}

struct Targets {
  Tensor tensor;
  const int64_t* data;  // [rows]
  int64_t valid;        // rows that are not ignored
};

inline void check_target(const Tensor& target, int64_t rows, const kernels::Device& device) {
  check_tensor(target.dim() == 1 && target.size(0) == rows, target, "[", rows, "], one a row; got ", shape_of(target),
               "; flatten both alike");
  kernels::check_device(target, device);
  kernels::check_dtype(target, kernels::ScalarType::Long);
}

inline Targets targets(const Tensor& target, int64_t rows, int64_t vocab, const Options& o) {
  check_target(target, rows, kernels::cpu());
  Tensor t = target.is_contiguous() ? target : torch::stable::contiguous(target);
  const auto* data = static_cast<const int64_t*>(t.data_ptr());
  int64_t valid = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (data[row] == o.ignore_index) continue;
    check(data[row] >= 0 && data[row] < vocab, "cross_entropy: expected targets from 0 to ", vocab - 1,
          " or ignore_index ", o.ignore_index, "; got ", data[row], " in row ", row,
          "; check the labels against the vocabulary");
    ++valid;
  }
  return {std::move(t), data, valid};
}

// What a row's gradient is multiplied by when the gradient of the result is 1.
inline float gradient_scale(const Options& o, int64_t valid) {
  return o.reduction == Reduction::kMean && valid > 0 ? 1.f / static_cast<float>(valid) : 1.f;
}

// [rows] row losses to the result: themselves, their sum, or their mean over valid rows (nan where there are none).
inline Tensor reduce(const Tensor& row_loss, const Options& o, int64_t valid) {
  if (o.reduction == Reduction::kNone) return row_loss;
  const auto* loss = static_cast<const float*>(row_loss.data_ptr());
  double sum = 0;
  for (int64_t row = 0; row < row_loss.size(0); ++row) sum += loss[row];
  if (o.reduction == Reduction::kMean) sum = valid > 0 ? sum / valid : std::numeric_limits<double>::quiet_NaN();
  Tensor result = kernels::empty({}, DType::kFloat32);
  *static_cast<float*>(result.data_ptr()) = static_cast<float>(sum);
  return result;
}

// The gradient of the result: [rows] float32 for none, else one number.
struct Incoming {
  Tensor tensor;
  const float* rows;  // null unless a number a row
  float scale;
};

inline void check_dloss(const Tensor& dloss, const Options& o, int64_t rows, const kernels::Device& device) {
  kernels::check_device(dloss, device);
  kernels::check_dtype(dloss, kernels::ScalarType::Float);
  if (o.reduction == Reduction::kNone) {
    check_tensor(dloss.dim() == 1 && dloss.size(0) == rows, dloss, "[", rows, "] for reduction none; got ",
                 shape_of(dloss), "; pass the gradient of the row losses");
    return;
  }
  check_tensor(dloss.numel() == 1, dloss, "of one number; got ", shape_of(dloss), "; pass the gradient of the loss");
}

inline Incoming incoming(const Tensor& dloss, const Options& o, int64_t rows, int64_t valid) {
  check_dloss(dloss, o, rows, kernels::cpu());
  if (o.reduction == Reduction::kNone) {
    Tensor t = dloss.is_contiguous() ? dloss : torch::stable::contiguous(dloss);
    const auto* data = static_cast<const float*>(t.data_ptr());
    return {std::move(t), data, 1.f};
  }
  return {dloss, nullptr, *static_cast<const float*>(dloss.data_ptr()) * gradient_scale(o, valid)};
}

inline Tensor checked_lse(const Tensor& lse, int64_t rows, const kernels::Device& device) {
  kernels::check_device(lse, device);
  check_tensor(
      lse.scalar_type() == kernels::ScalarType::Float && lse.dim() == 2 && lse.size(0) == rows && lse.size(1) == 2, lse,
      "[", rows, ", 2] float32, as the forward gave it; got ", shape_of(lse), " of ", kernels::dtype_name(lse),
      "; pass the second output of the forward");
  return lse.is_contiguous() ? lse : torch::stable::contiguous(lse);
}

inline void check_linear(const Tensor& hidden, const Tensor& weight, const std::optional<Tensor>& bias) {
  check_tensor(hidden.dim() == 2, hidden, "[rows, dim]; got ", shape_of(hidden), "; flatten it");
  check_tensor(weight.dim() == 2 && weight.size(1) == hidden.size(1), weight, "[vocab, ", hidden.size(1),
               "] as hidden's ", shape_of(hidden), " has it; got ", shape_of(weight),
               "; check that the head belongs to the model");
  const DType dtype = kernels::dtype_of(hidden);
  kernels::check_same_dtype(weight, dtype, "hidden");
  if (!bias.has_value()) return;
  kernels::check_same_dtype(*bias, dtype, "hidden");
  check_tensor(bias->dim() == 1 && bias->size(0) == weight.size(0), *bias, "[", weight.size(0), "]; got ",
               shape_of(*bias), "; reshape it");
}

inline void check_chunk_bytes(int64_t bytes) {
  check(bytes >= 0, "linear_cross_entropy: expected chunk_bytes >= 0; got ", bytes, "; 0 is what is usual");
}

// The row losses and gradients of n rows, over torch's threads.
inline void run_rows(const LossRows& a) {
  kernels::parallel_rows(a.rows, a.vocab, [&](int64_t begin, int64_t end) { table().rows(a, begin, end); });
}

}  // namespace loss
