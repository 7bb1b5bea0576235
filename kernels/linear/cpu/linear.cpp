// Matrix times few vectors. Compiled once per ISA.
#include "kernels/linear/linear.h"

#include "kernels/common/cpu/few_rows.h"
#include "kernels/common/cpu/packed_product.h"

namespace linear::HOTSWAP_ISA {
namespace {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

void prepare(float* to, const void* x, DType dtype, int64_t rows, int64_t in, int64_t x_stride) {
  with_dtype(dtype, [&]<typename T>() HOTSWAP_LAMBDA {
    for (int64_t r = 0; r < rows; ++r) prepare_row(to + r * in, static_cast<const T*>(x) + r * x_stride, in);
  });
}

void gemv(const Gemv& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() HOTSWAP_LAMBDA {
    outputs<T>({.x = a.x, .w = a.w, .bias = a.bias, .y = a.y, .in = a.in, .w_stride = a.w_stride, .y_stride = a.out},
               a.rows, begin, end);
  });
}

void widen(float* to, const void* x, DType dtype, int64_t rows, int64_t in, int64_t x_stride) {
  with_dtype(dtype, [&]<typename T>() HOTSWAP_LAMBDA {
    for (int64_t r = 0; r < rows; ++r) {
      const T* from = static_cast<const T*>(x) + r * x_stride;
      sweep(in, [&](int64_t i, auto count) HOTSWAP_LAMBDA { store(to + r * in + i, load(from + i, count), count); });
    }
  });
}

void packed_input(float* to, const void* x, DType dtype, int64_t x_stride, int64_t rows, int64_t in, int64_t begin,
                  int64_t end) {
  with_dtype(dtype, [&]<typename T>() HOTSWAP_LAMBDA {
    kernels::HOTSWAP_ISA::packed_input(to, static_cast<const T*>(x), x_stride, rows, in, begin, end);
  });
}

static_assert(linear::kInputRows == kernels::HOTSWAP_ISA::kInputRows && linear::kMaxRows >= kStreamedRows);

}  // namespace

const Table kTable = {prepare, gemv, widen, packed_input, packed_room, packed_product, plain_product};

}  // namespace linear::HOTSWAP_ISA
