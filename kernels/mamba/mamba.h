// What the families of this package's ops share: conv.h, scan.h, update.h. No torch.
#pragma once

#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/common/dtype.h"

namespace mamba {

using kernels::DType;

// A tensor [batch, channels, steps] where it lies, whatever its strides (in numbers; 0 where it is expanded). Smaller
// ones too: weights [channels, taps] have batch 0, a bias [channels] also step 0.
struct View {
  void* data;  // null: there is none
  DType type;
  int64_t batch, channel, step;
};

// The sequence that each token belongs to, [batch, length]; negative: padding, of no sequence. Null: one sequence a
// row.
struct Sequences {
  const int32_t* data;
  int64_t batch, step;
};
HOTSWAP_INLINE int32_t sequence_of(const Sequences& s, int64_t batch, int64_t t) {
  return s.data[batch * s.batch + t * s.step];
}

// On the CPU channels are worked on side by side, so many of one batch entry at a time.
constexpr int64_t kBlock = 64;
// Between a tile's rows: 64 numbers would put a column's lines into a quarter of a cache's sets.
constexpr int64_t kRow = kBlock + 16;
HOTSWAP_INLINE int64_t blocks_of(int64_t channels) { return (channels + kBlock - 1) / kBlock; }

}  // namespace mamba
