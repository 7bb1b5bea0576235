// The arguments of packed_product() (packed_product.h), outside the namespace of an ISA: for packages' own headers.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/packing.h"

namespace kernels {

struct PackedProduct {
  DType dtype;  // of bias and y
  Packing packing;
  const float* x;    // [rows, in], as packed_input() leaves it, aligned to 64 bytes
  const void* w;     // [out, blocks of `in` weights], rows w_stride bytes apart
  const void* bias;  // [out] or null
  void* y;           // [rows, out], rows y_stride elements apart
  int64_t rows, in, w_stride, y_stride;
  float* room;  // [packed_room()] of this thread, aligned to 64 bytes
};

}  // namespace kernels
