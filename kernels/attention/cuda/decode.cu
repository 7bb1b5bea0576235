// Launches of sm80_decode.cuh.
#include <algorithm>

#include "kernels/attention/cuda/attention.h"
#include "kernels/attention/cuda/sm80_decode.cuh"
#include "kernels/attention/cuda/sm80_decode_wide.cuh"
#include "kernels/attention/cuda/sm90_decode_latent.cuh"
#include "kernels/common/gpu/launch.cuh"
#include "kernels/common/gpu/ptx/tensor_map.h"

namespace attention::gpu {
namespace {

int64_t shared_memory() { return attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>(); }

// Heads of 256 want more shared memory than some GPUs have.
bool is_wide(const Problem& p) {
  return std::max(p.dim, p.value_dim) > (shared_memory() > int64_t{sizeof(DecodeMemory<256, 3>)} ? 256 : 128);
}

// Values that are the keys' first elements.
bool is_one(const Decode& a) {
  const Strides &k = a.k_cache_strides, &v = a.v_cache_strides;
  return a.k_cache == a.v_cache && k.batch == v.batch && k.row == v.row && k.head == v.head &&
         a.problem.value_dim <= a.problem.dim;
}

// Values that are the keys' first elements and so many rows that products decide: from three tiles of 16 on.
bool is_latent(const Decode& a) {
  const Problem& p = a.problem;
  return is_wide(p) && is_one(a) && p.heads / p.key_heads * p.query_rows > 2 * kDecodeRows &&
         attribute<cudaDevAttrComputeCapabilityMajor>() == 9;
}
int rows_of_block(const Decode& a) { return is_latent(a) ? LatentTraits<BFloat16>::kRows : kDecodeRows; }
int row_tiles(const Decode& a) {
  const Problem& p = a.problem;
  return int(divide_up(p.heads / p.key_heads * p.query_rows, rows_of_block(a)));
}

// By shared memory: 65, 97 or 201 KB a block; of wide ones 98 or 106.
int blocks_per_multiprocessor(const Decode& a) {
  const Problem& p = a.problem;
  const int64_t dim = std::max(p.dim, p.value_dim);
  if (is_latent(a)) return 1;
  return dim <= 64 ? 3 : dim <= 128 || is_wide(p) ? 2 : 1;
}

// Parts of a sequence's keys: so many that the blocks, in waves of as many as run at once, end soonest. A block's time
// is its keys and about 128 keys' more; by the most keys that there can be, as lengths are known to the GPU only.
int splits_of(const Decode& a) {
  const Problem& p = a.problem;
  constexpr int64_t kFewestKeys = 64, kOverhead = 128;
  if (a.splits > 0) return int(std::min<int64_t>(a.splits, kMaxParts));
  const int64_t blocks = p.batch * p.key_heads * row_tiles(a),
                at_once = multiprocessors() * blocks_per_multiprocessor(a);
  const auto time = [&](int64_t splits) {
    return divide_up(blocks * splits, at_once) * (divide_up(p.key_rows, splits) + kOverhead);
  };
  int64_t best = 1;
  for (int64_t splits = 2; splits <= std::min<int64_t>(kMaxParts, p.key_rows / kFewestKeys); ++splits)
    if (time(splits) < time(best)) best = splits;
  return int(best);
}

Cache cache_of(void* data, const void* fresh, const Strides& s, const Strides& f, int64_t dim) {
  return {data, fresh, s.batch, s.row, s.head, f.batch, f.row, f.head, int(dim)};
}

// The cache as TMA sees it. It is asked for chunks that are there alone, of any page: how many there are is
// not known here.
LatentKeys latent_keys(const Decode& a) {
  const Problem& p = a.problem;
  const Strides& s = a.k_cache_strides;
  const TensorShape keys{.data = a.k_cache,
                         .size = {p.dim, a.block_table != nullptr ? a.page_rows : p.key_rows, p.key_heads, 1 << 30},
                         .stride = {1, s.row, s.head, s.batch},
                         .dtype = p.dtype};
  LatentKeys result{};
  if (p.key_rows > 0 && fits_tensor_map(keys)) result = {tensor_map(keys, kDecodeKeys), true};
  return result;
}

template <class T, int kDim, int kStages>
void launch_decode(const DecodeArguments& a, int64_t blocks, Stream stream) {
  constexpr int64_t kBytes = sizeof(DecodeMemory<kDim, kStages>);
  launch_after_with_memory<&decode_kernel<T, kDim, kStages>, /*kMaxShared=*/true>(kBytes, blocks, 32 * kDecodeWarps, 1,
                                                                                  stream, a);
}
template <class D>
void launch_wide(const DecodeArguments& a, int64_t blocks, Stream stream) {
  launch_after_with_memory<&decode_wide_kernel<D>, /*kMaxShared=*/true>(sizeof(DecodeWideMemory<D>), blocks,
                                                                        D::kThreads, 1, stream, a);
}

// As many stages as keep 64 KB or more of copies under way in a multiprocessor.
template <class T>
void decode_of(const Decode& a, const DecodeArguments& arguments, Stream stream) {
  const Problem& p = a.problem;
  const int64_t blocks = int64_t{arguments.row_tiles} * arguments.splits * p.key_heads * p.batch;
  const int64_t dim = std::max(p.dim, p.value_dim), rows = p.batch * p.heads * p.query_rows;
  if (is_latent(a))
    launch_after_with_memory<&decode_latent_kernel<LatentTraits<T>>, /*kMaxShared=*/true>(
        sizeof(LatentMemory<LatentTraits<T>>), blocks, LatentTraits<T>::kThreads, 1, stream, arguments, latent_keys(a));
  else if (is_wide(p) && is_one(a))
    launch_wide<DecodeWideTraits<T, true, 5, 2>>(arguments, blocks, stream);
  else if (is_wide(p) && shared_memory() > int64_t{sizeof(DecodeWideMemory<DecodeWideTraits<T, false, 3, 1>>)})
    launch_wide<DecodeWideTraits<T, false, 3, 1>>(arguments, blocks, stream);
  else if (is_wide(p))
    launch_wide<DecodeWideTraits<T, false, 2, 1>>(arguments, blocks, stream);
  else if (dim <= 64)
    launch_decode<T, 64, 4>(arguments, blocks, stream);
  else if (dim <= 128)
    launch_decode<T, 128, 3>(arguments, blocks, stream);
  else
    launch_decode<T, 256, 3>(arguments, blocks, stream);
  if (arguments.splits == 1) return;
  if (arguments.splits < 32)
    launch_after_with_memory<&combine_kernel<T>, /*kMaxShared=*/true>(
        0, divide_up(rows * divide_up(p.value_dim, 128), kCombineWarps), 32 * kCombineWarps, 1, stream, arguments,
        int(rows));
  else
    launch_after_with_memory<&combine_many_kernel<T>, /*kMaxShared=*/true>(0, rows * divide_up(p.value_dim, 32),
                                                                           32 * kDecodeWarps, 1, stream, arguments);
}

}  // namespace

int64_t decode_bytes(const Decode& a) {
  const Problem& p = a.problem;
  const int64_t splits = splits_of(a);
  return splits == 1 ? 0 : p.batch * p.heads * p.query_rows * splits * (p.value_dim + 1) * int64_t{sizeof(float)};
}

void decode(const Decode& a, void* workspace, Stream stream) {
  const Problem& p = a.problem;
  if (p.batch * p.heads * p.query_rows == 0) return;
  const int splits = splits_of(a);
  auto* part_out = splits == 1 ? nullptr : static_cast<float*>(workspace);
  const DecodeArguments arguments{
      .out = a.out,
      .lse = a.lse,
      .part_out = part_out,
      .part_lse = splits == 1 ? nullptr : part_out + p.batch * p.heads * p.query_rows * splits * p.value_dim,
      .q = a.q,
      .k = cache_of(a.k_cache, a.k_new, a.k_cache_strides, a.k_new_strides, p.dim),
      .v = cache_of(a.v_cache, a.v_new, a.v_cache_strides, a.v_new_strides, p.value_dim),
      .lengths = a.lengths,
      .block_table = a.block_table,
      .cache_index = a.cache_index,
      .sinks = p.sinks,
      .slopes = p.slopes,
      .q_batch = a.q_strides.batch,
      .q_row = a.q_strides.row,
      .q_head = a.q_strides.head,
      .block_table_stride = a.block_table_stride,
      .slopes_batch = p.slopes_batch_stride,
      .query_rows = int(p.query_rows),
      .key_rows = int(p.key_rows),
      .heads = int(p.heads),
      .key_heads = int(p.key_heads),
      .group = int(p.heads / p.key_heads),
      .new_rows = a.k_new == nullptr ? 0 : int(a.new_rows),
      .page_rows = int(a.page_rows),
      .splits = splits,
      .row_tiles = row_tiles(a),
      .left = int(std::min<int64_t>(p.window_left, 1 << 30)),
      .right = int(std::min<int64_t>(p.window_right, 1 << 30)),
      .chunk = int(std::min<int64_t>(p.chunk, 1 << 30)),
      .chunks_of_page = Divider(a.block_table != nullptr ? a.page_rows / kDecodeKeys : 1),
      .by_group = Divider(p.heads / p.key_heads),
      .by_row_tiles = Divider(row_tiles(a)),
      .by_splits = Divider(splits),
      .by_key_heads = Divider(p.key_heads),
      .score_scale = (p.softcap > 0 ? p.softcap : p.scale) * kLog2e,
      .cap_scale = p.softcap > 0 ? p.scale / p.softcap : 0.f,
  };
  p.dtype == DType::kBFloat16 ? decode_of<BFloat16>(a, arguments, stream) : decode_of<Half>(a, arguments, stream);
}

}  // namespace attention::gpu
