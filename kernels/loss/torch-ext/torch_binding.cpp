// Ops of the loss package: schemas and registrations.
#include "kernels/common/torch/ops.h"
#include "kernels/loss/torch-ext/linear.h"
#if defined(CUDA_KERNEL)
#include "kernels/loss/torch-ext/gpu.h"
#endif

namespace loss {
namespace {

using kernels::as_rows;
using kernels::Device;
using kernels::device_of;
using kernels::Rows;
using OptTensor = std::optional<Tensor>;

struct Logits {
  Rows rows;  // [rows, vocab]
  DType dtype;
};

Logits checked(const Tensor& logits) {
  check_tensor(logits.dim() == 2, logits, "[rows, vocab]; got ", shape_of(logits), "; flatten it");
  return {as_rows(logits, device_of(logits)), kernels::dtype_of(logits)};
}

LossRows row_args(const Logits& l, const Options& o) {
  return with_options({.dtype = l.dtype,
                       .logits = l.rows.data,
                       .logits_stride = l.rows.stride,
                       .dlogits = nullptr,
                       .dlogits_stride = 0,
                       .target = nullptr,
                       .loss = nullptr,
                       .lse = nullptr,
                       .dloss = nullptr,
                       .grad_scale = 1.f,
                       .lse_known = false,
                       .rows = l.rows.rows,
                       .vocab = l.rows.cols},
                      o);
}

// Losses, lse [rows, 2] and, where dlogits is given, the gradients for dloss = 1 on the way: there, one read of the
// logits for both.
std::tuple<Tensor, Tensor> losses(const Tensor& logits, const Tensor& target, const Options& o,
                                  const Tensor* dlogits = nullptr) {
  const Logits l = checked(logits);
  const Device device = device_of(logits);
  check_classes(o, l.rows.cols, device);
  Tensor loss = kernels::empty({l.rows.rows}, DType::kFloat32, device);
  Tensor lse = kernels::empty({l.rows.rows, 2}, DType::kFloat32, device);
  LossRows args = row_args(l, o);
  args.loss = static_cast<float*>(loss.data_ptr());
  args.lse = static_cast<float*>(lse.data_ptr());
  if (dlogits == &logits) {
    check(l.rows.data == logits.data_ptr(),
          "cross_entropy_fwd_: expected logits with contiguous rows; got strides that",
          " cannot be used in place; call cross_entropy_fwd_bwd");
    args.dlogits = l.rows.data;
    args.dlogits_stride = l.rows.stride;
  } else if (dlogits != nullptr) {
    args.dlogits = dlogits->data_ptr();
    args.dlogits_stride = l.rows.cols;
  }
#if defined(CUDA_KERNEL)
  if (!device.is_cpu()) {
    const gpu::Targets t = gpu::targets(target, l.rows.rows, device);
    args.target = t.data;
    kernels::run_on(
        device,
        [&](auto stream) {
          std::optional<Tensor> scale;
          if (dlogits != nullptr) scale = gpu::factor(t, nullptr, l.rows.rows, o, device, stream);
          cuda::rows(args, gpu::data_of(scale), stream);
          loss = gpu::reduced(loss, t, l.rows.cols, o, device, stream);
        },
        [] {});
    return {loss, lse};
  }
#endif
  const Targets t = targets(target, l.rows.rows, l.rows.cols, o);
  args.target = t.data;
  if (dlogits != nullptr) args.grad_scale = gradient_scale(o, t.valid);
  run_rows(args);
  return {reduce(loss, o, t.valid), lse};
}

std::tuple<Tensor, Tensor> cross_entropy_fwd(const Tensor& logits, const Tensor& target, int64_t ignore_index,
                                             double label_smoothing, double softcap, double z_loss,
                                             std::string reduction, const OptTensor& class_weight, bool token_scaling) {
  return losses(logits, target,
                options(ignore_index, label_smoothing, softcap, z_loss, reduction, class_weight, token_scaling));
}
std::tuple<Tensor, Tensor> cross_entropy_fwd_in_place(const Tensor& logits, const Tensor& target, int64_t ignore_index,
                                                      double label_smoothing, double softcap, double z_loss,
                                                      std::string reduction, const OptTensor& class_weight,
                                                      bool token_scaling) {
  return losses(logits, target,
                options(ignore_index, label_smoothing, softcap, z_loss, reduction, class_weight, token_scaling),
                &logits);
}

// Both at once, the gradients for dloss = 1 in a tensor of their own.
std::tuple<Tensor, Tensor, Tensor> cross_entropy_fwd_bwd(const Tensor& logits, const Tensor& target,
                                                         int64_t ignore_index, double label_smoothing, double softcap,
                                                         double z_loss, std::string reduction,
                                                         const OptTensor& class_weight, bool token_scaling) {
  const Options o = options(ignore_index, label_smoothing, softcap, z_loss, reduction, class_weight, token_scaling);
  const Logits l = checked(logits);
  const Tensor dlogits = kernels::empty({l.rows.rows, l.rows.cols}, l.dtype, device_of(logits));
  auto [loss, lse] = losses(logits, target, o, &dlogits);
  return {loss, lse, dlogits};
}

Tensor cross_entropy(const Tensor& logits, const Tensor& target, int64_t ignore_index, double label_smoothing,
                     double softcap, double z_loss, std::string reduction, const OptTensor& class_weight,
                     bool token_scaling) {
  return std::get<0>(cross_entropy_fwd(logits, target, ignore_index, label_smoothing, softcap, z_loss, reduction,
                                       class_weight, token_scaling));
}

Tensor cross_entropy_bwd(const Tensor& dloss, const Tensor& logits, const Tensor& target, const Tensor& lse,
                         int64_t ignore_index, double label_smoothing, double softcap, double z_loss,
                         std::string reduction, const OptTensor& class_weight, bool token_scaling) {
  const Options o = options(ignore_index, label_smoothing, softcap, z_loss, reduction, class_weight, token_scaling);
  const Logits l = checked(logits);
  const Device device = device_of(logits);
  check_classes(o, l.rows.cols, device);
  const Tensor known = checked_lse(lse, l.rows.rows, device);
  Tensor dlogits = kernels::empty({l.rows.rows, l.rows.cols}, l.dtype, device);
  LossRows args = row_args(l, o);
  args.dlogits = dlogits.data_ptr();
  args.dlogits_stride = l.rows.cols;
  args.lse = static_cast<float*>(known.data_ptr());
  args.lse_known = true;
#if defined(CUDA_KERNEL)
  if (!device.is_cpu()) {
    const gpu::Targets t = gpu::targets(target, l.rows.rows, device);
    const gpu::Incoming g = gpu::incoming(dloss, o, l.rows.rows, device);
    args.target = t.data;
    args.dloss = g.rows;
    kernels::run_on(
        device,
        [&](auto stream) {
          const auto scale = gpu::factor(t, g.one, l.rows.rows, o, device, stream);
          cuda::rows(args, gpu::data_of(scale), stream);
        },
        [] {});
    return dlogits;
  }
#endif
  const Targets t = targets(target, l.rows.rows, l.rows.cols, o);
  const Incoming g = incoming(dloss, o, l.rows.rows, t.valid);
  args.target = t.data;
  args.dloss = g.rows;
  args.grad_scale = g.scale;
  run_rows(args);
  return dlogits;
}

#if defined(CUDA_KERNEL)
// gradient *= factor, where it is not 1: which is asked on the GPU, so that nobody waits.
void scale_gradient(const Tensor& gradient, const Tensor& factor) {
  const Device device = device_of(gradient);
  check(!device.is_cpu() && gradient.is_contiguous(), "scale_gradient_: expected a contiguous gradient on a GPU; got",
        " another; multiply it");
  kernels::check_device(factor, device);
  check_tensor(factor.scalar_type() == kernels::ScalarType::Float && factor.numel() == 1, factor,
               "of one float32; got ", shape_of(factor), " of ", kernels::dtype_name(factor), "; cast it");
  const DType dtype = kernels::dtype_of(gradient);
  kernels::run_on(
      device,
      [&](auto stream) { cuda::multiply(dtype, gradient.data_ptr(), gradient.numel(), gpu::floats(factor), stream); },
      [] {});
}

// out (+)= a^T b. out [m, k], a [n, m], b [n, k], contiguous, of one 16-bit dtype.
void add_product(const Tensor& out, const Tensor& a, const Tensor& b, bool add) {
  const Device device = device_of(out);
  const DType dtype = kernels::dtype_of(out);
  check(!device.is_cpu() && dtype != DType::kFloat32,
        "add_product_: expected 16-bit tensors on a GPU; got others; call ", "addmm_");
  for (const Tensor* t : {&a, &b}) {
    kernels::check_device(*t, device);
    kernels::check_same_dtype(*t, dtype, "out");
    check_tensor(t->dim() == 2 && t->is_contiguous(), *t, "of two dimensions, contiguous; got ", shape_of(*t),
                 "; copy it");
  }
  check(out.dim() == 2 && out.is_contiguous() && a.size(0) == b.size(0) && out.size(0) == a.size(1) &&
            out.size(1) == b.size(1),
        "add_product_: expected contiguous out [m, k] of a [n, m] and b [n, k]; got ", shape_of(out), ", ", shape_of(a),
        ", ", shape_of(b), "; check their sizes");
  kernels::run_on(
      device,
      [&](auto stream) {
        const gpu::SumProduct product(dtype, a.size(1), b.size(1), a.size(0), b.size(1));
        const kernels::Window rows{a.data_ptr(), a.size(0), a.size(1), a.size(1)};
        gpu::add_product(product, out, rows, b, add, dtype, device, stream);
      },
      [] {});
}

gpu::LinearLoss linear_on_gpu(const gpu::Inputs& in, const Options& o, const gpu::Wanted& wanted) {
  const Device device = device_of(in.hidden);
  gpu::LinearLoss result;
  kernels::run_on(
      device, [&](auto stream) { result = gpu::Linear(in, o, wanted, device, stream).run(); }, [] {});
  return result;
}
#endif

Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const OptTensor& bias, const Tensor& target,
                            int64_t ignore_index, double label_smoothing, double softcap, double z_loss,
                            std::string reduction, int64_t chunk_bytes, const OptTensor& class_weight,
                            bool token_scaling) {
  const Options o = options(ignore_index, label_smoothing, softcap, z_loss, reduction, class_weight, token_scaling);
  check_chunk_bytes(chunk_bytes);
#if defined(CUDA_KERNEL)
  if (!device_of(hidden).is_cpu())
    return linear_on_gpu({hidden, weight, bias, target}, o,
                         {.chunk_bytes = chunk_bytes,
                          .gradients = false,
                          .float32_dweight = false,
                          .dloss_rows = nullptr,
                          .dloss = nullptr,
                          .known_lse = nullptr,
                          .predicted = false})
        .loss;
#endif
  LinearCrossEntropy linear({hidden, weight, bias, target}, o, chunk_bytes);
  const LinearLoss r =
      linear.run({.gradients = false, .scale = 1.f, .dloss = nullptr, .known_lse = nullptr, .predicted = false});
  return reduce(r.row_loss, o, linear.valid());
}

// With mean and sum the gradients for dloss = 1 are made on the way: logits are made once. With none every row has a
// gradient of its own, not known yet: backward makes the logits again. float32_dweight: dweight is summed over chunks
// of rows in float32; the CPU always does. chunk_bytes: of logits at once; 0: what is usual there. predict: the word of
// the highest logit in each row that counts.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> linear_cross_entropy_fwd(
    const Tensor& hidden, const Tensor& weight, const OptTensor& bias, const Tensor& target, int64_t ignore_index,
    double label_smoothing, double softcap, double z_loss, std::string reduction, [[maybe_unused]] bool float32_dweight,
    int64_t chunk_bytes, const OptTensor& class_weight, bool token_scaling, bool predict) {
  const Options o = options(ignore_index, label_smoothing, softcap, z_loss, reduction, class_weight, token_scaling);
  check_chunk_bytes(chunk_bytes);
  const bool now = o.reduction != Reduction::kNone;
#if defined(CUDA_KERNEL)
  if (!device_of(hidden).is_cpu()) {
    gpu::LinearLoss g = linear_on_gpu({hidden, weight, bias, target}, o,
                                      {.chunk_bytes = chunk_bytes,
                                       .gradients = now,
                                       .float32_dweight = float32_dweight,
                                       .dloss_rows = nullptr,
                                       .dloss = nullptr,
                                       .known_lse = nullptr,
                                       .predicted = predict});
    return {g.loss, g.lse, g.dhidden, g.dweight, g.dbias, g.predicted};
  }
#endif
  LinearCrossEntropy linear({hidden, weight, bias, target}, o, chunk_bytes);
  LinearLoss r = linear.run({.gradients = now,
                             .scale = gradient_scale(o, linear.valid()),
                             .dloss = nullptr,
                             .known_lse = nullptr,
                             .predicted = predict});
  if (!now) {
    const DType dtype = kernels::dtype_of(hidden);
    r.dhidden = kernels::empty({0}, dtype);
    r.dweight = kernels::empty({0}, dtype);
    r.dbias = kernels::empty({0}, dtype);
  }
  return {reduce(r.row_loss, o, linear.valid()), r.lse, r.dhidden, r.dweight, r.dbias, r.predicted};
}

std::tuple<Tensor, Tensor, Tensor> linear_cross_entropy_bwd(const Tensor& dloss, const Tensor& hidden,
                                                            const Tensor& weight, const OptTensor& bias,
                                                            const Tensor& target, const Tensor& lse,
                                                            int64_t ignore_index, double label_smoothing,
                                                            double softcap, double z_loss, std::string reduction,
                                                            [[maybe_unused]] bool float32_dweight, int64_t chunk_bytes,
                                                            const OptTensor& class_weight, bool token_scaling) {
  const Options o = options(ignore_index, label_smoothing, softcap, z_loss, reduction, class_weight, token_scaling);
  check_chunk_bytes(chunk_bytes);
#if defined(CUDA_KERNEL)
  if (const Device device = device_of(hidden); !device.is_cpu()) {
    const int64_t rows = hidden.size(0);
    const gpu::Incoming g = gpu::incoming(dloss, o, rows, device);
    const Tensor known = checked_lse(lse, rows, device);
    const gpu::LinearLoss r = linear_on_gpu({hidden, weight, bias, target}, o,
                                            {.chunk_bytes = chunk_bytes,
                                             .gradients = true,
                                             .float32_dweight = float32_dweight,
                                             .dloss_rows = g.rows,
                                             .dloss = g.one,
                                             .known_lse = gpu::floats(known),
                                             .predicted = false});
    return {r.dhidden, r.dweight, r.dbias};
  }
#endif
  LinearCrossEntropy linear({hidden, weight, bias, target}, o, chunk_bytes);
  const Incoming g = incoming(dloss, o, linear.rows(), linear.valid());
  const Tensor known = checked_lse(lse, linear.rows(), kernels::cpu());
  LinearLoss r = linear.run({.gradients = true,
                             .scale = g.scale,
                             .dloss = g.rows,
                             .known_lse = static_cast<const float*>(known.data_ptr()),
                             .predicted = false});
  return {r.dhidden, r.dweight, r.dbias};
}

// Parts of the schemas.
#define LOSS_OPTIONS "int ignore_index, float label_smoothing, float softcap, float z_loss, str reduction"
#define LOSS_WEIGHTS "Tensor? class_weight=None, bool token_scaling=False"
#define LOSS_LINEAR "Tensor hidden, Tensor weight, Tensor? bias, Tensor target, "

constexpr std::array kOps {
  kernels::op<&cross_entropy>("cross_entropy(Tensor logits, Tensor target, " LOSS_OPTIONS ", " LOSS_WEIGHTS
                              ") -> Tensor"),
      kernels::op<&cross_entropy_fwd>("cross_entropy_fwd(Tensor logits, Tensor target, " LOSS_OPTIONS ", " LOSS_WEIGHTS
                                      ") -> (Tensor loss, Tensor lse)"),
      kernels::op<&cross_entropy_fwd_in_place>("cross_entropy_fwd_(Tensor(a!) logits, Tensor target, " LOSS_OPTIONS
                                               ", " LOSS_WEIGHTS ") -> (Tensor loss, Tensor lse)"),
      kernels::op<&cross_entropy_fwd_bwd>("cross_entropy_fwd_bwd(Tensor logits, Tensor target, " LOSS_OPTIONS
                                          ", " LOSS_WEIGHTS ") -> (Tensor loss, Tensor lse, Tensor dlogits)"),
      kernels::op<&cross_entropy_bwd>(
          "cross_entropy_bwd(Tensor dloss, Tensor logits, Tensor target, Tensor lse, " LOSS_OPTIONS ", " LOSS_WEIGHTS
          ") -> Tensor"),
      kernels::op<&linear_cross_entropy>("linear_cross_entropy(" LOSS_LINEAR LOSS_OPTIONS
                                         ", int chunk_bytes=0, " LOSS_WEIGHTS ") -> Tensor"),
      kernels::op<&linear_cross_entropy_fwd>(
          "linear_cross_entropy_fwd(" LOSS_LINEAR LOSS_OPTIONS
          ", bool float32_dweight=False, int chunk_bytes=0, " LOSS_WEIGHTS
          ", bool predict=False) -> (Tensor loss, "
          "Tensor lse, Tensor dhidden, Tensor dweight, Tensor dbias, Tensor predicted)"),
      kernels::op<&linear_cross_entropy_bwd>(
          "linear_cross_entropy_bwd(Tensor dloss, Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor "
          "lse, " LOSS_OPTIONS ", bool float32_dweight=False, int chunk_bytes=0, " LOSS_WEIGHTS
          ") -> (Tensor dhidden, Tensor dweight, Tensor dbias)"),
#if defined(CUDA_KERNEL)
      kernels::op<&scale_gradient>("scale_gradient_(Tensor(a!) gradient, Tensor factor) -> ()"),
      kernels::op<&add_product>("add_product_(Tensor(a!) out, Tensor a, Tensor b, bool add) -> ()"),
#endif
};
const kernels::Library<kOps> library;

}  // namespace
}  // namespace loss
