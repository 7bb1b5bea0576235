// The product of every packing and number of rows, a large piece of code that several packages link. Compiled once per
// ISA.
#include "kernels/common/cpu/packed_product.h"

namespace kernels::HOTSWAP_ISA {

void packed_product(const PackedProduct& a, int64_t begin, int64_t end) {
  with_packing(a.packing, [&]<Packing kPacking>() HOTSWAP_LAMBDA {
    if constexpr (kPacking != Packing::kNone) {
      if (a.rows <= kStreamedRows) return packed_few<kPacking>(a, begin, end);
      packed_many<PackedBlocks<kPacking>>(a, begin, end);
    }
  });
}

void plain_product(const PackedProduct& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() HOTSWAP_LAMBDA { packed_many<PlainBlocks<T>>(a, begin, end); });
}

}  // namespace kernels::HOTSWAP_ISA
