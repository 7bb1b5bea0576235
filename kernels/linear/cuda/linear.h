// The same on a GPU, of 16-bit elements, and greedy choices. A launch on `stream` of the current device; errors are
// thrown.
#pragma once

#include "kernels/common/gpu/gemv/few_rows.h"
#include "kernels/common/gpu/gemv/packed_rows.h"
#include "kernels/common/gpu/launch.h"
#include "kernels/common/packing.h"
#include "kernels/linear/sample.h"

namespace linear::cuda {

void few_rows(const kernels::gpu::FewRows& a, kernels::Stream stream);  // what fits_few_rows() says yes to
bool few_rows_pay(const kernels::gpu::FewRows& a);                      // on the current device

struct Argmax {
  kernels::DType dtype;
  const void* x;  // [rows, cols]
  int64_t x_stride, rows, cols;
  int64_t* place;  // [rows]
  // Written as well, unless null: said[at * rows + row].
  int64_t* said = nullptr;
  const int64_t* at = nullptr;
};
void argmax(const Argmax& a, kernels::Stream stream);

void sample(const Sample& a, kernels::Stream stream);

// y [rows, out] = x w^T + bias of up to kMaxPackedRows rows of a 16-bit dtype, by weights in blocks, which are not
// rounded.
constexpr int kMaxPackedRows = 32;
struct PackedRows {
  kernels::DType dtype;
  kernels::Packing packing;
  const void* x;  // [rows, in], rows begin at multiples of 8 bytes
  int64_t x_stride;
  const uint8_t* w;  // [out, bytes of a row], rows begin at even addresses
  int64_t w_stride;
  const void* bias;  // [out], or null
  void* y;
  int64_t out;
  int rows, in;
};
void packed_rows(const PackedRows& a, kernels::Stream stream);
// The same of up to 64 rows, by wgmma: what takes_packed_tiles() returns true for, on a device that has it and of
// blocks that TMA can read. kTilesAreMeasured: it has not run on a GPU yet, and serves nothing before it has.
constexpr int kMaxTileRows = 64;
constexpr bool kTilesAreMeasured = false;
bool takes_packed_tiles(const PackedRows& a);
void packed_tiles(const PackedRows& a, kernels::Stream stream);
bool takes_packed_rows();  // on the current device: TMA, and shared memory for it
// The same of few rows, faster: what fits_packed_rows() says yes to.
void packed_few_rows(const kernels::gpu::PackedRows& a, kernels::Stream stream);

// Rows of blocks as floating point, rounded once.
struct Unpack {
  kernels::DType dtype;
  kernels::Packing packing;
  const uint8_t* w;
  int64_t w_stride;
  void* out;  // [rows, in]
  int64_t rows, in;
};
void unpack(const Unpack& a, kernels::Stream stream);

}  // namespace linear::cuda
