// Which kernel computes what: attention on a GPU.
#include "kernels/attention/attention_cuda.h"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/tensor_map.h"

namespace attention::gpu {
using kernels::Stream;
void forward_64(const Forward& a, int* counter, Stream stream);        // forward_hopper_64.cu
void forward_128(const Forward& a, int* counter, Stream stream);       // forward_hopper_128.cu
void forward_128_full(const Forward& a, int* counter, Stream stream);  // forward_hopper_128_full.cu
void backward_64(const Backward& a, void* workspace, Stream stream);   // backward_hopper_64.cu
void backward_128(const Backward& a, void* workspace, Stream stream);  // backward_hopper_128.cu
int64_t backward_bytes_64(const Backward& a);
int64_t backward_bytes_128(const Backward& a);
}  // namespace attention::gpu

namespace attention::cuda {
namespace {

using namespace kernels::gpu;

std::string text(const char* wanted, const std::string& got) {
  return std::string("attention on a GPU: wanted ") + wanted + "; got " + got;
}

std::string refused(const Problem& p) {
  constexpr int64_t kMostRows = int64_t{1} << 29, kMostTiles = int64_t{1} << 29;
  if (attribute<cudaDevAttrComputeCapabilityMajor>() != 9)
    return text("a GPU of compute capability 9.0",
                std::to_string(attribute<cudaDevAttrComputeCapabilityMajor>()) + ".x; use torch's attention there");
  if (p.dtype == DType::kFloat32) return text("bfloat16 or float16", "float32; use torch's attention for it");
  if (p.dim < 8 || p.dim > 128 || p.dim % 8 != 0 || p.value_dim < 8 || p.value_dim > 128 || p.value_dim % 8 != 0)
    return text("heads of 8 to 128 numbers, a multiple of 8",
                std::to_string(p.dim) + " and, of values, " + std::to_string(p.value_dim) + "; pad with zeros");
  if (p.key_heads < 1 || p.heads % p.key_heads != 0)
    return text("query heads in groups of equal size",
                std::to_string(p.heads) + " over " + std::to_string(p.key_heads) + " key heads");
  if (p.window_left < kNoLimit || p.window_right < kNoLimit)
    return text("window sides of 0 or more, or -1 for none",
                std::to_string(p.window_left) + " and " + std::to_string(p.window_right));
  if (p.chunk != 0) return text("no chunks", std::to_string(p.chunk) + " keys a chunk; use torch's attention");
  if (p.slopes != nullptr) return text("no slopes (ALiBi)", "some; use torch's attention");
  if (!(p.scale > 0)) return text("a scale above 0", std::to_string(p.scale));
  if ((p.query_starts == nullptr) != (p.key_starts == nullptr))
    return text("starts of both queries and keys where sequences are packed", "one of the two");
  const int64_t rows = p.query_rows > p.key_rows ? p.query_rows : p.key_rows;
  if (rows > kMostRows || p.batch > kMostRows || (kernels::divide_up(rows, 64) + 1) * p.batch * p.heads > kMostTiles)
    return text("at most 2^29 rows and 2^29 tiles of 64 rows",
                std::to_string(rows) + " rows of " + std::to_string(p.batch * p.heads) + " heads");
  return "";
}

// Can the copy engine read it as it lies? A tensor that is not there yet begins where memory begins.
bool fits(const Problem& p, const void* data, const Strides& s, int64_t rows, int64_t heads) {
  const int64_t batch = p.query_starts != nullptr ? 1 : p.batch;
  return fits_tensor_map(
      {.data = data, .size = {1, rows, heads, batch}, .stride = {1, s.row, s.head, s.batch}, .dtype = p.dtype});
}
bool fits_queries(const Problem& p, const void* data, const Strides& s) {
  return fits(p, data, s, p.query_rows, p.heads);
}
bool fits_keys(const Problem& p, const void* data, const Strides& s) {
  return fits(p, data, s, p.key_rows, p.key_heads);
}

bool of_64(const Problem& p) { return p.dim <= 64 && p.value_dim <= 64; }
void check(const std::string& why) {
  if (!why.empty()) throw std::runtime_error(why);
}

}  // namespace

std::string refused(const Forward& a) {
  const Problem& p = a.problem;
  if (const std::string why = refused(p); !why.empty()) return why;
  if (!fits_queries(p, a.q, a.q_strides) || !fits_keys(p, a.k, a.k_strides) || !fits_keys(p, a.v, a.v_strides))
    return text("q, k, v that begin at, and have strides of, multiples of 16 bytes", "others; copy them");
  return "";
}

int64_t workspace_bytes(const Forward&) { return 256; }

void forward(const Forward& a, void* workspace, Stream stream) {
  check(refused(a));
  const Problem& p = a.problem;
  auto* counter = static_cast<int*>(workspace);
  if (p.query_rows == 0 || p.batch == 0 || p.heads == 0) return;
  if (of_64(p)) return gpu::forward_64(a, counter, stream);
  const bool full = p.window_left == kNoLimit && p.window_right == kNoLimit && p.query_starts == nullptr;
  full ? gpu::forward_128_full(a, counter, stream) : gpu::forward_128(a, counter, stream);
}

std::string refused(const Backward& a) {
  const Problem& p = a.problem;
  if (const std::string why = refused(p); !why.empty()) return why;
  if (!fits_queries(p, a.q, a.q_strides) || !fits_keys(p, a.k, a.k_strides) || !fits_keys(p, a.v, a.v_strides) ||
      !fits_queries(p, a.dout, a.dout_strides) || !fits_queries(p, a.out, a.out_strides))
    return text("q, k, v, out and dout that begin at, and have strides of, multiples of 16 bytes", "others; copy them");
  return "";
}

int64_t workspace_bytes(const Backward& a) {
  return of_64(a.problem) ? gpu::backward_bytes_64(a) : gpu::backward_bytes_128(a);
}

void backward(const Backward& a, void* workspace, Stream stream) {
  check(refused(a));
  of_64(a.problem) ? gpu::backward_64(a, workspace, stream) : gpu::backward_128(a, workspace, stream);
}

}  // namespace attention::cuda
