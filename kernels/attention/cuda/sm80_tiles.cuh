// Tiles of rows in shared memory, and products of a warp's rows with them (kernels/common/gpu/ptx/mma.cuh): what
// forward and backward for sm_80 and later are made of.
//
// A row is cut into pieces of 16 bytes, piece p of row r lies at place p ^ r % 8: eight rows' pieces of the same number
// are in different banks. A warp has kBands bands of 16 rows; sums of a band are [columns / 8][4] in registers, laid
// out as mma.cuh says, and as those of wgmma are: RowSoftmax takes both.
#pragma once

#include "kernels/attention/cuda/softmax.cuh"
#include "kernels/attention/cuda/spans.h"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/common/gpu/ptx/ldmatrix.cuh"
#include "kernels/common/gpu/ptx/mma.cuh"

namespace attention::gpu {

// A tensor [batch, rows, heads, dim] in memory.
struct RowsInMemory {
  const void* data;
  int64_t batch, row, head;  // distances

  template <class T>
  __device__ __forceinline__ const T* at(int batch_index, int row_index, int head_index) const {
    return static_cast<const T*>(data) + batch_index * batch + row_index * row + head_index * head;
  }
};

template <int kRows, int kDim>
__device__ __forceinline__ uint16_t* piece_of(uint16_t (&tile)[kRows][kDim], int row, int piece) {
  return &tile[row][(piece ^ row % 8) * 8];
}
// Piece 2 * i + odd of a row that is `swizzle` more than a multiple of 8: four places, the others in steps of 128
// bytes.
__device__ __forceinline__ int place_of(int i, int odd, int swizzle) {
  return ((i % 4 * 2 + odd) ^ swizzle) * 8 + i / 4 * 64;
}

// Starts to copy rows, of which so many are there, and of each so many elements: the rest becomes zeros. All threads.
template <int kThreads, class T, int kRows, int kDim>
__device__ __forceinline__ void start_rows(uint16_t (&tile)[kRows][kDim], const T* from, int64_t stride, int rows,
                                           int dim) {
  constexpr int kPieces = kDim / 8;
#pragma unroll 4  // all at once, and the compiler keeps every piece's address in a register all along
  for (int i = 0; i < kRows * kPieces / kThreads; ++i) {
    const int at = i * kThreads + int(threadIdx.x), row = at / kPieces, piece = at % kPieces;
    cp_async(piece_of(tile, row, piece), from + row * stride + 8 * piece, row >= rows || 8 * piece >= dim);
  }
}

// sum += own rows (from `first` on) times the other rows: [own, other].
template <class T, int kBands, int kOwn, int kOther, int kDim>
__device__ __forceinline__ void add_by_rows(float (&sum)[kBands][kOther / 2], const uint16_t (&own)[kOwn][kDim],
                                            int first, const uint16_t (&other)[kOther][kDim]) {
  const int lane = threadIdx.x % 32;
  const uint16_t* a_row = own[first + lane % 16];
  const uint16_t* b_row = other[lane / 16 * 8 + lane % 8];
  constexpr int kAtOnce = kDim > 256 ? 4 : kDim / 16;  // the widest heads compile in half of the time so
#pragma unroll kAtOnce
  for (int i = 0; i < kDim / 16; ++i) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int m = 0; m < kBands; ++m) ldmatrix_x4(a[m], a_row + 16 * m * kDim + place_of(i, lane / 16, lane % 8));
#pragma unroll
    for (int j = 0; j < kOther / 16; ++j) {
      uint32_t b[4];
      ldmatrix_x4(b, b_row + 16 * j * kDim + place_of(i, lane / 8 % 2, lane % 8));
#pragma unroll
      for (int m = 0; m < kBands; ++m) {
        mma_m16n8k16<T>(sum[m] + 8 * j, a[m], b[0], b[1]);
        mma_m16n8k16<T>(sum[m] + 8 * j + 4, a[m], b[2], b[3]);
      }
    }
  }
}

// sum += own elements of 16 bits in registers [own, other] times kColumns columns of the other rows, from a multiple of
// 64 on.
template <class T, int kColumns, int kBands, int kOther, int kDim>
__device__ __forceinline__ void add_by_columns(float (&sum)[kBands][kColumns / 2],
                                               const uint32_t (&own)[kBands][kOther / 16][4],
                                               const uint16_t (&other)[kOther][kDim], int first_column) {
  const int lane = threadIdx.x % 32;
  const uint16_t* row = other[lane % 16] + first_column;
#pragma unroll
  for (int k = 0; k < kOther / 16; ++k) {
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, row + 16 * k * kDim + place_of(i, lane / 16, lane % 8));
#pragma unroll
      for (int m = 0; m < kBands; ++m) {
        mma_m16n8k16<T>(sum[m] + 8 * i, own[m][k], b[0], b[1]);
        mma_m16n8k16<T>(sum[m] + 8 * i + 4, own[m][k], b[2], b[3]);
      }
    }
  }
}

// Sums as the left factor of a product.
template <class T, int kBands, int kHalf>
__device__ __forceinline__ void round_sums(uint32_t (&rounded)[kBands][kHalf / 8][4],
                                           const float (&sum)[kBands][kHalf]) {
#pragma unroll
  for (int m = 0; m < kBands; ++m) {
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i) rounded[m][i / 4][i % 4] = pack_pair<T>(sum[m][2 * i], sum[m][2 * i + 1]);
  }
}

// A warp's sums, each row times its factor (0: zeros, whatever the sums hold), to memory, by way of its own rows of a
// tile that nobody else reads. Row r of the warp goes to to + r * stride, so many rows and so many elements of each.
template <class T, int kBands, int kHalf, int kOwn, int kDim>
__device__ __forceinline__ void store_sums(const float (&sum)[kBands][kHalf], const float (&factor)[kBands][2],
                                           uint16_t (&tile)[kOwn][kDim], int first, T* to, int64_t stride, int rows,
                                           int dim) {
  constexpr int kPieces = kHalf * 2 / 8;
  const int lane = threadIdx.x % 32;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kBands; ++m) {
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i) {
      const int row = first + 16 * m + lane / 4 + i % 2 * 8;
      const float f = factor[m][i % 2];
      *reinterpret_cast<uint32_t*>(piece_of(tile, row, i / 2) + lane % 4 * 2) =
          f == 0.f ? 0 : pack_pair<T>(sum[m][2 * i] * f, sum[m][2 * i + 1] * f);
    }
  }
  __syncwarp();
#pragma unroll 4
  for (int at = lane; at < 16 * kBands * kPieces; at += 32) {
    const int row = at / kPieces, piece = at % kPieces;
    if (row < rows && 8 * piece < dim)
      *reinterpret_cast<uint4*>(to + row * stride + 8 * piece) =
          *reinterpret_cast<const uint4*>(piece_of(tile, first + row, piece));
  }
}

}  // namespace attention::gpu
