// Which kernel computes what: attention on a GPU.
#include "kernels/attention/attention_cuda.h"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/tensor_map.h"

namespace attention::gpu {
using kernels::Stream;
void forward_64(const Forward& a, int* counter, Stream stream);        // forward_hopper_64.cu
void forward_128(const Forward& a, int* counter, Stream stream);       // forward_hopper_128.cu
void forward_128_full(const Forward& a, int* counter, Stream stream);  // forward_hopper_128_full.cu
}  // namespace attention::gpu

namespace attention::cuda {
namespace {

using namespace kernels::gpu;

bool strides_fit(const void* data, const Strides& s, int64_t rows, int64_t heads, int64_t batch, DType dtype) {
  return fits_tensor_map(
      {.data = data, .size = {1, rows, heads, batch}, .stride = {1, s.row, s.head, s.batch}, .dtype = dtype});
}

}  // namespace

std::string refused(const Forward& forward) {
  const Problem& a = forward.problem;
  constexpr int64_t kMostRows = int64_t{1} << 29, kMostTiles = int64_t{1} << 30;
  const auto text = [](const char* wanted, const std::string& got) {
    return std::string("attention on a GPU: wanted ") + wanted + "; got " + got;
  };
  if (attribute<cudaDevAttrComputeCapabilityMajor>() != 9)
    return text("a GPU of compute capability 9.0",
                std::to_string(attribute<cudaDevAttrComputeCapabilityMajor>()) + ".x; use torch's attention there");
  if (a.dtype == DType::kFloat32) return text("bfloat16 or float16", "float32; use torch's attention for it");
  if (a.dim < 8 || a.dim > 128 || a.dim % 8 != 0 || a.value_dim < 8 || a.value_dim > 128 || a.value_dim % 8 != 0)
    return text("heads of 8 to 128 numbers, a multiple of 8",
                std::to_string(a.dim) + " and, of values, " + std::to_string(a.value_dim) + "; pad with zeros");
  if (a.key_heads < 1 || a.heads % a.key_heads != 0)
    return text("query heads in groups of equal size",
                std::to_string(a.heads) + " over " + std::to_string(a.key_heads) + " key heads");
  if (a.window_left < kNoLimit || a.window_right < kNoLimit)
    return text("window sides of 0 or more, or -1 for none",
                std::to_string(a.window_left) + " and " + std::to_string(a.window_right));
  if (a.chunk != 0) return text("no chunks", std::to_string(a.chunk) + " keys a chunk; use torch's attention");
  if (a.slopes != nullptr) return text("no slopes (ALiBi)", "some; use torch's attention");
  if (!(a.scale > 0)) return text("a scale above 0", std::to_string(a.scale));
  if (a.query_rows > kMostRows || a.key_rows > kMostRows ||
      kernels::divide_up(a.query_rows, 128) * a.batch * a.heads > kMostTiles)
    return text("at most 2^29 rows and 2^30 tiles of 128 rows", std::to_string(a.query_rows) + " rows of " +
                                                                    std::to_string(a.batch * a.heads) + " heads over " +
                                                                    std::to_string(a.key_rows));
  if (a.query_starts != nullptr) return text("sequences that are not packed", "packed ones; use torch's attention");
  const Forward& f = forward;
  if (!strides_fit(f.q, f.q_strides, a.query_rows, a.heads, a.batch, a.dtype) ||
      !strides_fit(f.k, f.k_strides, a.key_rows, a.key_heads, a.batch, a.dtype) ||
      !strides_fit(f.v, f.v_strides, a.key_rows, a.key_heads, a.batch, a.dtype))
    return text("q, k, v that begin at, and have strides of, multiples of 16 bytes", "others; copy them");
  return "";
}

int64_t workspace_bytes(const Forward&) { return 256; }

void forward(const Forward& a, void* workspace, Stream stream) {
  const std::string why = refused(a);
  if (!why.empty()) throw std::runtime_error(why);
  const Problem& p = a.problem;
  auto* counter = static_cast<int*>(workspace);
  if (p.query_rows == 0 || p.batch == 0 || p.heads == 0) return;
  if (p.dim <= 64 && p.value_dim <= 64) return gpu::forward_64(a, counter, stream);
  const bool full = p.window_left == kNoLimit && p.window_right == kNoLimit;
  full ? gpu::forward_128_full(a, counter, stream) : gpu::forward_128(a, counter, stream);
}

}  // namespace attention::cuda
