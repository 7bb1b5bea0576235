// What the functions behind a package's ops need on top of torch's stable ABI: checks, output tensors, rows, threads.
// The ops themselves are rows of ops.h.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <array>
#include <sstream>
#include <stdexcept>
#include <string>

#include "kernels/common/dtype.h"

namespace kernels {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// ---- errors: check(ok, "rms_norm: expected ...; got ...; what to do"). The parts become text only where it is not ok.
template <class... Parts>
void check(bool ok, const Parts&... parts) {
  if (__builtin_expect(ok, 1)) return;
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

// An error about one tensor of an op. The function does not know what its op and that argument are called in the
// schema: ops.h puts both before the text.
class TensorError : public std::runtime_error {
 public:
  TensorError(const Tensor& t, const std::string& text)
      : std::runtime_error("expected a tensor " + text), tensor(t.get()), text(text) {}
  AtenTensorHandle tensor;
  std::string text;
};
// check_tensor(ok, x, "in float32; got ", dtype_name(x), "; cast it"): "rms_norm: expected x in float32; got ..."
template <class... Parts>
void check_tensor(bool ok, const Tensor& t, const Parts&... parts) {
  if (__builtin_expect(ok, 1)) return;
  std::ostringstream text;
  (text << ... << parts);
  throw TensorError(t, text.str());
}

struct Shape {
  const Tensor& tensor;
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    out << "[";
    for (int64_t d = 0; d < shape.tensor.dim(); ++d) out << (d ? ", " : "") << shape.tensor.size(d);
    return out << "]";
  }
};
inline Shape shape_of(const Tensor& t) { return {t}; }

// ---- dtypes
// A dtype in an error's text, by its name in Python: "float64", "int32".
struct DtypeName {
  ScalarType type;
  friend std::ostream& operator<<(std::ostream& out, const DtypeName& dtype) {
    switch (dtype.type) {
      case ScalarType::Byte:
        return out << "uint8";
      case ScalarType::Char:
        return out << "int8";
      case ScalarType::Short:
        return out << "int16";
      case ScalarType::Int:
        return out << "int32";
      case ScalarType::Long:
        return out << "int64";
      case ScalarType::Half:
        return out << "float16";
      case ScalarType::Float:
        return out << "float32";
      case ScalarType::Double:
        return out << "float64";
      case ScalarType::BFloat16:
        return out << "bfloat16";
      case ScalarType::Bool:
        return out << "bool";
      case ScalarType::ComplexFloat:
        return out << "complex64";
      case ScalarType::ComplexDouble:
        return out << "complex128";
      default:  // rare ones, as C++ writes them: Float8_e4m3fn
        return out << torch::headeronly::toString(dtype.type);
    }
  }
};
inline DtypeName dtype_name(ScalarType type) { return {type}; }
struct TensorDtype {  // read where there is an error only
  const Tensor& tensor;
  friend std::ostream& operator<<(std::ostream& out, const TensorDtype& t) {
    return out << DtypeName{t.tensor.scalar_type()};
  }
};
inline TensorDtype dtype_name(const Tensor& t) { return {t}; }

inline DType dtype_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Float:
      return DType::kFloat32;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    case ScalarType::Half:
      return DType::kFloat16;
    default:
      check_tensor(false, t, "in float32, bfloat16 or float16; got ", dtype_name(t), "; cast it");
      return DType::kFloat32;
  }
}
inline int32_t torch_dtype(DType dtype) {
  return dtype == DType::kFloat32    ? aoti_torch_dtype_float32()
         : dtype == DType::kBFloat16 ? aoti_torch_dtype_bfloat16()
                                     : aoti_torch_dtype_float16();
}
inline DtypeName dtype_name(DType dtype) { return {ScalarType(torch_dtype(dtype))}; }
inline void check_dtype(const Tensor& t, ScalarType dtype) {
  check_tensor(t.scalar_type() == dtype, t, "in ", dtype_name(dtype), "; got ", dtype_name(t), "; cast it");
}
// In the dtype of the argument `other`.
inline void check_same_dtype(const Tensor& t, DType dtype, const char* other) {
  check_tensor(int32_t(t.scalar_type()) == torch_dtype(dtype), t, "in ", other, "'s dtype, ", dtype_name(dtype),
               "; got ", dtype_name(t), "; cast one of them");
}

// ---- devices: an op runs where its first tensor is, and that GPU is the current one meanwhile (ops.h)
struct Device {
  int32_t type, index;
  bool is_cpu() const { return type == aoti_torch_device_type_cpu(); }
  bool operator==(const Device&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Device& device) {
    return device.is_cpu() ? out << "the CPU" : out << "GPU " << device.index;
  }
};
inline Device cpu() { return {aoti_torch_device_type_cpu(), -1}; }
inline Device device_of(AtenTensorHandle t) {
  Device d{};
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(t, &d.type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(t, &d.index));
  if (d.is_cpu()) d.index = -1;
  return d;
}
inline Device device_of(const Tensor& t) { return device_of(t.get()); }
inline void check_device(const Tensor& t, const Device& device) {
  const Device got = device_of(t);
  check_tensor(got == device, t, "on ", device, "; got it on ", got, "; move all arguments to one device");
}

// on_gpu(stream) with the device's current stream, or on_cpu(). The device is current already: ops.h sees to it for the
// whole of an op. on_gpu takes `auto`, so that a package built without CUDA does not mention what it lacks.
template <class OnGpu, class OnCpu>
void run_on([[maybe_unused]] const Device& device, [[maybe_unused]] const OnGpu& on_gpu, const OnCpu& on_cpu) {
#if defined(CUDA_KERNEL)
  if (!device.is_cpu()) {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device.index, &stream));
    return on_gpu(stream);
  }
#endif
  on_cpu();
}

// Large outputs are fresh pages, whose faults cost more than the kernel. Asking for 2 MB pages before the first touch
// more than halves that where the system leaves the choice to programs (transparent_hugepage = madvise).
inline void ask_for_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__)
  constexpr intptr_t kPage = 4096, kLeast = intptr_t{4} << 20;
  if (bytes < kLeast) return;
  const intptr_t begin = (reinterpret_cast<intptr_t>(data) + kPage - 1) & -kPage;
  const intptr_t end = (reinterpret_cast<intptr_t>(data) + bytes) & -kPage;
  madvise(reinterpret_cast<void*>(begin), size_t(end - begin), MADV_HUGEPAGE);  // advice: a refusal changes nothing
#endif
}

// ---- new tensors, contiguous, through the C shim (no dispatcher: half a microsecond less a call)
inline Tensor empty_like_shape(const int64_t* sizes, int64_t dim, int32_t torch_dtype, const Device& device = cpu()) {
  std::array<int64_t, 16> strides;
  check(dim <= 16, "expected at most 16 dimensions; got ", dim, "; flatten the leading ones");
  int64_t extent = 1;
  for (int64_t d = dim - 1; d >= 0; --d) {
    strides[d] = extent;
    extent *= sizes[d] > 0 ? sizes[d] : 1;
  }
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(dim, sizes, strides.data(), torch_dtype, device.type,
                                                  device.is_cpu() ? 0 : device.index, &handle));
  Tensor tensor(handle);
  if (device.is_cpu() && extent >= (int64_t{1} << 20))
    ask_for_huge_pages(tensor.data_ptr(), extent * tensor.element_size());
  return tensor;
}
inline Tensor empty(std::initializer_list<int64_t> sizes, DType dtype, const Device& device = cpu()) {
  return empty_like_shape(sizes.begin(), int64_t(sizes.size()), torch_dtype(dtype), device);
}
inline Tensor empty_like(const Tensor& t, DType dtype) {  // t's shape and device, contiguous whatever t's strides
  return empty_like_shape(t.sizes().data(), t.dim(), torch_dtype(dtype), device_of(t));
}

// ---- a tensor [..., cols] seen as rows of contiguous numbers, `stride` elements apart
struct Rows {
  Tensor tensor;  // keeps the memory alive: the given tensor, or a contiguous copy
  void* data;
  int64_t rows, cols, stride;

  template <class T = void>
  const T* read() const {
    return static_cast<const T*>(data);
  }
};

inline bool row_stride(const Tensor& t, int64_t* stride) {  // false: the rows are not evenly spaced
  const int64_t dim = t.dim();
  if (t.size(dim - 1) > 1 && t.stride(dim - 1) != 1) return false;
  int64_t extent = 0;  // of one step in the next outer dimension; 0 = free
  *stride = t.size(dim - 1);
  for (int64_t d = dim - 2; d >= 0; --d) {
    const int64_t size = t.size(d);
    if (size == 1) continue;
    if (extent == 0)
      *stride = t.stride(d);
    else if (t.stride(d) != extent)
      return false;
    extent = t.stride(d) * size;
    if (extent == 0) return dim == 2 || size == 0;  // expanded rows
  }
  return true;
}

// Strided rows are used where they lie; other layouts (last dimension not contiguous) are copied.
inline Rows as_rows(const Tensor& t, const Device& device = cpu()) {
  const int64_t dim = t.dim();
  check_tensor(dim >= 1, t, "of at least one dimension; got a scalar; unsqueeze it");
  check_device(t, device);
  const int64_t cols = t.size(dim - 1);
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < dim; ++d) rows *= t.size(d);
  int64_t stride = cols;
  if (t.is_contiguous() || row_stride(t, &stride)) return {t, t.data_ptr(), rows, cols, stride};
  Tensor copy = torch::stable::contiguous(t);
  void* data = copy.data_ptr();
  return {std::move(copy), data, rows, cols, cols};
}

inline void check_same_shape(const Tensor& a, const Tensor& b, const char* a_name) {
  bool same = a.dim() == b.dim();
  for (int64_t d = 0; same && d < a.dim(); ++d) same = a.size(d) == b.size(d);
  check_tensor(same, b, "in the shape of ", a_name, ", ", shape_of(a), "; got ", shape_of(b), "; reshape or expand it");
}

// ---- threads: torch's own pool. Each thread gets at least `grain` elements: less would cost more than it saves.
constexpr int64_t kGrain = 16384;
template <class Fn>
void parallel_rows(int64_t rows, int64_t cols, const Fn& fn, int64_t grain = kGrain) {
  if (rows <= 0) return;
  const int64_t least = cols >= grain ? 1 : grain / (cols > 0 ? cols : 1);
  if (rows <= least) return fn(int64_t{0}, rows);
  torch::stable::parallel_for(0, rows, least, fn);
}

}  // namespace kernels
