// GroupNorm's ops, on a GPU alone: x [samples, channels, ...], in memory channel by channel or position by position
// (torch's channels_last), and so what comes out.
#pragma once

#include <optional>
#include <tuple>

#include "kernels/common/torch/binding.h"
#include "kernels/norm/group_norm.h"

namespace norms {

using kernels::check;
using kernels::check_tensor;
using kernels::Device;
using kernels::device_of;
using kernels::dtype_of;
using kernels::Tensor;
using OptTensor = std::optional<Tensor>;

inline bool is_channels_last(const Tensor& t) {  // position by position, without gaps
  int64_t extent = 1;
  if (t.size(1) > 1 && t.stride(1) != 1) return false;
  extent = t.size(1);
  for (int64_t d = t.dim() - 1; d >= 2; --d) {
    if (t.size(d) > 1 && t.stride(d) != extent) return false;
    extent *= t.size(d);
  }
  return t.size(0) <= 1 || t.stride(0) == extent;
}

// A new tensor like t in memory, which is contiguous or channels last.
inline Tensor empty_as(const Tensor& t, DType dtype) {
  AtenTensorHandle handle;
  const Device device = device_of(t);
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(t.dim(), t.sizes().data(), t.strides().data(),
                                                  kernels::torch_dtype(dtype), device.type, device.index, &handle));
  return Tensor(handle);
}

inline bool same_strides(const Tensor& a, const Tensor& b) {
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

class GroupNorm {
 public:
  GroupNorm(const char* op, const Tensor& x, const OptTensor& weight, int64_t groups) {
    check_tensor(x.dim() >= 3, x, "[samples, channels, ...] of three dimensions or more; got ", kernels::shape_of(x),
                 "; reshape it");
    const int64_t channels = x.size(1);
    check(groups > 0 && channels % groups == 0, op, ": expected channels that ", groups, " groups divide; got ",
          channels, "; change one of them");
    check(!device_of(x).is_cpu(), op, ": expected x on a GPU; got it on the CPU; call torch's group_norm");
    shape_ = {.dtype = dtype_of(x),
              .weight_dtype = weight ? dtype_of(*weight) : DType::kFloat32,
              .samples = x.size(0),
              .groups = groups,
              .channels = channels / groups,
              .positions = channels > 0 && x.size(0) > 0 ? x.numel() / (x.size(0) * channels) : 0,
              .channels_last = !x.is_contiguous() && is_channels_last(x)};
    x_ = x.is_contiguous() || shape_.channels_last ? x : torch::stable::contiguous(x);
  }
  bool fits() const { return x_.numel() > 0 && parts() > 0; }
  int64_t parts() const {
    return cuda::group_norm_parts(shape_, reinterpret_cast<uintptr_t>(x_.data_ptr()) % kernels::kVectorBytes == 0);
  }
  const cuda::GroupShape& shape() const { return shape_; }
  const Tensor& x() const { return x_; }
  Tensor empty() const { return empty_as(x_, shape_.dtype); }
  // t in x's layout, at whole vectors.
  Tensor like_x(const Tensor& t) const {
    kernels::check_device(t, device_of(x_));
    kernels::check_same_shape(x_, t, "x");
    kernels::check_same_dtype(t, shape_.dtype, "x");
    if (same_strides(x_, t) && reinterpret_cast<uintptr_t>(t.data_ptr()) % kernels::kVectorBytes == 0) return t;
    Tensor copy = empty();
    torch::stable::copy_(copy, t);
    return copy;
  }
  const void* parameter(const OptTensor& t) const {
    if (!t) return nullptr;
    kernels::check_device(*t, device_of(x_));
    kernels::check_same_dtype(*t, shape_.weight_dtype, "weight");
    check_tensor(t->dim() == 1 && t->size(0) == shape_.all_channels() && t->is_contiguous(), *t, "[",
                 shape_.all_channels(), "], contiguous; got ", kernels::shape_of(*t), "; pass one number a channel");
    return t->data_ptr();
  }
  Tensor statistics() const { return kernels::empty({shape_.samples, shape_.groups}, DType::kFloat32, device_of(x_)); }

 private:
  cuda::GroupShape shape_;
  Tensor x_;
};

// Whether a group fits on the chip, at whole vectors: else the ops refuse it.
inline bool group_norm_fits(const Tensor& x, int64_t groups) {
  bool fits = false;
  kernels::run_on(
      device_of(x), [&](auto) { fits = GroupNorm("group_norm_fits", x, std::nullopt, groups).fits(); }, [] {});
  return fits;
}

inline std::tuple<Tensor, Tensor, Tensor> group_norm_forward(const char* op, const Tensor& x, const OptTensor& weight,
                                                             const OptTensor& bias, int64_t groups, double eps,
                                                             bool training) {
  const GroupNorm norm(op, x, weight, groups);
  Tensor y = norm.empty(), mean, rstd;
  if (training) mean = norm.statistics(), rstd = norm.statistics();
  kernels::run_on(
      device_of(x),
      [&](auto stream) {
        check(norm.fits(), op, ": expected groups that fit on the chip at whole vectors; got ", kernels::shape_of(x),
              " in ", groups, " groups; ask group_norm_fits, and call torch's group_norm");
        cuda::group_norm_forward({.shape = norm.shape(),
                                  .y = y.data_ptr(),
                                  .x = norm.x().data_ptr(),
                                  .weight = norm.parameter(weight),
                                  .bias = norm.parameter(bias),
                                  .mean = training ? static_cast<float*>(mean.data_ptr()) : nullptr,
                                  .rstd = training ? static_cast<float*>(rstd.data_ptr()) : nullptr,
                                  .eps = static_cast<float>(eps)},
                                 stream);
      },
      [] {});
  return {std::move(y), std::move(mean), std::move(rstd)};
}

inline Tensor group_norm(const Tensor& x, const OptTensor& weight, const OptTensor& bias, int64_t groups, double eps) {
  return std::get<0>(group_norm_forward("group_norm", x, weight, bias, groups, eps, false));
}
inline std::tuple<Tensor, Tensor, Tensor> group_norm_fwd(const Tensor& x, const OptTensor& weight,
                                                         const OptTensor& bias, int64_t groups, double eps) {
  return group_norm_forward("group_norm_fwd", x, weight, bias, groups, eps, true);
}

inline std::tuple<Tensor, Tensor, Tensor> group_norm_bwd(const Tensor& dy, const Tensor& x, const OptTensor& weight,
                                                         const Tensor& mean, const Tensor& rstd, int64_t groups) {
  constexpr auto op = "group_norm_bwd";
  const GroupNorm norm(op, x, weight, groups);
  const cuda::GroupShape& shape = norm.shape();
  const Device device = device_of(x);
  for (const Tensor* t : {&mean, &rstd}) {
    kernels::check_device(*t, device);
    check_tensor(t->is_contiguous() && t->numel() == shape.rows() && t->scalar_type() == kernels::ScalarType::Float, *t,
                 "[", shape.samples, ", ", shape.groups, "] as float32; got ", kernels::shape_of(*t), " of ",
                 kernels::dtype_name(*t), "; pass what group_norm_fwd returned");
  }
  const Tensor gradient = norm.like_x(dy);
  Tensor dx = norm.empty(), dweight = kernels::empty({shape.all_channels()}, shape.weight_dtype, device),
         dbias = kernels::empty({shape.all_channels()}, shape.weight_dtype, device);
  kernels::run_on(
      device,
      [&](auto stream) {
        check(norm.fits(), op, ": expected groups that fit on the chip at whole vectors; got ", kernels::shape_of(x),
              "; ask group_norm_fits, and call torch's group_norm");
        const int64_t parts = norm.parts();
        const Tensor partial =
            kernels::empty({shape.samples * parts, 2, shape.all_channels()}, DType::kFloat32, device);
        cuda::group_norm_backward({.shape = shape,
                                   .dx = dx.data_ptr(),
                                   .partial = static_cast<float*>(partial.data_ptr()),
                                   .dy = gradient.data_ptr(),
                                   .x = norm.x().data_ptr(),
                                   .weight = norm.parameter(weight),
                                   .mean = static_cast<const float*>(mean.data_ptr()),
                                   .rstd = static_cast<const float*>(rstd.data_ptr())},
                                  parts, dweight.data_ptr(), dbias.data_ptr(), stream);
      },
      [] {});
  return {std::move(dx), std::move(dweight), std::move(dbias)};
}

}  // namespace norms
