// Schemas, checks and registrations: torch's stable ABI only. The formulas are in probability.h.
#include <optional>

#include "kernels/common/cpu/nontemporal.h"
#include "kernels/common/torch/ops.h"
#include "kernels/probability/cuda/probability.h"

namespace probability {
namespace {

using kernels::as_rows;
using kernels::check;
using kernels::check_tensor;
using kernels::Device;
using kernels::device_of;
using kernels::dtype_of;
using kernels::Rows;
using kernels::Tensor;
using Labels = std::optional<Tensor>;

const Table& table() {
  static const Table& chosen = HOTSWAP_CHOOSE_TABLE(probability);
  return chosen;
}

constexpr int64_t kGrain = 4096;  // numbers a thread, at least: exponentials and logarithms

void check_alike(const Tensor& x, const Tensor& other, const char* x_name) {
  kernels::check_device(other, device_of(x));
  kernels::check_same_shape(x, other, x_name);
  kernels::check_same_dtype(other, dtype_of(x), x_name);
}

// ---- softmax, sparsemax: x -> y; (dy, y) -> dx

Tensor softmax_of(bool sparse, const Tensor& x, const Tensor* dy) {
  const DType dtype = dtype_of(x);
  const Device device = device_of(x);
  if (dy != nullptr) check_alike(x, *dy, "y");
  const Rows in = as_rows(x, device);
  const std::optional<Rows> gradient = dy == nullptr ? std::nullopt : std::optional(as_rows(*dy, device));
  Tensor out = kernels::empty_like(x, dtype);
  const Softmax args{.dtype = dtype,
                     .sparse = sparse,
                     .x = in.data,
                     .x_stride = in.stride,
                     .dy = gradient ? gradient->data : nullptr,
                     .dy_stride = gradient ? gradient->stride : 0,
                     .out = out.data_ptr(),
                     .rows = in.rows,
                     .cols = in.cols,
                     .stream = kernels::wants_stream(in.rows * in.cols * kernels::size_of(dtype))};
  kernels::run_on(
      device, [&](auto stream) { cuda::softmax(args, stream); },
      [&] {
        kernels::parallel_rows(
            in.rows, in.cols, [&](int64_t begin, int64_t end) { table().softmax(args, begin, end); }, kGrain);
      });
  return out;
}

template <bool kSparse>
Tensor forward(const Tensor& x) {
  return softmax_of(kSparse, x, nullptr);
}
template <bool kSparse>
Tensor backward(const Tensor& dy, const Tensor& y) {
  return softmax_of(kSparse, y, &dy);
}

// ---- divergences: a number a row, or one an element

int64_t signs_of(int64_t cols) { return (cols + 3) / 4; }  // bytes a row

struct Wanted {
  Kind kind;
  double parameter;
  bool by_element;
};

// The gradient of the op's output.
Tensor checked_dloss(const Tensor& dloss, bool by_element, int64_t rows, int64_t cols, const Device& device) {
  kernels::check_device(dloss, device);
  check_tensor(dloss.scalar_type() == kernels::ScalarType::Float && dloss.numel() == (by_element ? rows * cols : rows),
               dloss, "as float32, one number ", by_element ? "an element" : "a row", "; got ",
               kernels::shape_of(dloss), " of ", kernels::dtype_name(dloss), "; pass the gradient of the op's output");
  return dloss.is_contiguous() ? dloss : torch::stable::contiguous(dloss);
}

Tensor divergence(const Wanted& w, const Tensor& x, const Tensor& target, const Labels& labels, int64_t ignore_index,
                  const Tensor* dloss, Tensor* signs = nullptr) {
  const DType dtype = dtype_of(x);
  const Device device = device_of(x);
  check_alike(x, target, "x");
  const Rows in = as_rows(x, device), other = as_rows(target, device);
  std::optional<Tensor> label;
  if (labels.has_value()) {
    kernels::check_device(*labels, device);
    check_tensor(labels->scalar_type() == kernels::ScalarType::Long && labels->dim() == 1 && labels->size(0) == in.rows,
                 *labels, "[", in.rows, "] as int64, one a row; got ", kernels::shape_of(*labels), " of ",
                 kernels::dtype_name(*labels), "; flatten and cast them");
    label = labels->is_contiguous() ? *labels : torch::stable::contiguous(*labels);
  }
  Divergence args{.dtype = dtype,
                  .kind = w.kind,
                  .parameter = static_cast<float>(w.parameter),
                  .x = in.data,
                  .target = other.data,
                  .x_stride = in.stride,
                  .target_stride = other.stride,
                  .label = label ? static_cast<const int64_t*>(label->data_ptr()) : nullptr,
                  .ignore_index = ignore_index,
                  .by_element = w.by_element,
                  .loss = nullptr,
                  .dloss = nullptr,
                  .dx = nullptr,
                  .signs = nullptr,
                  .rows = in.rows,
                  .cols = in.cols};
  Tensor out, given;
  if (dloss == nullptr) {
    out = w.by_element ? kernels::empty_like(x, DType::kFloat32) : kernels::empty({in.rows}, DType::kFloat32, device);
    args.loss = static_cast<float*>(out.data_ptr());
    if (signs != nullptr) {
      *signs =
          kernels::empty_like_shape(std::array{in.rows, signs_of(in.cols)}.data(), 2, aoti_torch_dtype_uint8(), device);
      args.signs = static_cast<uint8_t*>(signs->data_ptr());
    }
  } else {
    given = checked_dloss(*dloss, w.by_element, in.rows, in.cols, device);
    args.dloss = static_cast<const float*>(given.data_ptr());
    out = kernels::empty_like(x, dtype);
    args.dx = out.data_ptr();
  }
  kernels::run_on(
      device, [&](auto stream) { cuda::divergence(args, stream); },
      [&] {
        const auto run = dloss == nullptr ? table().divergence_forward : table().divergence_backward;
        kernels::parallel_rows(
            in.rows, in.cols, [&](int64_t begin, int64_t end) { run(args, begin, end); }, kGrain);
      });
  return out;
}

Wanted kl_wanted(const char* op, bool log_target, double eps, bool by_element) {
  check(eps >= 0, op, ": expected eps >= 0; got ", eps, "; 1e-10 is usual");
  return {log_target ? Kind::kForward : Kind::kKl, eps, by_element};
}
Wanted jsd_wanted(const char* op, double beta) {
  check(beta >= 0 && beta <= 1, op, ": expected beta from 0 to 1; got ", beta,
        "; pass 0.5 for the symmetric divergence");
  return {jsd_kind(beta), beta, false};
}

Tensor kl_div(const Tensor& x, const Tensor& target, const Labels& labels, int64_t ignore_index, bool log_target,
              double eps, bool by_element) {
  return divergence(kl_wanted("kl_div", log_target, eps, by_element), x, target, labels, ignore_index, nullptr);
}
Tensor kl_div_bwd(const Tensor& dloss, const Tensor& x, const Tensor& target, const Labels& labels,
                  int64_t ignore_index, bool log_target, double eps, bool by_element) {
  return divergence(kl_wanted("kl_div_bwd", log_target, eps, by_element), x, target, labels, ignore_index, &dloss);
}
Tensor jsd(const Tensor& x, const Tensor& target, const Labels& labels, int64_t ignore_index, double beta) {
  return divergence(jsd_wanted("jsd", beta), x, target, labels, ignore_index, nullptr);
}
Tensor jsd_bwd(const Tensor& dloss, const Tensor& x, const Tensor& target, const Labels& labels, int64_t ignore_index,
               double beta) {
  return divergence(jsd_wanted("jsd_bwd", beta), x, target, labels, ignore_index, &dloss);
}
Tensor tvd(const Tensor& x, const Tensor& target, const Labels& labels, int64_t ignore_index, bool by_element) {
  return divergence({Kind::kTvd, 0, by_element}, x, target, labels, ignore_index, nullptr);
}
Tensor tvd_bwd(const Tensor& dloss, const Tensor& x, const Tensor& target, const Labels& labels, int64_t ignore_index,
               bool by_element) {
  return divergence({Kind::kTvd, 0, by_element}, x, target, labels, ignore_index, &dloss);
}

// ---- tvd for training: the loss, and the signs that are all that its gradient is made of

std::tuple<Tensor, Tensor> tvd_fwd(const Tensor& x, const Tensor& target, const Labels& labels, int64_t ignore_index,
                                   bool by_element) {
  Tensor signs;
  Tensor loss = divergence({Kind::kTvd, 0, by_element}, x, target, labels, ignore_index, nullptr, &signs);
  return {std::move(loss), std::move(signs)};
}

Tensor tvd_fwd_bwd(const Tensor& dloss, const Tensor& signs, int64_t cols, kernels::ScalarType type, bool by_element) {
  const Device device = device_of(signs);
  check_tensor(signs.scalar_type() == kernels::ScalarType::Byte && signs.dim() == 2 &&
                   signs.size(1) == signs_of(cols) && signs.is_contiguous(),
               signs, "[rows, ", signs_of(cols), "] as uint8; got ", kernels::shape_of(signs), " of ",
               kernels::dtype_name(signs), "; pass what tvd_fwd returned");
  const int64_t rows = signs.size(0);
  const Tensor given = checked_dloss(dloss, by_element, rows, cols, device);
  check(
      type == kernels::ScalarType::Float || type == kernels::ScalarType::BFloat16 || type == kernels::ScalarType::Half,
      "tvd_fwd_bwd: expected dtype float32, bfloat16 or float16; got ", kernels::dtype_name(type),
      "; pass the dtype of tvd_fwd's x");
  const DType dtype = type == kernels::ScalarType::Float      ? DType::kFloat32
                      : type == kernels::ScalarType::BFloat16 ? DType::kBFloat16
                                                              : DType::kFloat16;
  Tensor dx = kernels::empty({rows, cols}, dtype, device);
  const Divergence args{.dtype = dtype,
                        .kind = Kind::kTvd,
                        .parameter = 0,
                        .x = nullptr,
                        .target = nullptr,
                        .x_stride = 0,
                        .target_stride = 0,
                        .label = nullptr,
                        .ignore_index = 0,
                        .by_element = by_element,
                        .loss = nullptr,
                        .dloss = static_cast<const float*>(given.data_ptr()),
                        .dx = dx.data_ptr(),
                        .signs = static_cast<uint8_t*>(signs.data_ptr()),
                        .rows = rows,
                        .cols = cols};
  kernels::run_on(
      device, [&](auto stream) { cuda::divergence(args, stream); },
      [&] {
        kernels::parallel_rows(
            rows, cols, [&](int64_t begin, int64_t end) { table().divergence_backward(args, begin, end); }, kGrain);
      });
  return dx;
}

// ---- jsd of the softmax of logits, whose gradients take their place

Tensor jsd_of_logits(const Tensor& logits, const Tensor& target, double beta, double temperature) {
  const char* op = "jsd_of_logits_";
  check_alike(logits, target, "logits");
  check(temperature > 0, op, ": expected a temperature > 0; got ", temperature, "; 1 leaves the logits as they are");
  const Device device = device_of(logits);
  const Rows in = as_rows(logits, device), other = as_rows(target, device);
  check_tensor(in.data == logits.data_ptr(), logits,
               "with contiguous rows; got strides that cannot be used in place; call .contiguous()");
  Tensor loss = kernels::empty({in.rows}, DType::kFloat32, device);
  const OfLogits args{.dtype = dtype_of(logits),
                      .kind = jsd_wanted(op, beta).kind,
                      .beta = static_cast<float>(beta),
                      .scale = static_cast<float>(1 / temperature),
                      .z = in.data,
                      .z_stride = in.stride,
                      .target = other.data,
                      .target_stride = other.stride,
                      .loss = static_cast<float*>(loss.data_ptr()),
                      .rows = in.rows,
                      .cols = in.cols};
  kernels::run_on(
      device, [&](auto stream) { cuda::of_logits(args, stream); },
      [&] {
        kernels::parallel_rows(
            in.rows, in.cols, [&](int64_t begin, int64_t end) { table().of_logits(args, begin, end); }, kGrain);
      });
  return loss;
}

constexpr std::array kOps{
    kernels::op<&forward<false>>("softmax(Tensor x) -> Tensor"),
    kernels::op<&backward<false>>("softmax_bwd(Tensor dy, Tensor y) -> Tensor"),
    kernels::op<&forward<true>>("sparsemax(Tensor x) -> Tensor"),
    kernels::op<&backward<true>>("sparsemax_bwd(Tensor dy, Tensor y) -> Tensor"),
    kernels::op<&kl_div>("kl_div(Tensor x, Tensor target, Tensor? labels, int ignore_index, bool log_target, "
                         "float eps, bool by_element) -> Tensor"),
    kernels::op<&kl_div_bwd>("kl_div_bwd(Tensor dloss, Tensor x, Tensor target, Tensor? labels, int ignore_index, "
                             "bool log_target, float eps, bool by_element) -> Tensor"),
    kernels::op<&jsd>("jsd(Tensor x, Tensor target, Tensor? labels, int ignore_index, float beta) -> Tensor"),
    kernels::op<&jsd_bwd>("jsd_bwd(Tensor dloss, Tensor x, Tensor target, Tensor? labels, int ignore_index, "
                          "float beta) -> Tensor"),
    kernels::op<&tvd>("tvd(Tensor x, Tensor target, Tensor? labels, int ignore_index, bool by_element) -> Tensor"),
    kernels::op<&tvd_bwd>("tvd_bwd(Tensor dloss, Tensor x, Tensor target, Tensor? labels, int ignore_index, "
                          "bool by_element) -> Tensor"),
    kernels::op<&tvd_fwd>("tvd_fwd(Tensor x, Tensor target, Tensor? labels, int ignore_index, bool by_element) -> "
                          "(Tensor loss, Tensor signs)"),
    kernels::op<&tvd_fwd_bwd>("tvd_fwd_bwd(Tensor dloss, Tensor signs, int cols, ScalarType dtype, bool by_element) -> "
                              "Tensor"),
    kernels::op<&jsd_of_logits>("jsd_of_logits_(Tensor(a!) logits, Tensor target, float beta, float temperature) -> "
                                "Tensor"),
};
const kernels::Library<kOps> library;

}  // namespace
}  // namespace probability
