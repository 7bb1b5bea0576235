// Matrix products of warpgroups (wgmma, sm_90a): D[64, N] += A[64, 16] B[16, N], float32 sums of 16-bit elements. The
// four warps of a warpgroup issue them together; they run on while the warps do something else, until wgmma_wait.
//
// Sums. Thread t of the warpgroup holds rows 16 * (t / 32) + t % 32 / 4 (and 8 further): of columns 8j + t % 4 * 2 and
// the next one, d[4j], d[4j + 1] in the first row and d[4j + 2], d[4j + 3] in the other. A in registers has the same
// layout: of 16 columns k, a = pairs of d[8k], d[8k + 2], d[8k + 4], d[8k + 6]. So the sums of one product are,
// rounded, the A of the next.
//
// Operands in shared memory are panels as TMA writes them (tensor_map.h): rows of 64 elements, 128 bytes,
// their 16-byte pieces exchanged within 8 rows. A panel begins at a multiple of 1024 bytes. To move along a row by 16
// elements, add 32 bytes; the exchange is of address bits, so it stays right.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/gpu/ptx/shared_address.cuh"

namespace kernels::gpu {

template <class T>
struct WgmmaType;
template <>
struct WgmmaType<BFloat16> {
  static constexpr const char name[] = "bf16";
};
template <>
struct WgmmaType<Half> {
  static constexpr const char name[] = "f16";
};

// How wgmma takes an operand in shared memory: address, and two distances, all in units of 16 bytes; at bit 62
// the kind of exchange. Adding to the whole adds to the address.
using Operand = uint64_t;
__device__ __forceinline__ Operand operand(uint32_t address, uint32_t leading_bytes) {
  constexpr uint64_t kEightRows = 1024 / 16;
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(leading_bytes >> 4) << 16 | kEightRows << 32 | uint64_t{1} << 62;
}
// Panels whose rows go along the product's outer dimension (A's rows, B's columns): k runs along a row.
__device__ __forceinline__ Operand operand_by_rows(const void* panel) { return operand(shared_address(panel), 16); }
// Panels whose rows go along k (a B stored as [k, N]): N runs along rows and then on in panels `panel_bytes` apart.
__device__ __forceinline__ Operand operand_by_columns(const void* panel, uint32_t panel_bytes) {
  return operand(shared_address(panel), panel_bytes);
}
__device__ __forceinline__ Operand moved(Operand a, uint32_t bytes) { return a + (bytes >> 4); }

// Before the first product after registers of sums or A were written.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Products since the last call become a group.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most kGroups groups are unfinished.
template <int kGroups>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// After the wait: keeps the compiler from using the sums before it, which their registers alone would allow.
template <int N>
__device__ __forceinline__ void wgmma_fence_operand(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// What asm is told of a product's sums: their names in its text, and d itself.
#define HOTSWAP_SUM_NAMES_4 "%0, %1, %2, %3"
#define HOTSWAP_SUM_NAMES_8 \
  HOTSWAP_SUM_NAMES_4       \
  ", %4, %5, %6, %7"
#define HOTSWAP_SUM_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define HOTSWAP_SUM_NAMES_32 \
  HOTSWAP_SUM_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HOTSWAP_SUM_NAMES_40 \
  HOTSWAP_SUM_NAMES_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define HOTSWAP_SUM_NAMES_64                                                                             \
  HOTSWAP_SUM_NAMES_40                                                                                   \
  ", %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59" \
  ", %60, %61, %62, %63"
#define HOTSWAP_SUM_NAMES_80 \
  HOTSWAP_SUM_NAMES_64       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define HOTSWAP_SUM_NAMES_96 \
  HOTSWAP_SUM_NAMES_80       \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define HOTSWAP_SUM_NAMES_128                                                                                \
  HOTSWAP_SUM_NAMES_96                                                                                       \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113" \
  ", %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define HOTSWAP_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HOTSWAP_SUMS_8(i) HOTSWAP_SUMS_4(i), HOTSWAP_SUMS_4(i + 4)
#define HOTSWAP_SUMS_16(i) HOTSWAP_SUMS_8(i), HOTSWAP_SUMS_8(i + 8)
#define HOTSWAP_SUMS_32(i) HOTSWAP_SUMS_16(i), HOTSWAP_SUMS_16(i + 16)
#define HOTSWAP_SUMS_40(i) HOTSWAP_SUMS_32(i), HOTSWAP_SUMS_8(i + 32)
#define HOTSWAP_SUMS_64(i) HOTSWAP_SUMS_32(i), HOTSWAP_SUMS_32(i + 32)
#define HOTSWAP_SUMS_80(i) HOTSWAP_SUMS_64(i), HOTSWAP_SUMS_16(i + 64)
#define HOTSWAP_SUMS_96(i) HOTSWAP_SUMS_64(i), HOTSWAP_SUMS_32(i + 64)
#define HOTSWAP_SUMS_128(i) HOTSWAP_SUMS_64(i), HOTSWAP_SUMS_64(i + 64)
// `sums` elements of d are %0 and so on; the operands after them are named by their numbers.
#define HOTSWAP_WGMMA(columns, sums, operands, add, type, by_columns)                                \
  "{\n.reg .pred add;\n"                                                                             \
  "setp.ne.b32 add, " add                                                                            \
  ", 0;\n"                                                                                           \
  "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" HOTSWAP_SUM_NAMES_##sums \
      "}, " operands ", add, 1, 1" by_columns ";\n}" : HOTSWAP_SUMS_##sums(0)

// A and B in shared memory, B by rows or by columns, and for 256 columns A as well (of an A by columns k runs along the
// rows of its panels, as of such a B). add: to what d holds; else d is written.
template <class T, int N, bool kByColumns = false, bool kAByColumns = false>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], Operand a, Operand b, bool add) {
  static_assert(N == 256 || !kAByColumns, "expected A by rows at this width: by columns is written down only for 256");
  if constexpr (N == 32) {
    asm volatile(HOTSWAP_WGMMA("32", 16, "%16, %17", "%18", "%19", ", 0, %20")
                 : "l"(a), "l"(b), "r"(int(add)), "C"(WgmmaType<T>::name), "n"(int(kByColumns)));
  } else if constexpr (N == 64) {
    asm volatile(HOTSWAP_WGMMA("64", 32, "%32, %33", "%34", "%35", ", 0, %36")
                 : "l"(a), "l"(b), "r"(int(add)), "C"(WgmmaType<T>::name), "n"(int(kByColumns)));
  } else if constexpr (N == 80) {
    asm volatile(HOTSWAP_WGMMA("80", 40, "%40, %41", "%42", "%43", ", 0, %44")
                 : "l"(a), "l"(b), "r"(int(add)), "C"(WgmmaType<T>::name), "n"(int(kByColumns)));
  } else if constexpr (N == 128) {
    asm volatile(HOTSWAP_WGMMA("128", 64, "%64, %65", "%66", "%67", ", 0, %68")
                 : "l"(a), "l"(b), "r"(int(add)), "C"(WgmmaType<T>::name), "n"(int(kByColumns)));
  } else if constexpr (N == 160) {
    asm volatile(HOTSWAP_WGMMA("160", 80, "%80, %81", "%82", "%83", ", 0, %84")
                 : "l"(a), "l"(b), "r"(int(add)), "C"(WgmmaType<T>::name), "n"(int(kByColumns)));
  } else if constexpr (N == 256) {
    asm volatile(HOTSWAP_WGMMA("256", 128, "%128, %129", "%130", "%131", ", %132, %133")
                 : "l"(a), "l"(b), "r"(int(add)), "C"(WgmmaType<T>::name), "n"(int(kAByColumns)), "n"(int(kByColumns)));
  } else {
    static_assert(N == 0, "expected a width that is written down above");
  }
}

// A in registers, B by columns; for 64 columns by rows as well, and for fewer only so.
template <class T, int N, bool kByColumns = true>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const uint32_t (&a)[4], Operand b, bool add) {
  static_assert(N == 64 || (N > 64) == kByColumns, "expected B by columns above 64 columns, and by rows below");
  if constexpr (N == 8) {
    asm volatile(HOTSWAP_WGMMA("8", 4, "{%4, %5, %6, %7}, %8", "%9", "%10", ", 0")
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "C"(WgmmaType<T>::name));
  } else if constexpr (N == 16) {
    asm volatile(HOTSWAP_WGMMA("16", 8, "{%8, %9, %10, %11}, %12", "%13", "%14", ", 0")
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "C"(WgmmaType<T>::name));
  } else if constexpr (N == 32) {
    asm volatile(HOTSWAP_WGMMA("32", 16, "{%16, %17, %18, %19}, %20", "%21", "%22", ", 0")
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "C"(WgmmaType<T>::name));
  } else if constexpr (N == 64) {
    asm volatile(HOTSWAP_WGMMA("64", 32, "{%32, %33, %34, %35}, %36", "%37", "%38", ", %39")
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "C"(WgmmaType<T>::name),
                   "n"(int(kByColumns)));
  } else if constexpr (N == 128) {
    asm volatile(HOTSWAP_WGMMA("128", 64, "{%64, %65, %66, %67}, %68", "%69", "%70", ", 1")
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "C"(WgmmaType<T>::name));
  } else if constexpr (N == 192) {
    asm volatile(HOTSWAP_WGMMA("192", 96, "{%96, %97, %98, %99}, %100", "%101", "%102", ", 1")
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "C"(WgmmaType<T>::name));
  } else if constexpr (N == 256) {
    asm volatile(HOTSWAP_WGMMA("256", 128, "{%128, %129, %130, %131}, %132", "%133", "%134", ", 1")
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "C"(WgmmaType<T>::name));
  } else {
    static_assert(N == 0, "expected a width that is written down above");
  }
}

}  // namespace kernels::gpu
