// Packed weights: rows of blocks, each with its scale. A packed matrix [out, in] is a tensor of bytes
// [out, in / weights of a block * bytes of a block]. Most blocks are ggml's, as a GGUF file has them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace kernels {

//   kQ8_0  float16 d, 32 x int8 q                                                w = d * q
//   kQ4_0  float16 d, 16 bytes: low halves are weights 0..15, high ones 16..31   w = d * (q - 8)
//   kQ4_1  float16 d, float16 m, 16 bytes as before                              w = d * q + m
//   kQ5_0  float16 d, 32 fifth bits, 16 bytes as before                          w = d * (q - 16)
// and of 256 weights, in groups of 32 (of 16 for kQ6_K) with a scale s, and a minimum m, of their own
//   kQ4_K  float16 d, float16 n, 12 bytes of s and m, 128 bytes of q             w = d s q - n m
//   kQ5_K  the same with 32 bytes of fifth bits before the 128                   w = d s q - n m
//   kQ6_K  128 bytes of low halves, 64 of two high bits, 16 x int8 s, float16 d  w = d s (q - 32)
// and with a scale that is only a power of two
//   kMxfp4 a byte e, 16 bytes as in kQ4_0 of e2m1 q (0, .5, 1, 1.5, 2, 3, 4, 6)  w = 2^(e - 127) q
// Ours, of the formats that safetensors files have (GPTQ, AWQ, compressed-tensors, FP8), of 32, 64 or 128 weights that
// have one scale, a float32 at the beginning of the block:
//   kInt4G32, ..G64, ..G128  the scale's low byte is the zero z and counts as 0 in the scale, then for each 32 weights
//                            16 bytes as in kQ4_0                                w = s (q - z)
//   kE4m3G128                128 x float8_e4m3fn q, none of them NaN             w = s q
enum class Packing : uint8_t {
  kNone,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kInt4G32,
  kInt4G64,
  kInt4G128,
  kE4m3G128,
  kMxfp4
};

struct PackingRow {
  Packing packing;
  std::string_view name;  // of layers.json's weights
  int64_t block, bytes;   // weights and bytes of a block
};
constexpr PackingRow kPackings[] = {
    {Packing::kNone, "", 32, 32 * 4},           {Packing::kQ8_0, "q8_0", 32, 34},
    {Packing::kQ4_0, "q4_0", 32, 18},           {Packing::kQ4_1, "q4_1", 32, 20},
    {Packing::kQ5_0, "q5_0", 32, 22},           {Packing::kQ4_K, "q4_k", 256, 144},
    {Packing::kQ5_K, "q5_k", 256, 176},         {Packing::kQ6_K, "q6_k", 256, 210},
    {Packing::kInt4G32, "int4_g32", 32, 20},    {Packing::kInt4G64, "int4_g64", 64, 36},
    {Packing::kInt4G128, "int4_g128", 128, 68}, {Packing::kE4m3G128, "e4m3_g128", 128, 132},
    {Packing::kMxfp4, "mxfp4", 32, 17},
};
constexpr const char* kPackingNames =
    "q8_0, q4_0, q4_1, q5_0, q4_k, q5_k, q6_k, int4_g32, int4_g64, int4_g128, e4m3_g128 or mxfp4";

constexpr int64_t kPackedGroup = 32;  // weights that are decoded at once

template <Packing P>
constexpr bool kIsInt4 = P >= Packing::kInt4G32&& P <= Packing::kInt4G128;

constexpr int64_t packed_block(Packing packing) { return kPackings[int(packing)].block; }
constexpr int64_t packed_bytes(Packing packing) { return kPackings[int(packing)].bytes; }  // of a block

namespace gpu {
// Those that GPUs have kernels for.
constexpr bool has_packed_blocks(Packing packing) { return packing >= Packing::kQ8_0 && packing <= Packing::kE4m3G128; }
}  // namespace gpu

constexpr Packing packing_named(std::string_view format) {  // kNone of another one
  for (const PackingRow& row : kPackings) {
    if (row.name == format) return row.packing;
  }
  return Packing::kNone;
}

// For ops without a format argument: the packing whose rows of `in` weights are `row_bytes` long. Only Q8_0, Q4_0 and
// Q4_1, because Q4_K's rows are as long as Q4_0's; kNone for any other length.
constexpr Packing packing_of(int64_t in, int64_t row_bytes) {
  for (const Packing packing : {Packing::kQ8_0, Packing::kQ4_0, Packing::kQ4_1}) {
    if (in > 0 && in % kPackedGroup == 0 && row_bytes == in / kPackedGroup * packed_bytes(packing)) return packing;
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
    case Packing::kQ5_0:
      return fn.template operator()<Packing::kQ5_0>();
    case Packing::kQ4_K:
      return fn.template operator()<Packing::kQ4_K>();
    case Packing::kQ5_K:
      return fn.template operator()<Packing::kQ5_K>();
    case Packing::kQ6_K:
      return fn.template operator()<Packing::kQ6_K>();
    case Packing::kInt4G32:
      return fn.template operator()<Packing::kInt4G32>();
    case Packing::kInt4G64:
      return fn.template operator()<Packing::kInt4G64>();
    case Packing::kInt4G128:
      return fn.template operator()<Packing::kInt4G128>();
    case Packing::kE4m3G128:
      return fn.template operator()<Packing::kE4m3G128>();
    case Packing::kMxfp4:
      return fn.template operator()<Packing::kMxfp4>();
    case Packing::kNone:
      return fn.template operator()<Packing::kNone>();
  }
}

}  // namespace kernels
