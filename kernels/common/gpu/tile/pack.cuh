// Elements of 16 and 32 bits in registers: conversions, pairs in a word, and packs that are loaded and stored as whole
// vectors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/gpu/ptx/approx.cuh"
#include "kernels/common/gpu/ptx/ld_evict_last.cuh"

namespace kernels::gpu {

// ---- elements
__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(BFloat16 v) { return __uint_as_float(uint32_t(v.bits) << 16); }
__device__ __forceinline__ float to_float(Half v) { return __half2float(__ushort_as_half(v.bits)); }

template <class T>
__device__ __forceinline__ T from_float(float v) {
  if constexpr (sizeof(T) == 4)
    return v;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return {__bfloat16_as_ushort(__float2bfloat16_rn(v))};
  else
    return {__half_as_ushort(__float2half_rn(v))};
}
template <class T>
__device__ __forceinline__ float rounded(float v) {
  return to_float(from_float<T>(v));
}
__device__ __forceinline__ float rounded(float v, DType dtype) {
  return dtype == DType::kFloat32 ? v : dtype == DType::kBFloat16 ? rounded<BFloat16>(v) : rounded<Half>(v);
}

template <class T>  // the two elements of a word
__device__ __forceinline__ float2 unpack_pair(uint32_t w) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return {__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u)};
  else
    return __half22float2(reinterpret_cast<const __half2&>(w));
}
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(v);
  } else {
    const __half2 v = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(v);
  }
}

// fn of the elements of three words: two where T has 16 bits.
template <class T, class Fn>
__device__ __forceinline__ uint32_t map_word(uint32_t a, uint32_t b, uint32_t c, const Fn& fn) {
  if constexpr (sizeof(T) == 4) {
    return __float_as_uint(fn(__uint_as_float(a), __uint_as_float(b), __uint_as_float(c)));
  } else {
    const float2 x = unpack_pair<T>(a), y = unpack_pair<T>(b), z = unpack_pair<T>(c);
    return pack_pair<T>(fn(x.x, y.x, z.x), fn(x.y, y.y, z.y));
  }
}

// ---- N elements as in memory: whole 16-byte vectors, or one element
template <class T, int N>
struct Pack {
  static_assert(N * sizeof(T) % 16 == 0);
  uint32_t w[N * sizeof(T) / 4];
};
template <class T>
struct Pack<T, 1> {
  T value;
};
template <class T>
constexpr int kPerVector = 16 / sizeof(T);

// Plain accesses. With streaming hints (.cs) on both sides a kernel has little of L2 for itself while lines of normal
// priority lie there, such as those of a program that clears it: 5 to 8% slower. The store is an intrinsic: an
// assignment the compiler may take apart, and four stores of 32 bits cost 12% of the memory's rate. The load is none:
// as an intrinsic it keeps its place among others.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load(const T* p) {
  Pack<T, N> out;
  if constexpr (N == 1) {
    out.value = *p;
  } else {
#pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / 16); ++i) {
      const uint4 v = reinterpret_cast<const uint4*>(p)[i];
      out.w[4 * i] = v.x, out.w[4 * i + 1] = v.y, out.w[4 * i + 2] = v.z, out.w[4 * i + 3] = v.w;
    }
  }
  return out;
}
template <class T, int N>
__device__ __forceinline__ void store(T* p, const Pack<T, N>& v) {
  if constexpr (N == 1) {
    *p = v.value;
  } else {
#pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / 16); ++i)
      __stwb(reinterpret_cast<uint4*>(p) + i, make_uint4(v.w[4 * i], v.w[4 * i + 1], v.w[4 * i + 2], v.w[4 * i + 3]));
  }
}
// A load whose line is the last to leave L1 and L2. Here it is read once; but with stores of as much beside it, written
// lines then go to memory before read ones, and a kernel that does nothing else runs at 4180 GB/s instead of 4000, and
// whoever reads next what it wrote is no slower.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_evict_last(const T* p) {
  static_assert(N * sizeof(T) == 16);
  const uint4 v = ld_evict_last(p);
  return {v.x, v.y, v.z, v.w};
}
// The same, first to leave L2: beside data that is read again from there.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_streaming(const T* p) {
  if constexpr (N == 1) {
    return load<N>(p);
  } else {
    Pack<T, N> out;
#pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / 16); ++i) {
      const uint4 v = __ldcs(reinterpret_cast<const uint4*>(p) + i);
      out.w[4 * i] = v.x, out.w[4 * i + 1] = v.y, out.w[4 * i + 2] = v.z, out.w[4 * i + 3] = v.w;
    }
    return out;
  }
}
template <class T, int N>
__device__ __forceinline__ void store_streaming(T* p, const Pack<T, N>& v) {
  if constexpr (N == 1) {
    store(p, v);
  } else {
#pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / 16); ++i)
      __stcs(reinterpret_cast<uint4*>(p) + i, make_uint4(v.w[4 * i], v.w[4 * i + 1], v.w[4 * i + 2], v.w[4 * i + 3]));
  }
}
template <class T, int N>
__device__ __forceinline__ void unpack(const Pack<T, N>& v, float (&f)[N]) {
  if constexpr (N == 1) {
    f[0] = to_float(v.value);
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = __uint_as_float(v.w[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const float2 two = unpack_pair<T>(v.w[i]);
      f[2 * i] = two.x, f[2 * i + 1] = two.y;
    }
  }
}
template <class T, int N>
__device__ __forceinline__ float element_of(const Pack<T, N>& v, int i) {  // i known when this is compiled
  if constexpr (N == 1) {
    return to_float(v.value);
  } else if constexpr (sizeof(T) == 4) {
    return __uint_as_float(v.w[i]);
  } else {
    const float2 two = unpack_pair<T>(v.w[i / 2]);
    return i % 2 == 0 ? two.x : two.y;
  }
}
template <class T, int N>
__device__ __forceinline__ Pack<T, N> pack(const float (&f)[N]) {
  Pack<T, N> out;
  if constexpr (N == 1) {
    out.value = from_float<T>(f[0]);
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) out.w[i] = __float_as_uint(f[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) out.w[i] = pack_pair<T>(f[2 * i], f[2 * i + 1]);
  }
  return out;
}

// ---- walks (launch.h): load and store, which take 32 bytes in one access where the GPU can, p at a
// multiple of them. sm_100 is the first that can (from CUDA 12.9 on). Code for others leaves out what would take 32
// bytes; HOTSWAP_TEST_WIDE builds it there too, two accesses for one, so that any GPU can test it.
#if defined(HOTSWAP_TEST_WIDE) || __CUDA_ARCH__ >= 1000
constexpr bool kWideBuilt = true;
#else
constexpr bool kWideBuilt = false;
#endif

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_whole(const T* p) {
#if __CUDA_ARCH__ >= 1000
  if constexpr (N * sizeof(T) == 32) {
    Pack<T, N> v;
    asm volatile("ld.global.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]), "=r"(v.w[4]), "=r"(v.w[5]), "=r"(v.w[6]),
                   "=r"(v.w[7])
                 : "l"(p));
    return v;
  }
#endif
  return load<N>(p);
}
template <class T, int N>
__device__ __forceinline__ void store_whole(T* p, const Pack<T, N>& v) {
#if __CUDA_ARCH__ >= 1000
  if constexpr (N * sizeof(T) == 32) {
    asm volatile("st.global.v8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"l"(p), "r"(v.w[0]), "r"(v.w[1]),
                 "r"(v.w[2]), "r"(v.w[3]), "r"(v.w[4]), "r"(v.w[5]), "r"(v.w[6]), "r"(v.w[7])
                 : "memory");
    return;
  }
#endif
  store(p, v);
}

template <int N, class T>
__device__ __forceinline__ void load_floats(const T* p, float (&f)[N]) {
  unpack(load<N>(p), f);
}
template <int N, class T>
__device__ __forceinline__ void store_floats(T* p, const float (&f)[N]) {
  store(p, pack<T>(f));
}

// What was unpacked before is unpacked again: registers are dearer than the instruction.
template <class T, int N>
__device__ __forceinline__ void force_reunpack(Pack<T, N>& v) {
  if constexpr (N > 1) {
#pragma unroll
    for (int i = 0; i < int(N * sizeof(T) / 4); ++i) asm volatile("" : "+r"(v.w[i]));
  }
}

// N elements of a type known at run time (the same for all threads), kept as they are for other threads.
template <int N>
__device__ __forceinline__ void load_any(const void* data, DType dtype, int64_t at, bool aligned, float (&f)[N]) {
  const auto typed = [&](auto* p) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(p)>>;
    if constexpr (N > 1 && N * sizeof(T) % 16 == 0) {
      if (aligned) return unpack(load<N>(p + at), f);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = to_float(static_cast<const T*>(p)[at + i]);
  };
  if (dtype == DType::kFloat32)
    typed(static_cast<const float*>(data));
  else if (dtype == DType::kBFloat16)
    typed(static_cast<const BFloat16*>(data));
  else
    typed(static_cast<const Half*>(data));
}
// One element of such a type, rounded to it.
__device__ __forceinline__ void store_any(void* data, DType dtype, int64_t at, float v) {
  if (dtype == DType::kFloat32)
    static_cast<float*>(data)[at] = v;
  else if (dtype == DType::kBFloat16)
    static_cast<BFloat16*>(data)[at] = from_float<BFloat16>(v);
  else
    static_cast<Half*>(data)[at] = from_float<Half>(v);
}

}  // namespace kernels::gpu
