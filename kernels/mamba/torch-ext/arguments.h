// What the ops are given, checked, as the kernels see it: torch's stable ABI only.
#pragma once

#include <optional>

#include "kernels/common/torch/binding.h"
#include "kernels/mamba/mamba.h"

namespace mamba {

using kernels::check;
using kernels::check_tensor;
using kernels::Device;
using kernels::device_of;
using kernels::shape_of;
using kernels::Tensor;
using MaybeTensor = std::optional<Tensor>;

// Checks of one call: every error starts with the op's name.
struct Call {
  const char* op;
  Device device;

  void shape(const Tensor& t, std::initializer_list<int64_t> sizes, const char* letters) const {
    kernels::check_device(t, device);
    bool same = t.dim() == int64_t(sizes.size());
    for (size_t d = 0; same && d < sizes.size(); ++d) same = t.size(int64_t(d)) == sizes.begin()[d];
    if (same) return;
    std::ostringstream wanted;
    for (const int64_t size : sizes) wanted << (wanted.tellp() > 0 ? ", " : "") << size;
    check_tensor(false, t, letters, " = [", wanted.str(), "]; got ", shape_of(t), "; reshape or transpose it");
  }
  void dims(const Tensor& t, int64_t wanted, const char* letters) const {
    kernels::check_device(t, device);
    check_tensor(t.dim() == wanted, t, letters, "; got ", shape_of(t), "; reshape it");
  }
  DType type(const Tensor& t) const {
    switch (t.scalar_type()) {
      case kernels::ScalarType::ComplexFloat:
      case kernels::ScalarType::ComplexDouble:
        check_tensor(false, t, "in real values; got ", kernels::dtype_name(t), "; complex state spaces are not served");
        break;
      default:
        break;
    }
    return kernels::dtype_of(t);
  }

  // The dimensions of t that are the view's batch, channels and steps; -1: not there, stride 0.
  View view(const Tensor& t, int batch, int channel, int step) const {
    const auto stride = [&](int d) { return d < 0 ? int64_t{0} : t.stride(d); };
    return {t.data_ptr(), type(t), stride(batch), stride(channel), stride(step)};
  }
  // seq_idx [batch, length]
  Sequences sequences(const MaybeTensor& t, int64_t batch, int64_t length) const {
    if (!t) return {};
    shape(*t, {batch, length}, "[batch, length]");
    kernels::check_dtype(*t, kernels::ScalarType::Int);
    return {static_cast<const int32_t*>(t->data_ptr()), t->stride(0), t->stride(1)};
  }
  // One number a batch entry, beside each other; the copy, where one is needed, lives in `kept`.
  const int32_t* indices(const MaybeTensor& t, int64_t batch, Tensor& kept) const {
    if (!t) return nullptr;
    shape(*t, {batch}, "[batch]");
    kernels::check_dtype(*t, kernels::ScalarType::Int);
    kept = t->is_contiguous() ? *t : torch::stable::contiguous(*t);
    return static_cast<const int32_t*>(kept.data_ptr());
  }
  // state_indices: below the state's rows, which is not asked of a GPU: that would wait for it.
  const int32_t* rows(const MaybeTensor& t, int64_t batch, int64_t count, Tensor& kept) const {
    const int32_t* rows = indices(t, batch, kept);
    for (int64_t b = 0; rows != nullptr && device.is_cpu() && b < batch; ++b) {
      check(rows[b] < count, op, ": expected state_indices below the state's ", count, " rows; got ", rows[b],
            "; a negative one marks padding");
    }
    return rows;
  }
};

// A new tensor in the shape of t [batch, channels, steps], and laid out as t is: channels beside each other, or steps.
inline Tensor new_in_layout(const Tensor& t, DType type) {
  const int64_t batch = t.size(0), channels = t.size(1), steps = t.size(2);
  if (channels <= 1 || steps <= 1 || t.stride(1) >= t.stride(2)) return kernels::empty_like(t, type);
  // No transposed view: what an op with autograd returns cannot be written in place (y += ...) where it is a view.
  const Tensor memory = kernels::empty({batch, steps, channels}, type, device_of(t));
  const int64_t sizes[] = {batch, channels, steps}, strides[] = {steps * channels, 1, channels};
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(memory.get(), 3, sizes, strides, 0, &handle));
  return Tensor(handle);
}
// The gradient of what was not given.
inline Tensor none(const Device& device) { return kernels::empty({0}, DType::kFloat32, device); }

}  // namespace mamba
