// Non-temporal stores. Measured 1.2 to 1.7x on outputs larger than the cache (no read-for-ownership), slower when the
// result is read at once from cache: chosen by the size of the output.
#pragma once

#include "kernels/common/cpu/vec.h"

namespace kernels {

constexpr int64_t kStreamBytes = int64_t{8} << 20;
constexpr bool wants_stream(int64_t output_bytes) { return output_bytes >= kStreamBytes; }

namespace HOTSWAP_ISA {

// Non-temporal stores want an address aligned to the stored vector.
template <class T>
HOTSWAP_INLINE bool can_stream(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % (kLanes * sizeof(T)) == 0;
}

// Ordinary and streaming stores of v at p by one name: write<kStream>(p, v, count). kStream needs can_stream(p).
template <bool kStream, class T>
HOTSWAP_INLINE void write(T* p, F v, All) {
#if defined(__x86_64__)
  if constexpr (kStream) {
    const auto packed = pack(v, p);
    if constexpr (sizeof packed == 64)
      _mm512_stream_si512((__m512i*)p, __builtin_bit_cast(__m512i, packed));
    else if constexpr (sizeof packed == 32)
      _mm256_stream_si256((__m256i*)p, __builtin_bit_cast(__m256i, packed));
    else if constexpr (sizeof packed == 16)
      _mm_stream_si128((__m128i*)p, __builtin_bit_cast(__m128i, packed));
    else
      _mm_stream_si64((long long*)p, __builtin_bit_cast(long long, packed));
    return;
  }
#endif
  store(p, v, All{});
}
template <bool kStream, class T>
HOTSWAP_INLINE void write(T* p, F v, Part part) {
  store(p, v, part);
}

// After the last streaming store of a thread, before another thread may read.
HOTSWAP_INLINE void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Asks for what a loop over DRAM reads 2 KiB from now: the hardware's own prefetch ends at each page, and arithmetic
// between loads keeps the core from running ahead.
template <class T>
HOTSWAP_INLINE void prefetch(const T* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(p) + 2048);
}

}  // namespace HOTSWAP_ISA
}  // namespace kernels
