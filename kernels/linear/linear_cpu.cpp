// Matrix times few vectors. Compiled once per ISA.
#include "kernels/common/cpu/few_rows.h"
#include "kernels/linear/linear.h"

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

}  // namespace

const Table kTable = {prepare, gemv};

}  // namespace linear::HOTSWAP_ISA
