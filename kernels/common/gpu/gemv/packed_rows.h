// Products of up to 4 rows with weights in blocks (packing.h), which are read once and not rounded. Host and device
// see this.
//
//   out = epilogue(normed(x) w^T + bias)     x: [rows, in] of a 16-bit dtype, w: [out, in] in blocks of one packing
//
// As with few_rows.h, several weights may follow one another (queries, keys and values), or be gate and up, of which
// the epilogue makes act(gate) * up.
//
// x is multiplied as integers of 24 bits, with a power of two as the scale of 256 columns: an element of bfloat16 is
// exact where it is at least 2^-14 of the maximum of its 256, one of float16 where at least 2^-11; below, the error is
// 2^-23 of the maximum. Sums of integers are exact; scales are applied in float32. With weights of e4m3, which are
// floats, x is float16 with such a scale, exact from 2^-29 of the maximum on.
#pragma once

#include <cstdint>

#include "kernels/common/gpu/gemv/few_rows.h"
#include "kernels/common/packing.h"

namespace kernels::gpu {

constexpr int kMaxPackedRows = 4, kMaxPackedWeights = 3;

struct PackedRowsWeight {
  const uint8_t* data = nullptr;  // [rows, bytes of a row]; 16-byte aligned rows come by TMA, others by plain loads
  const void* bias = nullptr;     // [rows], or null
  int64_t stride = 0;             // bytes
  int rows = 0;
};

struct PackedRows {
  DType dtype;
  Packing packing;
  const void* x;  // [rows, in], rows begin at multiples of 16 bytes
  int64_t x_stride;
  int rows, in;
  const void* norm = nullptr;  // Llama's RMSNorm of x before the product, as few_rows.h has it. null: none
  float eps = 0;
  PackedRowsWeight w[kMaxPackedWeights];
  int weights = 1;
  FewRowsAct act = FewRowsAct::kNone;  // not kNone: w[0] is gate, w[1] is up
  const void* residual = nullptr;      // [rows, out], added to the rounded product; or null
  int64_t residual_stride = 0;
  void* out;  // [rows, all weights' rows, or gate's]
  int64_t out_stride;
  bool prefetch_weights = false;  // the launch before this one wrote none of the weights
};

// Columns that a warp multiplies at once, and that have one scale of x.
constexpr int kPackedPiece = 256;

// Rows that the kernel is compiled for, and what these of x take in shared memory: three digits of a byte each, and of
// 256 columns a scale and eight sums.
constexpr int compiled_packed_rows(int rows) { return rows <= 2 ? rows : 4; }
// With a norm its weight is there, too.
constexpr int64_t packed_x_bytes(int rows, int in, bool norm) {
  const int64_t pieces = (in + kPackedPiece - 1) / kPackedPiece, a_row = 3 * kPackedPiece + 9 * int64_t{sizeof(float)};
  return pieces * compiled_packed_rows(rows) * a_row + (norm ? 2 * int64_t{in} + 16 : 0);
}

// The maximum number of rows of x with `in` columns, which are whole blocks: all of x is held in shared memory.
constexpr int max_packed_rows(int64_t in, bool norm) {
  constexpr int64_t kMaxX = 112 << 10;
  int rows = in > kMaxX ? 0 : kMaxPackedRows;
  while (rows > 0 && packed_x_bytes(rows, int(in), norm) > kMaxX) --rows;
  return rows;
}

// Rows of x and the norm begin at whole vectors of 16 bytes, those of weights at even addresses; as many rows of x as
// max_packed_rows() says. A device without TMA takes none (packed_rows.cuh).
inline bool fits_packed_rows(const PackedRows& a) {
  const auto aligned = [](const void* p, int64_t stride) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 8 == 0;
  };
  bool fits = a.dtype != DType::kFloat32 && has_packed_blocks(a.packing) && a.in > 0 &&
              a.in % packed_block(a.packing) == 0 && aligned(a.x, a.rows > 1 ? a.x_stride : 0) && aligned(a.norm, 0);
  for (int i = 0; i < a.weights; ++i)
    fits = fits && (reinterpret_cast<uintptr_t>(a.w[i].data) | uint64_t(a.w[i].stride)) % 2 == 0;
  return fits && a.rows >= 1 && a.rows <= max_packed_rows(a.in, a.norm != nullptr);
}

}  // namespace kernels::gpu
