// Which kernel computes what: attention on a GPU.
#include <algorithm>

#include "kernels/attention/cuda/attention.h"
#include "kernels/attention/cuda/sequence_order.cuh"
#include "kernels/attention/cuda/tiles.h"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/tensor_map.h"

namespace attention::gpu {
using kernels::Stream;
void forward_64(const Forward& a, int* counter, Stream stream);         // sm90_forward_64.cu
void forward_128(const Forward& a, int* counter, Stream stream);        // sm90_forward_128.cu
void forward_192(const Forward& a, int* counter, Stream stream);        // sm90_forward_192.cu
void forward_256(const Forward& a, int* counter, Stream stream);        // sm90_forward_256.cu
void forward_128_full(const Forward& a, int* counter, Stream stream);   // sm90_forward_128_full.cu
void backward_64(const Backward& a, void* workspace, Stream stream);    // sm90_backward_64.cu
void backward_128(const Backward& a, void* workspace, Stream stream);   // sm90_backward_128.cu
void backward_192(const Backward& a, void* workspace, Stream stream);   // sm90_backward_pair_192.cu
void backward_256(const Backward& a, void* workspace, Stream stream);   // sm90_backward_pair_256.cu
void mma_forward_128(const Forward& a, Stream stream);                  // sm80_forward_128.cu
void mma_forward_512(const Forward& a, Stream stream);                  // sm80_forward_512.cu
void mma_backward_128(const Backward& a, float* space, Stream stream);  // sm80_backward_128.cu
void mma_backward_512(const Backward& a, float* space, Stream stream);  // sm80_backward_512.cu
void decode(const Decode& a, void* workspace, Stream stream);           // decode.cu
int64_t backward_bytes_64(const Backward& a);
int64_t decode_bytes(const Decode& a);
int64_t backward_bytes_128(const Backward& a);
int64_t backward_bytes_192(const Backward& a);
int64_t backward_bytes_256(const Backward& a);
int64_t mma_backward_bytes(const Backward& a);
}  // namespace attention::gpu

namespace attention::cuda {
namespace {

using namespace kernels::gpu;

constexpr int64_t kMax = int64_t{1} << 29, kMaxDim = 512, kMaxDecodeDim = 576;  // 576: latent attention's keys

std::string text(const std::string& wanted, const std::string& got) {
  return "attention on a GPU: expected " + wanted + "; got " + got;
}

// The sm_90a kernels, or those of every GPU?
bool by_hopper(const Problem& p) {
  constexpr int64_t kMaxHopperDim = 256;
  return attribute<cudaDevAttrComputeCapabilityMajor>() == 9 && std::max(p.dim, p.value_dim) <= kMaxHopperDim &&
         p.chunk == 0 && p.slopes == nullptr;
}

// What no op takes.
std::string refused(const Problem& p, int64_t max_dim = kMaxDim) {
  if (const int major = attribute<cudaDevAttrComputeCapabilityMajor>(); major < 8)
    return text("a GPU of compute capability 8.0 or newer", std::to_string(major) + ".x; use torch's attention there");
  if (p.dtype == DType::kFloat32) return text("bfloat16 or float16", "float32; use torch's attention for it");
  const auto fits = [](int64_t dim, int64_t most) { return dim >= 8 && dim <= most && dim % 8 == 0; };
  if (!fits(p.dim, max_dim) || !fits(p.value_dim, kMaxDim))
    return text("a head_dim from 8 to " + std::to_string(max_dim) + " and one of the values to 512, multiples of 8",
                std::to_string(p.dim) + " and " + std::to_string(p.value_dim) + "; pad with zeros");
  if (p.key_heads < 1 || p.heads % p.key_heads != 0)
    return text("query heads in groups of equal size",
                std::to_string(p.heads) + " over " + std::to_string(p.key_heads) + " key heads");
  if (p.window_left < kNoLimit || p.window_right < kNoLimit)
    return text("window sides of 0 or more, or -1 for none",
                std::to_string(p.window_left) + " and " + std::to_string(p.window_right));
  if (p.chunk < 0) return text("chunks of 1 key or more, or 0 for none", std::to_string(p.chunk));
  if (!(p.scale > 0)) return text("a scale above 0", std::to_string(p.scale));
  if ((p.query_starts == nullptr) != (p.key_starts == nullptr))
    return text("starts of both queries and keys where sequences are packed", "one of the two");
  const int64_t rows = std::max(p.query_rows, p.key_rows);
  if (rows > kMax || p.batch > kMax)
    return text("at most 2^29 rows and sequences", std::to_string(rows) + " and " + std::to_string(p.batch));
  return "";
}

// Blocks are counted in 32 bits.
std::string refused_tiles(int64_t tiles, int64_t heads) {
  if (tiles * heads <= kMax) return "";
  return text("at most 2^29 tiles of rows in all heads", std::to_string(tiles) + " of " + std::to_string(heads));
}

// What forward and backward do not take.
std::string refused_in_tiles(const Problem& p) {
  if (const std::string why = refused(p); !why.empty()) return why;
  constexpr int kRows = 32;  // of the smallest tiles
  return refused_tiles(slots_of(p.query_starts != nullptr, p.batch, std::max(p.query_rows, p.key_rows), kRows),
                       p.heads);
}

// Can TMA, or a thread 16 bytes at a time, read it as it lies? A tensor that is not there yet begins where
// memory begins.
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

bool is_narrow(const Problem& p) { return p.dim <= 192 && p.value_dim <= 128; }
bool of_64(const Problem& p) { return p.dim <= 64 && p.value_dim <= 64; }
bool of_128(const Problem& p) { return p.dim <= 128 && p.value_dim <= 128; }
void check(const std::string& why) {
  if (!why.empty()) throw std::runtime_error(why);
}

}  // namespace

std::string refused(const Forward& a) {
  const Problem& p = a.problem;
  if (const std::string why = refused_in_tiles(p); !why.empty()) return why;
  if (!fits_queries(p, a.q, a.q_strides) || !fits_keys(p, a.k, a.k_strides) || !fits_keys(p, a.v, a.v_strides))
    return text("q, k, v that begin at, and have strides of, multiples of 16 bytes", "others; copy them");
  return "";
}

int64_t workspace_bytes(const Forward& a) {
  const bool packed = a.problem.query_starts != nullptr;
  return packed ? gpu::SequenceOrder::bytes(a.problem.batch) : int64_t{sizeof(int)};
}

void forward(const Forward& a, void* workspace, Stream stream) {
  check(refused(a));
  const Problem& p = a.problem;
  auto* counter = static_cast<int*>(workspace);
  if (p.query_rows == 0 || p.heads == 0 || (p.batch == 0 && p.query_starts == nullptr)) return;
  if (!by_hopper(p)) return (is_narrow(p) ? gpu::mma_forward_128 : gpu::mma_forward_512)(a, stream);
  if (!is_narrow(p)) return gpu::forward_256(a, counter, stream);
  if (p.dim > 128) return gpu::forward_192(a, counter, stream);
  if (of_64(p)) return gpu::forward_64(a, counter, stream);
  const bool full = p.window_left == kNoLimit && p.window_right == kNoLimit && p.query_starts == nullptr;
  full ? gpu::forward_128_full(a, counter, stream) : gpu::forward_128(a, counter, stream);
}

std::string refused(const Backward& a) {
  const Problem& p = a.problem;
  if (const std::string why = refused_in_tiles(p); !why.empty()) return why;
  if (!fits_queries(p, a.q, a.q_strides) || !fits_keys(p, a.k, a.k_strides) || !fits_keys(p, a.v, a.v_strides) ||
      !fits_queries(p, a.dout, a.dout_strides) || !fits_queries(p, a.out, a.out_strides))
    return text("q, k, v, out and dout that begin at, and have strides of, multiples of 16 bytes", "others; copy them");
  return "";
}

int64_t workspace_bytes(const Backward& a) {
  const Problem& p = a.problem;
  if (!by_hopper(p)) return gpu::mma_backward_bytes(a);
  if (of_64(p)) return gpu::backward_bytes_64(a);
  if (of_128(p)) return gpu::backward_bytes_128(a);
  return (is_narrow(p) ? gpu::backward_bytes_192 : gpu::backward_bytes_256)(a);
}

void backward(const Backward& a, void* workspace, Stream stream) {
  check(refused(a));
  const Problem& p = a.problem;
  if (!by_hopper(p))
    return (is_narrow(p) ? gpu::mma_backward_128 : gpu::mma_backward_512)(a, static_cast<float*>(workspace), stream);
  if (of_64(p)) return gpu::backward_64(a, workspace, stream);
  if (of_128(p)) return gpu::backward_128(a, workspace, stream);
  (is_narrow(p) ? gpu::backward_192 : gpu::backward_256)(a, workspace, stream);
}

std::string refused(const Decode& a) {
  const Problem& p = a.problem;
  if (const std::string why = refused(p, kMaxDecodeDim); !why.empty()) return why;
  if (p.query_starts != nullptr) return text("sequences that are not packed", "packed ones; use forward");
  constexpr int64_t kMaxSplits = 512;
  if (const std::string why = refused_tiles(p.query_rows * p.batch * kMaxSplits, p.heads); !why.empty()) return why;
  if ((a.k_new == nullptr) != (a.v_new == nullptr)) return text("new keys and new values", "one of the two");
  if (a.block_table != nullptr && (a.page_rows < 16 || a.page_rows % 16 != 0))
    return text("pages of a multiple of 16 rows", std::to_string(a.page_rows));
  if (a.block_table != nullptr && a.cache_index != nullptr)
    return text("a block table or an index of caches", "both; put the index into the table");
  const auto vectors = [](const void* data, const Strides& s) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && (s.batch | s.row | s.head) % 8 == 0;
  };
  if (!vectors(a.q, a.q_strides) || !vectors(a.k_cache, a.k_cache_strides) || !vectors(a.v_cache, a.v_cache_strides) ||
      (a.k_new != nullptr && (!vectors(a.k_new, a.k_new_strides) || !vectors(a.v_new, a.v_new_strides))))
    return text("q, caches and new rows that begin at, and have strides of, multiples of 16 bytes",
                "others; copy them");
  return "";
}

int64_t workspace_bytes(const Decode& a) { return gpu::decode_bytes(a); }

void decode(const Decode& a, void* workspace, Stream stream) {
  check(refused(a));
  gpu::decode(a, workspace, stream);
}

}  // namespace attention::cuda
