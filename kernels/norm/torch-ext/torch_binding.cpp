// Schemas, checks and registrations: torch's stable ABI only. The formulas are in norm.h.
#include <cmath>
#include <memory>
#include <tuple>

#include "kernels/common/cpu/nontemporal.h"
#include "kernels/common/torch/ops.h"
#include "kernels/norm/cuda/norm.h"
#if defined(CUDA_KERNEL)
#include "kernels/norm/torch-ext/group_norm.h"
#endif

namespace {

using kernels::as_rows;
using kernels::check;
using kernels::check_same_shape;
using kernels::check_tensor;
using kernels::Device;
using kernels::device_of;
using kernels::DType;
using kernels::dtype_of;
using kernels::parallel_rows;
using kernels::Rows;
using kernels::run_on;
using kernels::Tensor;
using kernels::wants_stream;

const norms::Table& table() {
  static const norms::Table& chosen = HOTSWAP_CHOOSE_TABLE(norms);
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
  check(name == "none", "rms_norm: expected casting to be llama, gemma or none; got \"", name,
        "\"; pass one of these modes");
  return {.y = x, .before = x, .after = x, .round_n = true};
}

// A weight [cols]: as it is for a GPU, and for the CPU as float32 numbers, where it lies or converted once per call.
class Weight {
 public:
  struct Types {
    DType before, after;  // of weight when read, of weight + offset
    float offset;
  };
  Weight(const Tensor& weight, const Rows& x, const Device& device)
      : Weight(weight, x, device, {dtype_of(weight), DType::kFloat32, 0.f}) {}
  Weight(const Tensor& weight, const Rows& x, const Device& device, const Types& t)
      : rows_(checked(weight, x, device)),
        scale_{.scale = nullptr,
               .weight = rows_.data,
               .weight_dtype = dtype_of(weight),
               .before = t.before,
               .after = t.after,
               .offset = t.offset} {
    if (!device.is_cpu()) return;
    if (scale_.weight_dtype == DType::kFloat32 && t.before == DType::kFloat32 && t.after == DType::kFloat32 &&
        t.offset == 0.f) {
      data_ = rows_.read<float>();
      return;
    }
    owned_.reset(new float[size_t(rows_.cols)]);
    data_ = scale_.scale = owned_.get();
    table().scale(scale_, 0, rows_.cols);
  }
  const float* data() const { return data_; }           // on the CPU
  const norms::Scale& scale() const { return scale_; }  // on a GPU

 private:
  static Rows checked(const Tensor& weight, const Rows& x, const Device& device) {
    check_tensor(weight.dim() == 1 && weight.size(0) == x.cols, weight, "[", x.cols, "]; got ",
                 kernels::shape_of(weight), "; its size is that of x's last dimension");
    return as_rows(weight, device);
  }
  Rows rows_;
  norms::Scale scale_;
  std::unique_ptr<float[]> owned_;
  const float* data_ = nullptr;
};

// ---- RMSNorm and AddRMSNorm
struct RmsNormOutputs {
  Tensor y;
  std::optional<Tensor> h, rstd;
};

RmsNormOutputs rms_norm_forward(const Tensor& x, const Tensor* residual, const Tensor& weight, double eps,
                                double offset, const std::string& casting_name, std::optional<Tensor> rstd) {
  const DType dtype = dtype_of(x);
  const Device device = device_of(x);
  const Rows in = as_rows(x, device);
  const Casting casting = casting_of(casting_name, dtype, dtype_of(weight));
  const Weight scale(weight, in, device, {casting.before, casting.after, float(offset)});
  norms::RmsNormForward args{};
  std::optional<Rows> add;
  RmsNormOutputs out{.y = kernels::empty_like(x, casting.y), .h = std::nullopt, .rstd = std::move(rstd)};
  if (residual != nullptr) {
    check_same_shape(x, *residual, "x");
    kernels::check_same_dtype(*residual, dtype, "x");
    add = as_rows(*residual, device);
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
  run_on(
      device, [&](auto stream) { norms::cuda::rms_norm_forward(args, scale.scale(), in.rows, stream); },
      [&] {
        parallel_rows(in.rows, in.cols,
                      [&](int64_t begin, int64_t end) { table().rms_norm_forward(args, begin, end); });
      });
  return out;
}

int64_t rows_of(const Tensor& x) {
  check_tensor(x.dim() >= 1, x, "of at least one dimension; got a scalar; unsqueeze it");
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
  return rows;
}

Tensor new_statistics(const Tensor& x) { return kernels::empty({rows_of(x)}, DType::kFloat32, device_of(x)); }

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, double offset, std::string casting) {
  return rms_norm_forward(x, nullptr, weight, eps, offset, casting, std::nullopt).y;
}
std::tuple<Tensor, Tensor> rms_norm_fwd(const Tensor& x, const Tensor& weight, double eps, double offset,
                                        std::string casting) {
  auto out = rms_norm_forward(x, nullptr, weight, eps, offset, casting, new_statistics(x));
  return {std::move(out.y), std::move(*out.rstd)};
}
std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                                        double offset, std::string casting) {
  auto out = rms_norm_forward(x, &residual, weight, eps, offset, casting, std::nullopt);
  return {std::move(out.y), std::move(*out.h)};
}
std::tuple<Tensor, Tensor, Tensor> add_rms_norm_fwd(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                    double eps, double offset, std::string casting) {
  auto out = rms_norm_forward(x, &residual, weight, eps, offset, casting, new_statistics(x));
  return {std::move(out.y), std::move(*out.h), std::move(*out.rstd)};
}

// Rows are summed in chunks whose number depends on the shape alone: the same sums with any number of threads.
struct Chunks {
  int64_t rows, count;  // rows a chunk, number of chunks
};
Chunks chunks_of(int64_t rows) {
  constexpr int64_t kLeastRows = 16, kMaxChunks = 64;
  const int64_t per = std::max(kLeastRows, (rows + kMaxChunks - 1) / kMaxChunks);
  return {per, std::max<int64_t>(1, (rows + per - 1) / per)};
}

// Partial sums of `tensors` weights: [tensors, chunks, cols] float32.
class Partial {
 public:
  Partial(const Rows& x, DType dtype, const Device& device, int64_t tensors)
      : chunks_(chunks_of(x.rows)), cols_(x.cols) {
    run_on(
        device, [&](auto) { max_ = norms::cuda::partial_rows(x.rows, x.cols, dtype); }, [&] { max_ = chunks_.count; });
    memory_ = kernels::empty({tensors, max_, cols_}, DType::kFloat32, device);
  }
  const Chunks& chunks() const { return chunks_; }
  float* data(int64_t tensor) const { return static_cast<float*>(memory_.data_ptr()) + tensor * max_ * cols_; }

  // A gradient like `weight`: the sum of the first `chunks` rows, in order.
  Tensor sum(int64_t tensor, int64_t chunks, const Tensor& weight, DType dtype) const {
    Tensor out = kernels::empty_like(weight, dtype);
    const norms::ColumnSum args{
        .out = out.data_ptr(), .partial = data(tensor), .chunks = chunks, .cols = cols_, .dtype = dtype};
    run_on(
        device_of(weight), [&](auto stream) { norms::cuda::column_sum(args, stream); },
        [&] {
          parallel_rows(cols_, chunks, [&](int64_t begin, int64_t end) { table().column_sum(args, begin, end); });
        });
    return out;
  }

 private:
  Chunks chunks_;
  int64_t cols_, max_ = 0;
  Tensor memory_;
};

const float* statistics(const Tensor& t, int64_t rows, const Device& device) {
  kernels::check_device(t, device);
  check_tensor(t.scalar_type() == torch::headeronly::ScalarType::Float && t.numel() == rows && t.is_contiguous(), t,
               "as contiguous float32 [", rows, "]; got ", kernels::shape_of(t), " of ", kernels::dtype_name(t),
               "; pass what the forward op returned");
  return static_cast<const float*>(t.data_ptr());
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& dy, const Tensor* dh, const Tensor& x, const Tensor& weight,
                                             const Tensor& rstd, double offset, const std::string& casting_name) {
  const DType dtype = dtype_of(x), weight_dtype = dtype_of(weight);
  const Device device = device_of(x);
  const Rows in = as_rows(x, device);
  const char* of = dh != nullptr ? "h" : "x";
  check_same_shape(x, dy, of);
  const Casting casting = casting_of(casting_name, dtype, weight_dtype);
  check_tensor(dtype_of(dy) == casting.y, dy, "in the dtype of y, ", kernels::dtype_name(casting.y), ", of ", of,
               " in ", kernels::dtype_name(x), " and weight in ", kernels::dtype_name(weight), "; got ",
               kernels::dtype_name(dy), "; cast it");
  const Rows grad = as_rows(dy, device);
  const Weight scale(weight, in, device, {casting.before, casting.after, float(offset)});
  const Partial partial(in, dtype, device, 1);
  Tensor dx = kernels::empty_like(x, dtype);
  norms::RmsNormBackward args{};
  std::optional<Rows> add;
  if (dh != nullptr) {
    check_same_shape(x, *dh, "h");
    kernels::check_same_dtype(*dh, dtype, "h");
    add = as_rows(*dh, device);
    args.dh = add->data;
    args.dh_stride = add->stride;
  }
  args.dx = dx.data_ptr();
  args.partial = partial.data(0);
  args.dy = grad.data;
  args.x = in.data;
  args.scale = scale.data();
  args.rstd = statistics(rstd, in.rows, device);
  args.rows = in.rows;
  args.cols = in.cols;
  args.chunk = partial.chunks().rows;
  args.dy_stride = grad.stride;
  args.x_stride = in.stride;
  args.dtype = dtype;
  args.dy_dtype = casting.y;
  args.round_n = casting.round_n;
  args.stream = wants_stream(in.rows * in.cols * kernels::size_of(dtype));
  int64_t written = partial.chunks().count;
  run_on(
      device, [&](auto stream) { written = norms::cuda::rms_norm_backward(args, scale.scale(), stream); },
      [&] {
        parallel_rows(written, in.cols * args.chunk,
                      [&](int64_t begin, int64_t end) { table().rms_norm_backward(args, begin, end); });
      });
  return {std::move(dx), partial.sum(0, written, weight, weight_dtype)};
}

std::tuple<Tensor, Tensor> rms_norm_bwd(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                                        double offset, std::string casting) {
  return rms_norm_backward(dy, nullptr, x, weight, rstd, offset, casting);
}
std::tuple<Tensor, Tensor> add_rms_norm_bwd(const Tensor& dy, const Tensor& dh, const Tensor& h, const Tensor& weight,
                                            const Tensor& rstd, double offset, std::string casting) {
  return rms_norm_backward(dy, &dh, h, weight, rstd, offset, casting);
}

// ---- LayerNorm
struct LayerNormOutputs {
  Tensor y;
  std::optional<Tensor> mean, rstd;
};

LayerNormOutputs layer_norm_forward(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                                    double eps, bool save) {
  const DType dtype = dtype_of(x);
  const Device device = device_of(x);
  const Rows in = as_rows(x, device);
  const Weight scale(weight, in, device);
  std::optional<Weight> shift;
  if (bias.has_value()) shift.emplace(*bias, in, device);
  LayerNormOutputs out{.y = kernels::empty_like(x, dtype), .mean = std::nullopt, .rstd = std::nullopt};
  norms::LayerNormForward args{};
  if (save) {
    out.mean = new_statistics(x);
    out.rstd = new_statistics(x);
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
  run_on(
      device,
      [&](auto stream) {
        const norms::Scale added = shift.has_value() ? shift->scale() : norms::Scale{};
        norms::cuda::layer_norm_forward(args, scale.scale(), added, in.rows, stream);
      },
      [&] {
        parallel_rows(in.rows, in.cols,
                      [&](int64_t begin, int64_t end) { table().layer_norm_forward(args, begin, end); });
      });
  return out;
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, std::optional<Tensor> bias, double eps) {
  return layer_norm_forward(x, weight, bias, eps, false).y;
}
std::tuple<Tensor, Tensor, Tensor> layer_norm_fwd(const Tensor& x, const Tensor& weight, std::optional<Tensor> bias,
                                                  double eps) {
  auto out = layer_norm_forward(x, weight, bias, eps, true);
  return {std::move(out.y), std::move(*out.mean), std::move(*out.rstd)};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_bwd(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                                  const Tensor& mean, const Tensor& rstd) {
  const DType dtype = dtype_of(x), weight_dtype = dtype_of(weight);
  const Device device = device_of(x);
  const Rows in = as_rows(x, device);
  check_same_shape(x, dy, "x");
  kernels::check_same_dtype(dy, dtype, "x");
  const Rows grad = as_rows(dy, device);
  const Weight scale(weight, in, device);
  const Partial partial(in, dtype, device, 2);
  Tensor dx = kernels::empty_like(x, dtype);
  const norms::LayerNormBackward args{.dx = dx.data_ptr(),
                                      .partial_weight = partial.data(0),
                                      .partial_bias = partial.data(1),
                                      .dy = grad.data,
                                      .x = in.data,
                                      .weight = scale.data(),
                                      .mean = statistics(mean, in.rows, device),
                                      .rstd = statistics(rstd, in.rows, device),
                                      .rows = in.rows,
                                      .cols = in.cols,
                                      .chunk = partial.chunks().rows,
                                      .dy_stride = grad.stride,
                                      .x_stride = in.stride,
                                      .dtype = dtype,
                                      .stream = wants_stream(in.rows * in.cols * kernels::size_of(dtype))};
  int64_t written = partial.chunks().count;
  run_on(
      device, [&](auto stream) { written = norms::cuda::layer_norm_backward(args, scale.scale(), stream); },
      [&] {
        parallel_rows(written, in.cols * args.chunk,
                      [&](int64_t begin, int64_t end) { table().layer_norm_backward(args, begin, end); });
      });
  return {std::move(dx), partial.sum(0, written, weight, weight_dtype), partial.sum(1, written, weight, weight_dtype)};
}

constexpr std::array kOps {
  kernels::op<&rms_norm>("rms_norm(Tensor x, Tensor weight, float eps, float offset, str casting) -> Tensor"),
      kernels::op<&rms_norm_fwd>(
          "rms_norm_fwd(Tensor x, Tensor weight, float eps, float offset, str casting) -> (Tensor y, Tensor rstd)"),
      kernels::op<&rms_norm_bwd>(
          "rms_norm_bwd(Tensor dy, Tensor x, Tensor weight, Tensor rstd, float offset, str "
          "casting) -> (Tensor dx, Tensor dweight)"),
      kernels::op<&add_rms_norm>(
          "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, float offset, str "
          "casting) -> (Tensor y, Tensor h)"),
      kernels::op<&add_rms_norm_fwd>(
          "add_rms_norm_fwd(Tensor x, Tensor residual, Tensor weight, float eps, float "
          "offset, str casting) -> (Tensor y, Tensor h, Tensor rstd)"),
      kernels::op<&add_rms_norm_bwd>(
          "add_rms_norm_bwd(Tensor dy, Tensor dh, Tensor h, Tensor weight, Tensor rstd, float "
          "offset, str casting) -> (Tensor dx, Tensor dweight)"),
      kernels::op<&layer_norm>("layer_norm(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor"),
      kernels::op<&layer_norm_fwd>(
          "layer_norm_fwd(Tensor x, Tensor weight, Tensor? bias, float eps) -> (Tensor y, Tensor mean, Tensor rstd)"),
      kernels::op<&layer_norm_bwd>(
          "layer_norm_bwd(Tensor dy, Tensor x, Tensor weight, Tensor mean, Tensor rstd) -> "
          "(Tensor dx, Tensor dweight, Tensor dbias)"),
#if defined(CUDA_KERNEL)
      kernels::op<&norms::group_norm_fits>("group_norm_fits(Tensor x, int groups) -> bool"),
      kernels::op<&norms::group_norm>(
          "group_norm(Tensor x, Tensor? weight, Tensor? bias, int groups, float eps) -> Tensor"),
      kernels::op<&norms::group_norm_fwd>(
          "group_norm_fwd(Tensor x, Tensor? weight, Tensor? bias, int groups, float eps) "
          "-> (Tensor y, Tensor mean, Tensor rstd)"),
      kernels::op<&norms::group_norm_bwd>(
          "group_norm_bwd(Tensor dy, Tensor x, Tensor? weight, Tensor mean, Tensor rstd, "
          "int groups) -> (Tensor dx, Tensor dweight, Tensor dbias)"),
#endif
};
const kernels::Library<kOps> library;

}  // namespace
