// Blocks of packed weights for tensor cores: 256 columns of 16 outputs, as bytes with a sign, times the digits of x.
//
// A block type's multiply() adds to sums [tile][4] as D of an mma has them: outputs lane / 4 and 8 further on, and of x
// two columns, which are digits (packed_rows.cuh). Of integers of a group of weights that have one scale the sum is
// made by one mma; how codes become bytes depends on the format, often as a multiple of the code, whose factor the
// scale takes back.
#pragma once

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/ptx/mma.cuh"
#include "kernels/common/gpu/tile/e4m3.cuh"
#include "kernels/common/packing.h"

namespace kernels::gpu {

// D [16, 8] = A [16, 32] B [32, 8] of bytes with a sign, and of 16 columns.
__device__ __forceinline__ void multiply_bytes(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint2 b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, "
      "%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y), "r"(0));
}
__device__ __forceinline__ void multiply_bytes(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

// The same, added to d.
__device__ __forceinline__ void add_multiplied_bytes(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                     uint2 b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y));
}

// Byte i of a word, without and with a sign.
__device__ __forceinline__ int byte_of(uint32_t word, int i) { return int(__byte_perm(word, 0, 0x4440 | i)); }
__device__ __forceinline__ int signed_byte_of(uint32_t word, int i) {
  int value;  // __byte_perm() knows no signs
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(value) : "r"(word), "r"(0x8880 + i * 0x1111));
  return value;
}

// Rows lane / 4 and 8 further on of a piece in shared memory, in whole words. kShift: bytes of the first word that are
// before the piece, 0 or 2. `at` is known when this is compiled.
template <int kShift>
struct PieceRows {
  const uint32_t* row[2];

  __device__ __forceinline__ uint32_t word(int r, int at) const {
    const int from = at + kShift;
    const uint32_t* w = row[r] + from / 4;
    return from % 4 == 0 ? w[0] : __funnelshift_r(w[0], w[1], 16);
  }
  __device__ __forceinline__ float half(int r, int at) const {
    return __half2float(__ushort_as_half(reinterpret_cast<const uint16_t*>(row[r])[(at + kShift) / 2]));
  }
  __device__ __forceinline__ PieceRows moved(int words) const { return {{row[0] + words, row[1] + words}}; }
};

// x as a thread of the products reads it. kTiles: of two rows of x each; kOne: a single row.
template <int kTiles, bool kOne>
struct PieceX {
  static constexpr int kColumns = kOne ? 3 : 6 * kTiles, kRows = kOne ? 1 : 2 * kTiles;
  const uint8_t* digits;  // [group][column][lane % 4][8], at this thread's column and part
  const float* scales;    // [row]
  const float* sums;      // [row][group]

  __device__ __forceinline__ uint2 digits_of(int group, int tile) const {
    return *reinterpret_cast<const uint2*>(digits + (group * kColumns + 6 * tile) * 32);
  }
};

// Which of an mma's D belong to rows of x that are there: with one row the odd columns are none.
template <bool kOne>
constexpr int kDStep = kOne ? 2 : 1;

// What minimums take away: minimum[output] * sum of x, of two groups a thread.
template <int kTiles, bool kOne>
__device__ __forceinline__ void subtract_minimums(const PieceX<kTiles, kOne>& x, const float (&minimum)[2][2],
                                                  float (&sums)[kTiles][4]) {
  const int part = threadIdx.x % 4;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int column = 0; column < (kOne ? 1 : 2); ++column) {
      const float2 of_x = *reinterpret_cast<const float2*>(x.sums + (2 * tile + column) * 8 + 2 * part);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& sum = sums[tile][2 * r + column];
        sum = fmaf(-minimum[r][0], of_x.x, sum);
        sum = fmaf(-minimum[r][1], of_x.y, sum);
      }
    }
}

// This thread's digit of x has such a value: column / 2 of the 8 columns of a tile. The last pair is not there.
__device__ __forceinline__ float digit_value() {
  const int part = threadIdx.x % 4;
  return part == 0 ? 65536.f : part == 1 ? 256.f : part == 2 ? 1.f : 0.f;
}

template <Packing P>
struct PackedBlocks;

// Q4_K and Q5_K: eight groups, codes of 32 columns beside those of the next 32.
template <Packing P>
struct KBlocks {
  static constexpr bool kFive = P == Packing::kQ5_K;
  static constexpr int kWeights = int(packed_block(P)), kBytes = int(packed_bytes(P)), kCodes = kFive ? 48 : 16;
  static constexpr bool kPairs = true;  // a thread's bytes of x: eight columns that follow one another

  template <int kTiles, bool kOne, int kShift>
  __device__ static __forceinline__ void multiply(const PieceRows<kShift>& rows, const PieceX<kTiles, kOne>& x, int,
                                                  float (&sums)[kTiles][4]) {
    constexpr uint32_t kNibbles = 0x0f0f0f0f;
    const int part = threadIdx.x % 4;
    uint4 head[2];
    uint32_t scales[2][2];
    uint2 fifth[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      head[r] = *reinterpret_cast<const uint4*>(rows.row[r]);
      scales[r][0] = head[r].y & 0x3f3f3f3fu;
      scales[r][1] = (head[r].w & kNibbles) | (head[r].y >> 2 & 0x30303030u);
      if (kFive) fifth[r] = reinterpret_cast<const uint2*>(rows.row[r] + 4)[part];
    }
    int total[kTiles][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
      uint2 codes[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) codes[r] = reinterpret_cast<const uint2*>(rows.row[r] + kCodes / 4 + 8 * chunk)[part];
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        const int group = 2 * chunk + high;
        uint32_t a[2][2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          a[r][0] = codes[r].x >> 4 * high & kNibbles, a[r][1] = codes[r].y >> 4 * high & kNibbles;
          if (kFive) {
            const auto bit = [&](uint32_t bits) {
              return (group < 4 ? bits << (4 - group) : bits >> (group - 4)) & 0x10101010u;
            };
            a[r][0] |= bit(fifth[r].x), a[r][1] |= bit(fifth[r].y);
          }
        }
        const int scale[2] = {byte_of(scales[0][group / 4], group % 4), byte_of(scales[1][group / 4], group % 4)};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          int d[4];
          multiply_bytes(d, a[0][0], a[1][0], a[0][1], a[1][1], x.digits_of(group, tile));
#pragma unroll
          for (int i = 0; i < 4; i += kDStep<kOne>) total[tile][i] += d[i] * scale[i / 2];
        }
      }
    }
    const float value = digit_value();
    float minimum[2][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 factors = __half22float2(reinterpret_cast<const __half2&>(head[r].x));
      const uint32_t four =
          part < 2 ? head[r].z & 0x3f3f3f3fu : (head[r].w >> 4 & kNibbles) | (head[r].z >> 2 & 0x30303030u);
      const uint32_t two = four >> 16 * (part & 1);
      minimum[r][0] = factors.y * float(two & 255), minimum[r][1] = factors.y * float(two >> 8 & 255);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int column = 0; column < (kOne ? 1 : 2); ++column)
          sums[tile][2 * r + column] =
              fmaf(float(total[tile][2 * r + column]), factors.x * (value * x.scales[2 * tile + column]),
                   sums[tile][2 * r + column]);
    }
    subtract_minimums<kTiles, kOne>(x, minimum, sums);
  }
};
template <>
struct PackedBlocks<Packing::kQ4_K> : KBlocks<Packing::kQ4_K> {};
template <>
struct PackedBlocks<Packing::kQ5_K> : KBlocks<Packing::kQ5_K> {};

// 16 groups of 16; bytes are four times the code less 32.
template <>
struct PackedBlocks<Packing::kQ6_K> {
  static constexpr int kWeights = int(packed_block(Packing::kQ6_K)), kBytes = int(packed_bytes(Packing::kQ6_K));
  static constexpr bool kPairs = false;

  template <int kTiles, bool kOne, int kShift>
  __device__ static __forceinline__ void multiply(const PieceRows<kShift>& rows, const PieceX<kTiles, kOne>& x, int,
                                                  float (&sums)[kTiles][4]) {
    const int part = threadIdx.x % 4;
    int total[kTiles][4] = {};
    const PieceRows<kShift> mine = rows.moved(part);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      uint32_t low[2][2][2], high[2][2], scales[2][2];  // [output][32 columns][16 columns]
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          high[r][i] = mine.word(r, 128 + 32 * n + 16 * i) ^ 0xaaaaaaaau;
          scales[r][i] = rows.word(r, 192 + 8 * n + 4 * i);
#pragma unroll
          for (int s = 0; s < 2; ++s) low[r][s][i] = mine.word(r, 64 * n + 32 * s + 16 * i);
        }
      }
#pragma unroll
      for (int group = 0; group < 4; ++group) {
        uint32_t a[2][2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const uint32_t word = low[r][group % 2][i];
            a[r][i] =
                ((group < 2 ? word << 2 : word >> 2) & 0x3c3c3c3cu) | (high[r][i] << (6 - 2 * group) & 0xc0c0c0c0u);
          }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint2 b = x.digits_of(4 * n + group, tile);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            int d[4];
            multiply_bytes(d, a[0][i], a[1][i], i == 0 ? b.x : b.y);
#pragma unroll
            for (int j = 0; j < 4; j += kDStep<kOne>)
              total[tile][j] += d[j] * signed_byte_of(scales[j / 2][group / 2], 2 * (group % 2) + i);
          }
        }
      }
    }
    const float value = 0.25f * digit_value();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float factor = value * rows.half(r, 208);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int column = 0; column < (kOne ? 1 : 2); ++column) {
          float& sum = sums[tile][2 * r + column];
          sum = fmaf(float(total[tile][2 * r + column]), factor * x.scales[2 * tile + column], sum);
        }
    }
  }
};

// Blocks of 32 weights, each with its own float16 scale: eight in a piece, fewer where the row ends.
template <Packing P>
struct BlocksOf32 {
  static constexpr bool kPairs = false, kMinimum = P == Packing::kQ4_1;
  static constexpr int kWeights = int(packed_block(P)), kBytes = int(packed_bytes(P));
  // What the bytes are a multiple of, compared with the code.
  static constexpr float kFactor = P == Packing::kQ4_0 ? 1.f / 16 : P == Packing::kQ5_0 ? 1.f / 8 : 1.f;

  // Columns 4 * part and the three that follow, and those 16 further on.
  template <int kShift>
  __device__ static __forceinline__ void bytes_of(const PieceRows<kShift>& rows, const PieceRows<kShift>& mine, int r,
                                                  int block, uint32_t& first, uint32_t& second) {
    constexpr uint32_t kSigns = 0x80808080u;
    if constexpr (P == Packing::kQ8_0) {
      first = mine.word(r, block + 2), second = mine.word(r, block + 18);
    } else if constexpr (P == Packing::kQ4_0) {
      const uint32_t codes = mine.word(r, block + 2);
      first = (codes << 4 & 0xf0f0f0f0u) ^ kSigns, second = (codes & 0xf0f0f0f0u) ^ kSigns;
    } else if constexpr (P == Packing::kQ4_1) {
      const uint32_t codes = mine.word(r, block + 4);
      first = codes & 0x0f0f0f0fu, second = codes >> 4 & 0x0f0f0f0fu;
    } else {
      const uint32_t codes = mine.word(r, block + 6), fifth = rows.word(r, block + 2);
      const int column = 4 * int(threadIdx.x % 4);
      const auto signs = [&](uint32_t four) { return (four * 0x10204080u & kSigns) ^ kSigns; };
      first = (codes << 3 & 0x78787878u) | signs(fifth >> column & 15);
      second = (codes >> 1 & 0x78787878u) | signs(fifth >> (column + 16) & 15);
    }
  }

  template <int kTiles, bool kOne, int kShift>
  __device__ static __forceinline__ void multiply(const PieceRows<kShift>& rows, const PieceX<kTiles, kOne>& x,
                                                  int groups, float (&sums)[kTiles][4]) {
    const int part = threadIdx.x % 4;
    float total[kTiles][4] = {};
    const PieceRows<kShift> mine = rows.moved(part);
#pragma unroll
    for (int group = 0; group < 8; ++group) {
      if (group >= groups) break;
      uint32_t a[2][2];
      float scale[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        bytes_of(rows, mine, r, kBytes * group, a[r][0], a[r][1]);
        scale[r] = rows.half(r, kBytes * group);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        int d[4];
        multiply_bytes(d, a[0][0], a[1][0], a[0][1], a[1][1], x.digits_of(group, tile));
#pragma unroll
        for (int i = 0; i < 4; i += kDStep<kOne>) total[tile][i] = fmaf(float(d[i]), scale[i / 2], total[tile][i]);
      }
    }
    const float value = kFactor * digit_value();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; i += kDStep<kOne>)
        sums[tile][i] = fmaf(total[tile][i], value * x.scales[2 * tile + (kOne ? 0 : i % 2)], sums[tile][i]);
    if constexpr (kMinimum) {
      float minimum[2][2];
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          minimum[r][i] = 2 * part + i < groups ? -rows.half(r, kBytes * (2 * part + i) + 2) : 0.f;
      subtract_minimums<kTiles, kOne>(x, minimum, sums);
    }
  }
};
template <>
struct PackedBlocks<Packing::kQ8_0> : BlocksOf32<Packing::kQ8_0> {};
template <>
struct PackedBlocks<Packing::kQ4_0> : BlocksOf32<Packing::kQ4_0> {};
template <>
struct PackedBlocks<Packing::kQ4_1> : BlocksOf32<Packing::kQ4_1> {};
template <>
struct PackedBlocks<Packing::kQ5_0> : BlocksOf32<Packing::kQ5_0> {};

// Blocks of 32, 64 or 128 weights with one scale and one zero: the integers of a block are added before the scale.
template <Packing P>
struct Int4Blocks {
  static constexpr bool kPairs = false;
  static constexpr int kWeights = int(packed_block(P)), kBytes = int(packed_bytes(P)), kGroups = kWeights / 32;
  static constexpr uint32_t kZero = 255;  // bits of a block's first word; the others are the scale's

  template <int kTiles, bool kOne, int kShift>
  __device__ static __forceinline__ void multiply(const PieceRows<kShift>& rows, const PieceX<kTiles, kOne>& x,
                                                  int groups, float (&sums)[kTiles][4]) {
    constexpr uint32_t kNibbles = 0x0f0f0f0fu;
    const int part = threadIdx.x % 4;
    const PieceRows<kShift> mine = rows.moved(part);
    float total[kTiles][4] = {};
#pragma unroll
    for (int block = 0; block < 8 / kGroups; ++block) {
      if (block * kGroups >= groups) break;
      int d[kTiles][4] = {};
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        uint32_t codes[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) codes[r] = mine.word(r, kBytes * block + 4 + 16 * group);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
          add_multiplied_bytes(d[tile], codes[0] & kNibbles, codes[1] & kNibbles, codes[0] >> 4 & kNibbles,
                               codes[1] >> 4 & kNibbles, x.digits_of(block * kGroups + group, tile));
      }
#pragma unroll
      for (int i = 0; i < 4; i += kDStep<kOne>) {
        const float scale = __uint_as_float(rows.word(i / 2, kBytes * block) & ~kZero);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) total[tile][i] = fmaf(float(d[tile][i]), scale, total[tile][i]);
      }
    }
    const float value = digit_value();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; i += kDStep<kOne>)
        sums[tile][i] = fmaf(total[tile][i], value * x.scales[2 * tile + (kOne ? 0 : i % 2)], sums[tile][i]);
    float minimum[2][2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int group = 2 * part + i;
        if (i == 1 && kGroups > 1) {
          minimum[r][1] = minimum[r][0];
          continue;
        }
        const uint32_t head = group < groups ? rows.word(r, kBytes * (group / kGroups)) : 0;
        minimum[r][i] = __uint_as_float(head & ~kZero) * float(head & kZero);
      }
    subtract_minimums<kTiles, kOne>(x, minimum, sums);
  }
};
template <>
struct PackedBlocks<Packing::kInt4G32> : Int4Blocks<Packing::kInt4G32> {};
template <>
struct PackedBlocks<Packing::kInt4G64> : Int4Blocks<Packing::kInt4G64> {};
template <>
struct PackedBlocks<Packing::kInt4G128> : Int4Blocks<Packing::kInt4G128> {};

// Blocks of 128 floats of eight bits, by tensor cores of float16: codes are exact there.
template <>
struct PackedBlocks<Packing::kE4m3G128> {
  static constexpr bool kPairs = false;
  static constexpr int kWeights = int(packed_block(Packing::kE4m3G128)), kBytes = int(packed_bytes(Packing::kE4m3G128));

  // sums: D of an mma, whose columns are rows of x.
  template <class X, int kShift>
  __device__ static __forceinline__ void multiply(const PieceRows<kShift>& rows, const X& x, int groups,
                                                  float (&sums)[4]) {
    const int part = threadIdx.x % 4;
    const PieceRows<kShift> mine = rows.moved(part);
    float total[4] = {};
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      if (block * 4 >= groups) break;
      float d[4] = {};
#pragma unroll
      for (int sixteen = 0; sixteen < 8; ++sixteen) {
        const int at = kBytes * block + 4 + 16 * sixteen;
        uint32_t a[4];
#pragma unroll
        for (int r = 0; r < 2; ++r) e4m3_halves(mine.word(r, at), a[r], a[r + 2]);
        const uint2 v = *reinterpret_cast<const uint2*>(x.halves + kWeights * block + 16 * sixteen);
        mma_m16n8k16<Half>(d, a, v.x, v.y);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) total[i] = fmaf(d[i], __uint_as_float(rows.word(i / 2, kBytes * block)), total[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = fmaf(total[i], x.scales[(2 * part + i % 2) % X::kRows], sums[i]);
  }
};

template <Packing P>
constexpr bool kFloatBlocks = P == Packing::kE4m3G128;

}  // namespace kernels::gpu
