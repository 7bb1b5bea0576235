// Weights packed as a GGUF file has them: rows of blocks of 32, each with its float16 scale. A packed matrix [out, in]
// is a tensor of bytes [out, in / 32 * bytes of a block]; with `in` known the bytes of a row say which packing it is.
#pragma once

#include <cstdint>
#include <string_view>

namespace kernels {

//   kQ8_0  float16 d, 32 x int8 q                                                w = d * q
//   kQ4_0  float16 d, 16 bytes: low halves are weights 0..15, high ones 16..31   w = d * (q - 8)
//   kQ4_1  float16 d, float16 m, 16 bytes as before                              w = d * q + m
enum class Packing : uint8_t { kNone, kQ8_0, kQ4_0, kQ4_1 };

constexpr int64_t kPackedBlock = 32;  // weights

constexpr int64_t packed_bytes(Packing packing) {  // of a block; of kNone: as float32
  return packing == Packing::kQ8_0   ? 34
         : packing == Packing::kQ4_0 ? 18
         : packing == Packing::kQ4_1 ? 20
                                     : 4 * kPackedBlock;
}

// By the names of layers.json's weights; kNone of another one.
constexpr const char* kPackingNames = "q8_0, q4_0 or q4_1";
constexpr Packing packing_named(std::string_view format) {
  return format == "q8_0"   ? Packing::kQ8_0
         : format == "q4_0" ? Packing::kQ4_0
         : format == "q4_1" ? Packing::kQ4_1
                            : Packing::kNone;
}

// kNone where no packing has rows of `in` weights in so many bytes.
constexpr Packing packing_of(int64_t in, int64_t row_bytes) {
  constexpr Packing kAll[] = {Packing::kQ8_0, Packing::kQ4_0, Packing::kQ4_1};
  for (const Packing packing : kAll) {
    if (in > 0 && in % kPackedBlock == 0 && row_bytes == in / kPackedBlock * packed_bytes(packing)) return packing;
  }
  return Packing::kNone;
}

// fn is a templated lambda: with_packing(p, [&]<Packing kPacking>() { ... });
template <class Fn>
static inline void with_packing(Packing packing, Fn fn) {
  switch (packing) {
    case Packing::kQ8_0:
      return fn.template operator()<Packing::kQ8_0>();
    case Packing::kQ4_0:
      return fn.template operator()<Packing::kQ4_0>();
    case Packing::kQ4_1:
      return fn.template operator()<Packing::kQ4_1>();
    case Packing::kNone:
      return fn.template operator()<Packing::kNone>();
  }
}

}  // namespace kernels
