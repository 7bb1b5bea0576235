// Products with an expert's packed weights: those of the linear package, of rows at any address. Compiled once per
// ISA.
#include "kernels/common/cpu/packed_product.h"
#include "kernels/moe/cpu/kernels.h"

namespace moe::HOTSWAP_ISA {

using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

static_assert(moe::kPackedInputRows == kInputRows);
static_assert(moe::kPackedOutputs % (kPanelTiles * kTileOuts) == 0);

void packed_input(float* to, const void* const* rows, DType dtype, int64_t count, int64_t in, int64_t begin,
                  int64_t end) {
  with_dtype(dtype, [&]<typename T>() HOTSWAP_LAMBDA {
    kernels::HOTSWAP_ISA::packed_input(
        to, [&](int64_t row) HOTSWAP_LAMBDA { return static_cast<const T*>(rows[row - begin]); }, count, in, begin,
        end);
  });
}

int64_t packed_room(int64_t rows, int64_t in) { return kernels::HOTSWAP_ISA::packed_room(rows, in); }

}  // namespace moe::HOTSWAP_ISA
