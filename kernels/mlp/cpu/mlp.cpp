// Gated activations on the CPU. Compiled once per ISA.
#include "kernels/mlp/mlp.h"

#include "kernels/common/cpu/activations.h"
#include "kernels/common/cpu/nontemporal.h"

namespace mlp::HOTSWAP_ISA {
using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

template <class Act, bool kStream, class T>
HOTSWAP_INLINE void forward(T* y, const T* gate, const T* up, int64_t n) {
  sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    if constexpr (kStream) prefetch(gate + i), prefetch(up + i);
    write<kStream>(y + i, Act::template value<kPrecisionOf<T>>(load(gate + i, count)) * load(up + i, count), count);
  });
}

// y: null where it is not wanted again.
template <class Act, bool kStream, class T>
HOTSWAP_INLINE void backward(T* y, T* dgate, T* dup, const T* dy, const T* gate, const T* up, int64_t n) {
  sweep(n, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const F u = load(up + i, count), d = load(dy + i, count);
    const Both act = Act::template both<kPrecisionOf<T>>(load(gate + i, count));
    if (y != nullptr) write<kStream>(y + i, act.value * u, count);  // may be where dy was, and so are the other two:
    write<kStream>(dup + i, d * act.value, count);                  // where up and gate were
    write<kStream>(dgate + i, d * u * act.slope, count);
  });
}

template <class Act, bool kStream, class T>
static void blocks(const GatedArgs& a, int64_t begin, int64_t end) {
  const int64_t per_row = (a.cols + kGatedBlock - 1) / kGatedBlock;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t row = block / per_row, col = block % per_row * kGatedBlock;
    const int64_t n = a.cols - col < kGatedBlock ? a.cols - col : kGatedBlock, at = row * a.cols + col;
    const T* gate = static_cast<const T*>(a.gate) + row * a.gate_stride + col;
    const T* up = static_cast<const T*>(a.up) + row * a.up_stride + col;
    if (a.dy == nullptr) {
      forward<Act, kStream>(static_cast<T*>(a.y) + at, gate, up, n);
    } else {
      const T* dy = static_cast<const T*>(a.dy) + row * a.dy_stride + col;
      T* y = a.y == nullptr ? nullptr : static_cast<T*>(a.y) + at;
      backward<Act, kStream>(y, static_cast<T*>(a.dgate) + at, static_cast<T*>(a.dup) + at, dy, gate, up, n);
    }
  }
  if (kStream) stream_fence();
}

// Outputs larger than the cache go around it where every row begins at a whole vector.
template <class T>
static bool streams(const GatedArgs& a) {
  if (!wants_stream(a.rows * a.cols * int64_t{sizeof(T)}) || (a.rows > 1 && a.cols % kLanes != 0)) return false;
  const auto can = [](void* out) { return out == nullptr || can_stream(static_cast<T*>(out)); };
  return can(a.y) && can(a.dgate) && can(a.dup);
}

template <class Act, class T>
static void stream_or_store(const GatedArgs& a, int64_t begin, int64_t end) {
  streams<T>(a) ? blocks<Act, true, T>(a, begin, end) : blocks<Act, false, T>(a, begin, end);
}

static void gated(const GatedArgs& a, int64_t begin, int64_t end) {
  with_dtype(a.dtype, [&]<typename T>() {
    a.act == GatedAct::kSwiGlu ? stream_or_store<Silu, T>(a, begin, end) : stream_or_store<GeluTanh, T>(a, begin, end);
  });
}

const Table kTable = {gated};

}  // namespace mlp::HOTSWAP_ISA
