// Products with weights in ggml's blocks, on the CPU and on a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/common/packing.h"
#include "kernels/common/torch/aligned.h"
#include "kernels/common/torch/ops.h"
#include "kernels/linear/cuda/linear.h"
#include "kernels/linear/linear.h"

namespace linear {

using kernels::check;
using kernels::check_tensor;
using torch::stable::Tensor;

struct PackedCall {
  kernels::Device device;
  kernels::DType dtype;
  kernels::Packing packing;
  kernels::Rows x;  // [rows, in]
  Tensor data;      // [out, bytes of a row], bytes of a row side by side
  std::optional<Tensor> bias;
};

inline PackedCall packed_call(const Tensor& x, const Tensor& data, const std::string& format, int64_t columns,
                              const std::optional<Tensor>& bias) {
  constexpr const char* kOp = "packed_linear";
  const kernels::Device device = kernels::device_of(x);
  const kernels::Packing packing = kernels::packing_named(format);
  check(packing != kernels::Packing::kNone, kOp, ": expected the format ", kernels::kPackingNames, "; got \"", format,
        "\"; dequantise the weight");
  const kernels::DType dtype = kernels::dtype_of(x);
  const kernels::Rows in = kernels::as_rows(x, device);
  kernels::check_device(data, device);
  const int64_t block = kernels::packed_block(packing), bytes = columns / block * kernels::packed_bytes(packing);
  kernels::check_dtype(data, kernels::ScalarType::Byte);
  check(in.cols == columns && columns % block == 0 && data.dim() == 2 && data.size(1) == bytes, kOp,
        ": expected x [..., ", columns, "] and data [out, ", bytes, "] in uint8, blocks of ", block, " of ", format,
        "; got ", kernels::shape_of(x), " and ", kernels::shape_of(data), " in ", kernels::dtype_name(data),
        "; check the layer's sizes, or dequantise the weight");
  const int64_t out = data.size(0);
  if (bias) {
    kernels::check_device(*bias, device);
    kernels::check_same_dtype(*bias, dtype, "x");
    check_tensor(bias->dim() == 1 && bias->size(0) == out, *bias, "[", out, "]; got ", kernels::shape_of(*bias),
                 "; check the layer's sizes");
  }
  Tensor blocks = data.stride(1) == 1 ? data : torch::stable::contiguous(data);
  check(device.is_cpu() || kernels::gpu::has_packed_blocks(packing), kOp,
        ": expected a format that GPUs have a kernel for; got ", format, "; dequantise the weight");
  // A GPU reads two bytes at once.
  const bool even = reinterpret_cast<uintptr_t>(blocks.data_ptr()) % 2 == 0 && blocks.stride(0) % 2 == 0;
  if (!device.is_cpu() && !even) blocks = torch::stable::clone(blocks);
  return {device, dtype, packing, in, blocks, bias ? std::optional(torch::stable::contiguous(*bias)) : std::nullopt};
}

// y of all rows of x on the CPU, by table.packed or table.plain; `args` has what does not depend on the rows. Rows go
// in parts of one size, so that what is kept of x as float32 does not grow with them.
inline void product_on_cpu(const kernels::Rows& x, const Tensor& y, const kernels::PackedProduct& args,
                           const Table& table, void (*product)(const kernels::PackedProduct&, int64_t, int64_t)) {
  thread_local std::vector<float> widened;
  const int64_t parts = (x.rows + kPartRows - 1) / kPartRows, each = (x.rows + parts - 1) / parts;
  const int64_t bytes = kernels::size_of(args.dtype), out = args.y_stride;
  for (int64_t first = 0; first < x.rows; first += each) {
    const int64_t rows = std::min(each, x.rows - first);
    const char* from = static_cast<const char*>(x.data) + first * x.stride * bytes;
    float* const elements = kernels::aligned_floats(widened, rows * x.cols);
    kernels::parallel_rows((rows + kInputRows - 1) / kInputRows, kInputRows * x.cols, [&](int64_t begin, int64_t end) {
      table.packed_input(elements, from, args.dtype, x.stride, rows, x.cols, begin * kInputRows,
                         std::min(end * kInputRows, rows));
    });
    kernels::parallel_rows(out, rows * x.cols, [&](int64_t begin, int64_t end) {
      thread_local std::vector<float> room;
      kernels::PackedProduct own = args;
      own.x = elements, own.rows = rows;
      own.y = static_cast<char*>(y.data_ptr()) + first * out * bytes;
      own.room = kernels::aligned_floats(room, table.room(rows, x.cols));
      product(own, begin, end);
    });
  }
}

inline Tensor packed_on_cpu(const PackedCall& call, Tensor y, const Table& table) {
  const kernels::PackedProduct args{.dtype = call.dtype,
                                    .packing = call.packing,
                                    .x = nullptr,
                                    .w = call.data.data_ptr(),
                                    .bias = call.bias ? call.bias->data_ptr() : nullptr,
                                    .y = nullptr,
                                    .rows = 0,
                                    .in = call.x.cols,
                                    .w_stride = call.data.stride(0),
                                    .y_stride = call.data.size(0),
                                    .room = nullptr};
  product_on_cpu(call.x, y, args, table, table.packed);
  return y;
}

#if defined(CUDA_KERNEL)
inline cuda::PackedRows rows_of(const PackedCall& call) {
  return {.dtype = call.dtype,
          .packing = call.packing,
          .x = call.x.data,
          .x_stride = call.x.stride,
          .w = static_cast<const uint8_t*>(call.data.data_ptr()),
          .w_stride = call.data.stride(0),
          .bias = call.bias ? call.bias->data_ptr() : nullptr,
          .y = nullptr,
          .out = call.data.size(0),
          .rows = int(call.x.rows),
          .in = int(call.x.cols)};
}

inline bool takes_tiles(const PackedCall& call) {
  return cuda::kTilesAreMeasured && call.x.rows <= cuda::kMaxTileRows && cuda::takes_packed_tiles(rows_of(call));
}

inline bool takes_packed_rows(const PackedCall& call) {
  bool on_device = false;
  kernels::run_on(
      call.device, [&](auto) { on_device = cuda::takes_packed_rows(); }, [] {});
  if (!on_device || call.dtype == kernels::DType::kFloat32 || call.x.cols > INT32_MAX) return false;
  return call.x.rows <= cuda::kMaxPackedRows || takes_tiles(call);
}

inline kernels::gpu::PackedRows few_packed_rows(const PackedCall& call, const Tensor& y) {
  kernels::gpu::PackedRows a{};
  a.dtype = call.dtype, a.packing = call.packing;
  a.x = call.x.data, a.x_stride = call.x.stride, a.rows = int(call.x.rows), a.in = int(call.x.cols);
  a.w[0] = {static_cast<const uint8_t*>(call.data.data_ptr()), call.bias ? call.bias->data_ptr() : nullptr,
            call.data.stride(0), int(call.data.size(0))};
  a.out = y.data_ptr(), a.out_stride = call.data.size(0);
  return a;
}

inline Tensor packed_rows(const PackedCall& call, const Tensor& x, Tensor y) {
  if (call.x.rows <= kernels::gpu::kMaxPackedRows && call.data.size(0) <= INT32_MAX) {
    const kernels::gpu::PackedRows few = few_packed_rows(call, y);
    if (kernels::gpu::fits_packed_rows(few)) {
      kernels::run_on(
          call.device, [&](auto stream) { cuda::packed_few_rows(few, stream); }, [] {});
      return y;
    }
  }
  cuda::PackedRows args = rows_of(call);
  args.y = y.data_ptr();
  if (takes_tiles(call)) {
    kernels::run_on(
        call.device, [&](auto stream) { cuda::packed_tiles(args, stream); }, [] {});
    return y;
  }
  const bool aligned =
      reinterpret_cast<uintptr_t>(call.x.data) % 8 == 0 && (call.x.rows == 1 || call.x.stride % 4 == 0);
  const Tensor copy = aligned ? x : torch::stable::clone(torch::stable::reshape(x, {call.x.rows, call.x.cols}));
  if (!aligned) args.x = copy.data_ptr(), args.x_stride = call.x.cols;
  kernels::run_on(
      call.device, [&](auto stream) { cuda::packed_rows(args, stream); }, [] {});
  return y;
}

// The weight in x's dtype, rounded once, in parts of at most kUnpackedBytes, and torch's product with each.
constexpr int64_t kUnpackedBytes = int64_t{256} << 20;
template <class Fresh, class Linear>
Tensor by_unpacked_rows(const PackedCall& call, const Tensor& x, const Fresh& fresh, const Linear& product) {
  const int64_t out = call.data.size(0), in = call.x.cols, row = in * kernels::size_of(call.dtype);
  const int64_t part = std::clamp<int64_t>(kUnpackedBytes / std::max<int64_t>(row, 1), 1, out);
  Tensor unpacked = kernels::empty({part, in}, call.dtype, call.device);
  // Copied where its rows begin as no allocator's do: the library chooses its product by that.
  const Tensor dense = torch::stable::contiguous(x);
  const Tensor rows_of_x =
      reinterpret_cast<uintptr_t>(dense.data_ptr()) % 16 == 0 ? dense : torch::stable::clone(dense);
  std::optional<Tensor> y;
  for (int64_t first = 0; first < out; first += part) {
    const int64_t rows = std::min(part, out - first);
    const cuda::Unpack args{.dtype = call.dtype,
                            .packing = call.packing,
                            .w = static_cast<const uint8_t*>(call.data.data_ptr()) + first * call.data.stride(0),
                            .w_stride = call.data.stride(0),
                            .out = unpacked.data_ptr(),
                            .rows = rows,
                            .in = in};
    kernels::run_on(
        call.device, [&](auto stream) { cuda::unpack(args, stream); }, [] {});
    std::optional<Tensor> bias = call.bias;
    if (bias) bias = torch::stable::narrow(*bias, 0, first, rows);
    const Tensor some = product(rows_of_x, torch::stable::narrow(unpacked, 0, 0, rows), bias);
    if (rows == out) return some;
    if (!y) y = fresh();
    Tensor to = torch::stable::narrow(*y, y->dim() - 1, first, rows);
    torch::stable::copy_(to, some);
  }
  return *y;
}
#endif

}  // namespace linear
