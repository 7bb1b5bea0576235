// Schemas, checks and registrations: torch's stable ABI only. The formulas are in norm.h.
#include <cmath>
#include <memory>
#include <tuple>

#include "kernels/common/binding.h"
#include "kernels/common/stream.h"
#include "kernels/norm/norm.h"

namespace {

using kernels::as_rows;
using kernels::check;
using kernels::check_same_shape;
using kernels::DType;
using kernels::dtype_of;
using kernels::parallel_rows;
using kernels::Rows;
using kernels::Tensor;
using kernels::wants_stream;

const norm::Table& table() {
  static const norm::Table& chosen = HOTSWAP_CHOOSE_TABLE(norm);
  return chosen;
}

struct Casting {
  DType y, before, after;  // types of y, of weight when read, of weight + offset
  bool round_n;
};

Casting casting_of(const std::string& name, DType x, DType weight) {
  const DType promoted = x == weight ? x : DType::kFloat32;  // bfloat16 with float16 promotes to float32 too
  if (name == "llama") return {.y = promoted, .before = weight, .after = promoted, .round_n = true};
  if (name == "gemma") return {.y = x, .before = weight, .after = DType::kFloat32, .round_n = false};
  check(name == "none", "rms_norm: wanted casting llama, gemma or none; got \"", name, "\"; pass one of the three");
  return {.y = x, .before = x, .after = x, .round_n = true};
}

void check_weight(const Tensor& weight, int64_t cols, const char* op, const char* what) {
  check(weight.dim() == 1 && weight.size(0) == cols, op, ": wanted ", what, " [", cols, "]; got ",
        kernels::shape_of(weight), "; its size is that of x's last dimension");
  check(weight.is_cpu(), op, ": wanted ", what, " on the CPU as x; got another device; move it");
}

// weight as float32 numbers: where it lies, or converted once per call.
class Float32Weight {
 public:
  Float32Weight(const Tensor& weight, DType before, DType after, float offset) : rows_(as_rows(weight, "weight")) {
    const DType dtype = dtype_of(weight, "weight");
    if (dtype == DType::kFloat32 && before == dtype && after == dtype && offset == 0.f) {
      data_ = rows_.read<float>();
      return;
    }
    owned_.reset(new float[rows_.cols]);
    data_ = owned_.get();
    const norm::Scale args{.scale = owned_.get(),
                           .weight = rows_.data,
                           .weight_dtype = dtype,
                           .before = before,
                           .after = after,
                           .offset = offset};
    table().scale(args, 0, rows_.cols);
  }
  const float* data() const { return data_; }

 private:
  Rows rows_;
  std::unique_ptr<float[]> owned_;
  const float* data_ = nullptr;
};

// ---- RMSNorm and AddRMSNorm
struct RmsNormOutputs {
  Tensor y;
  std::optional<Tensor> h, rstd;
};

RmsNormOutputs rms_norm_forward(const char* op, const Tensor& x, const Tensor* residual, const Tensor& weight,
                                double eps, double offset, const std::string& casting_name,
                                std::optional<Tensor> rstd) {
  const DType dtype = dtype_of(x, op);
  const Rows in = as_rows(x, op);
  check_weight(weight, in.cols, op, "weight");
  const Casting casting = casting_of(casting_name, dtype, dtype_of(weight, op));
  const Float32Weight scale(weight, casting.before, casting.after, float(offset));
  norm::RmsNormForward args{};
  std::optional<Rows> add;
  RmsNormOutputs out{.y = kernels::empty_like(x, casting.y), .h = std::nullopt, .rstd = std::move(rstd)};
  if (residual != nullptr) {
    check_same_shape(x, *residual, op, "x", "residual");
    check(dtype_of(*residual, op) == dtype, op, ": wanted residual in x's dtype; got another; cast one of them");
    add = as_rows(*residual, op);
    out.h = kernels::empty_like(x, dtype);
    args.h = out.h->data_ptr();
    args.residual = add->data;
    args.residual_stride = add->stride;
  }
  args.y = out.y.data_ptr();
  if (out.rstd.has_value()) args.rstd = static_cast<float*>(out.rstd->data_ptr());
  args.x = in.data;
  args.scale = scale.data();
  args.cols = in.cols;
  args.x_stride = in.stride;
  args.eps = float(eps);
  args.dtype = dtype;
  args.y_dtype = casting.y;
  args.round_n = casting.round_n;
  args.stream = wants_stream(in.rows * in.cols * kernels::size_of(casting.y));
  parallel_rows(in.rows, in.cols, [&](int64_t begin, int64_t end) { table().rms_norm_forward(args, begin, end); });
  return out;
}

int64_t rows_of(const Tensor& x, const char* op) {
  check(x.dim() >= 1, op, ": wanted at least one dimension; got a scalar; unsqueeze it");
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
  return rows;
}

Tensor new_statistics(const Tensor& x, const char* op) { return kernels::empty({rows_of(x, op)}, DType::kFloat32); }

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, double offset, std::string casting) {
  return rms_norm_forward("rms_norm", x, nullptr, weight, eps, offset, casting, std::nullopt).y;
}
std::tuple<Tensor, Tensor> rms_norm_fwd(const Tensor& x, const Tensor& weight, double eps, double offset,
                                        std::string casting) {
  constexpr auto kOp = "rms_norm_fwd";
  auto out = rms_norm_forward(kOp, x, nullptr, weight, eps, offset, casting, new_statistics(x, kOp));
  return {std::move(out.y), std::move(*out.rstd)};
}
std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                                        double offset, std::string casting) {
  auto out = rms_norm_forward("add_rms_norm", x, &residual, weight, eps, offset, casting, std::nullopt);
  return {std::move(out.y), std::move(*out.h)};
}
std::tuple<Tensor, Tensor, Tensor> add_rms_norm_fwd(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                    double eps, double offset, std::string casting) {
  constexpr auto kOp = "add_rms_norm_fwd";
  auto out = rms_norm_forward(kOp, x, &residual, weight, eps, offset, casting, new_statistics(x, kOp));
  return {std::move(out.y), std::move(*out.h), std::move(*out.rstd)};
}

// Rows are summed in chunks whose number depends on the shape alone: the same sums with any number of threads.
struct Chunks {
  int64_t rows, count;  // rows a chunk, number of chunks
};
Chunks chunks_of(int64_t rows) {
  constexpr int64_t kLeastRows = 16, kMostChunks = 64;
  const int64_t per = std::max(kLeastRows, (rows + kMostChunks - 1) / kMostChunks);
  return {per, std::max<int64_t>(1, (rows + per - 1) / per)};
}

Tensor sum_chunks(const float* partial, int64_t chunks, const Tensor& weight, DType dtype) {
  Tensor out = kernels::empty_like(weight, dtype);
  const int64_t cols = weight.size(0);
  const norm::ColumnSum args{.out = out.data_ptr(), .partial = partial, .chunks = chunks, .cols = cols, .dtype = dtype};
  parallel_rows(cols, chunks, [&](int64_t begin, int64_t end) { table().column_sum(args, begin, end); });
  return out;
}

const float* statistics(const Tensor& t, int64_t rows, const char* op, const char* what) {
  check(t.scalar_type() == torch::headeronly::ScalarType::Float && t.numel() == rows && t.is_contiguous(), op,
        ": wanted ", what, " contiguous float32 [", rows, "]; got ", kernels::shape_of(t),
        "; pass what the forward op returned");
  return static_cast<const float*>(t.data_ptr());
}

std::tuple<Tensor, Tensor> rms_norm_backward(const char* op, const Tensor& dy, const Tensor* dh, const Tensor& x,
                                             const Tensor& weight, const Tensor& rstd, double offset,
                                             const std::string& casting_name) {
  const DType dtype = dtype_of(x, op), weight_dtype = dtype_of(weight, op);
  const Rows in = as_rows(x, op);
  check_weight(weight, in.cols, op, "weight");
  check_same_shape(x, dy, op, "x", "dy");
  const Casting casting = casting_of(casting_name, dtype, weight_dtype);
  check(dtype_of(dy, op) == casting.y, op, ": wanted dy in the dtype of y; got another; cast it");
  const Rows grad = as_rows(dy, op);
  const Float32Weight scale(weight, casting.before, casting.after, float(offset));
  const Chunks chunks = chunks_of(in.rows);
  const auto partial = std::make_unique<float[]>(size_t(chunks.count * in.cols));
  Tensor dx = kernels::empty_like(x, dtype);
  norm::RmsNormBackward args{};
  std::optional<Rows> add;
  if (dh != nullptr) {
    check_same_shape(x, *dh, op, "h", "dh");
    check(dtype_of(*dh, op) == dtype, op, ": wanted dh in h's dtype; got another; cast it");
    add = as_rows(*dh, op);
    args.dh = add->data;
    args.dh_stride = add->stride;
  }
  args.dx = dx.data_ptr();
  args.partial = partial.get();
  args.dy = grad.data;
  args.x = in.data;
  args.scale = scale.data();
  args.rstd = statistics(rstd, in.rows, op, "rstd");
  args.rows = in.rows;
  args.cols = in.cols;
  args.chunk = chunks.rows;
  args.dy_stride = grad.stride;
  args.x_stride = in.stride;
  args.dtype = dtype;
  args.dy_dtype = casting.y;
  args.round_n = casting.round_n;
  args.stream = wants_stream(in.rows * in.cols * kernels::size_of(dtype));
  parallel_rows(chunks.count, in.cols * chunks.rows,
                [&](int64_t begin, int64_t end) { table().rms_norm_backward(args, begin, end); });
  return {std::move(dx), sum_chunks(partial.get(), chunks.count, weight, weight_dtype)};
}

std::tuple<Tensor, Tensor> rms_norm_bwd(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                                        double offset, std::string casting) {
  return rms_norm_backward("rms_norm_bwd", dy, nullptr, x, weight, rstd, offset, casting);
}
std::tuple<Tensor, Tensor> add_rms_norm_bwd(const Tensor& dy, const Tensor& dh, const Tensor& h, const Tensor& weight,
                                            const Tensor& rstd, double offset, std::string casting) {
  return rms_norm_backward("add_rms_norm_bwd", dy, &dh, h, weight, rstd, offset, casting);
}

// ---- LayerNorm
struct LayerNormOutputs {
  Tensor y;
  std::optional<Tensor> mean, rstd;
};

LayerNormOutputs layer_norm_forward(const char* op, const Tensor& x, const Tensor& weight,
                                    const std::optional<Tensor>& bias, double eps, bool save) {
  const DType dtype = dtype_of(x, op);
  const Rows in = as_rows(x, op);
  check_weight(weight, in.cols, op, "weight");
  const DType weight_dtype = dtype_of(weight, op);
  const Float32Weight scale(weight, weight_dtype, DType::kFloat32, 0.f);
  std::optional<Float32Weight> shift;
  if (bias.has_value()) {
    check_weight(*bias, in.cols, op, "bias");
    shift.emplace(*bias, dtype_of(*bias, op), DType::kFloat32, 0.f);
  }
  LayerNormOutputs out{.y = kernels::empty_like(x, dtype), .mean = std::nullopt, .rstd = std::nullopt};
  norm::LayerNormForward args{};
  if (save) {
    out.mean = new_statistics(x, op);
    out.rstd = new_statistics(x, op);
    args.mean = static_cast<float*>(out.mean->data_ptr());
    args.rstd = static_cast<float*>(out.rstd->data_ptr());
  }
  args.y = out.y.data_ptr();
  args.x = in.data;
  args.weight = scale.data();
  args.bias = shift.has_value() ? shift->data() : nullptr;
  args.cols = in.cols;
  args.x_stride = in.stride;
  args.eps = float(eps);
  args.dtype = dtype;
  args.stream = wants_stream(in.rows * in.cols * kernels::size_of(dtype));
  parallel_rows(in.rows, in.cols, [&](int64_t begin, int64_t end) { table().layer_norm_forward(args, begin, end); });
  return out;
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, std::optional<Tensor> bias, double eps) {
  return layer_norm_forward("layer_norm", x, weight, bias, eps, false).y;
}
std::tuple<Tensor, Tensor, Tensor> layer_norm_fwd(const Tensor& x, const Tensor& weight, std::optional<Tensor> bias,
                                                  double eps) {
  auto out = layer_norm_forward("layer_norm_fwd", x, weight, bias, eps, true);
  return {std::move(out.y), std::move(*out.mean), std::move(*out.rstd)};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_bwd(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                                  const Tensor& mean, const Tensor& rstd) {
  constexpr auto kOp = "layer_norm_bwd";
  const DType dtype = dtype_of(x, kOp), weight_dtype = dtype_of(weight, kOp);
  const Rows in = as_rows(x, kOp);
  check_weight(weight, in.cols, kOp, "weight");
  check_same_shape(x, dy, kOp, "x", "dy");
  check(dtype_of(dy, kOp) == dtype, kOp, ": wanted dy in x's dtype; got another; cast it");
  const Rows grad = as_rows(dy, kOp);
  const Float32Weight scale(weight, weight_dtype, DType::kFloat32, 0.f);
  const Chunks chunks = chunks_of(in.rows);
  const auto partial = std::make_unique<float[]>(size_t(2 * chunks.count * in.cols));
  float* partial_bias = partial.get() + chunks.count * in.cols;
  Tensor dx = kernels::empty_like(x, dtype);
  const norm::LayerNormBackward args{.dx = dx.data_ptr(),
                                     .partial_weight = partial.get(),
                                     .partial_bias = partial_bias,
                                     .dy = grad.data,
                                     .x = in.data,
                                     .weight = scale.data(),
                                     .mean = statistics(mean, in.rows, kOp, "mean"),
                                     .rstd = statistics(rstd, in.rows, kOp, "rstd"),
                                     .rows = in.rows,
                                     .cols = in.cols,
                                     .chunk = chunks.rows,
                                     .dy_stride = grad.stride,
                                     .x_stride = in.stride,
                                     .dtype = dtype,
                                     .stream = wants_stream(in.rows * in.cols * kernels::size_of(dtype))};
  parallel_rows(chunks.count, in.cols * chunks.rows,
                [&](int64_t begin, int64_t end) { table().layer_norm_backward(args, begin, end); });
  return {std::move(dx), sum_chunks(partial.get(), chunks.count, weight, weight_dtype),
          sum_chunks(partial_bias, chunks.count, weight, weight_dtype)};
}

constexpr std::array kOps{
    kernels::op<&rms_norm>("rms_norm"),
    kernels::op<&rms_norm_fwd>("rms_norm_fwd"),
    kernels::op<&rms_norm_bwd>("rms_norm_bwd"),
    kernels::op<&add_rms_norm>("add_rms_norm"),
    kernels::op<&add_rms_norm_fwd>("add_rms_norm_fwd"),
    kernels::op<&add_rms_norm_bwd>("add_rms_norm_bwd"),
    kernels::op<&layer_norm>("layer_norm"),
    kernels::op<&layer_norm_fwd>("layer_norm_fwd"),
    kernels::op<&layer_norm_bwd>("layer_norm_bwd"),
};

int64_t call_count(std::string op) { return kernels::count_calls(kOps, op); }

}  // namespace

HOTSWAP_LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps, float offset, str casting) -> Tensor");
  m.def("rms_norm_fwd(Tensor x, Tensor weight, float eps, float offset, str casting) -> (Tensor y, Tensor rstd)");
  m.def(
      "rms_norm_bwd(Tensor dy, Tensor x, Tensor weight, Tensor rstd, float offset, str casting) -> "
      "(Tensor dx, Tensor dweight)");
  m.def(
      "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, float offset, str casting) -> "
      "(Tensor y, Tensor h)");
  m.def(
      "add_rms_norm_fwd(Tensor x, Tensor residual, Tensor weight, float eps, float offset, str casting) -> "
      "(Tensor y, Tensor h, Tensor rstd)");
  m.def(
      "add_rms_norm_bwd(Tensor dy, Tensor dh, Tensor h, Tensor weight, Tensor rstd, float offset, str casting) -> "
      "(Tensor dx, Tensor dweight)");
  m.def("layer_norm(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor");
  m.def("layer_norm_fwd(Tensor x, Tensor weight, Tensor? bias, float eps) -> (Tensor y, Tensor mean, Tensor rstd)");
  m.def(
      "layer_norm_bwd(Tensor dy, Tensor x, Tensor weight, Tensor mean, Tensor rstd) -> "
      "(Tensor dx, Tensor dweight, Tensor dbias)");
  HOTSWAP_COMMON_SCHEMAS(m);
}

HOTSWAP_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CPU, m) { kernels::implement(m, kOps); }

HOTSWAP_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, m) {
  m.impl("call_count", TORCH_BOX(&call_count));
  m.impl("isa", TORCH_BOX(&kernels::isa));
}

HOTSWAP_PYTHON_MODULE
