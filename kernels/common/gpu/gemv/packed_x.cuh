// x of packed_rows.h in shared memory. For weights that are integers as integers: of 256 columns a power of two, and of
// each element three digits to the base of 256, from -128 to 127, in the order in which an mma reads its operand. For
// weights that are floats: as it is.
#pragma once

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/gemv/packed_blocks.cuh"
#include "kernels/common/gpu/gemv/packed_rows.h"
#include "kernels/common/gpu/ptx/cp_async.cuh"

namespace kernels::gpu {

constexpr int kPackedConsumers = 8;  // warps of a block that multiply

__device__ __forceinline__ void meet_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(32 * kPackedConsumers) : "memory");
}

// Where a block has x. Of each piece: digits [group][column][lane % 4][8], scales [row], sums of 32 columns [row][8].
template <int kTiles, bool kOne>
struct PackedX {
  static constexpr int kColumns = kOne ? 3 : 6 * kTiles, kRows = kOne ? 1 : 2 * kTiles;
  static constexpr int kPieceDigits = kPackedPiece * kColumns;
  uint8_t* digits;
  float *sums, *scales;
  uint8_t* norm;  // the norm's weight, as it is in memory

  __device__ PackedX(uint8_t* memory, int pieces)
      : digits(memory),
        sums(reinterpret_cast<float*>(memory + pieces * kPieceDigits)),
        scales(sums + pieces * kRows * 8),
        norm(reinterpret_cast<uint8_t*>(scales + (pieces * kRows + 3) / 4 * 4)) {}
  __device__ static __forceinline__ int column_of(int row, int digit) {
    return kOne ? digit : row / 2 * 6 + 2 * digit + row % 2;
  }
  // As this thread of the products reads a piece.
  __device__ __forceinline__ PieceX<kTiles, kOne> piece(int piece) const {
    const int n = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
    const int column = kOne ? min(n / 2, 2) : n < 6 ? n : n - 4;  // of those that are none: any
    return {digits + piece * kPieceDigits + column * 32 + 8 * part, scales + piece * kRows, sums + piece * kRows * 8};
  }
};

// A piece of it, as a thread of the products reads it.
template <int kTiles, bool kOne>
struct PieceFloats {
  static constexpr int kRows = kOne ? 1 : 2 * kTiles;
  const uint16_t* halves;  // of this thread's row, at column 4 * (lane % 4)
  const float* scales;     // [row]
};

// Where weights are floats: elements as float16 with a power of two as the scale of a piece, [row][column]. An element
// is exact where it is at least 2^-29 of the maximum of its 256.
template <int kTiles, bool kOne>
struct FloatX {
  static constexpr int kRows = kOne ? 1 : 2 * kTiles, kPad = 16;  // elements: rows begin at different banks
  uint16_t* halves;
  float* scales;
  int pitch;
  uint8_t* norm;

  __device__ FloatX(uint8_t* memory, int pieces)
      : halves(reinterpret_cast<uint16_t*>(memory)),
        scales(reinterpret_cast<float*>(memory + kRows * (pieces * kPackedPiece + kPad) * int(sizeof(uint16_t)))),
        pitch(pieces * kPackedPiece + kPad),
        norm(reinterpret_cast<uint8_t*>(scales + (pieces * kRows + 3) / 4 * 4)) {}
  // Rows that are not there are any.
  __device__ __forceinline__ PieceFloats<kTiles, kOne> piece(int piece) const {
    const int row = threadIdx.x % 32 / 4 % kRows;
    return {halves + row * pitch + piece * kPackedPiece + 4 * (threadIdx.x % 4), scales + piece * kRows};
  }
};

// Each thread's part of the norm's weight, which it reads itself, before x is there.
__device__ __forceinline__ void start_norm(const PackedRows& a, uint8_t* to) {
  if (a.norm == nullptr) return;
#pragma unroll 1
  for (int at = 16 * int(threadIdx.x); at < 2 * a.in; at += 16 * 32 * kPackedConsumers)
    cp_async(to + at, static_cast<const uint8_t*>(a.norm) + at, false);
  cp_async_commit();
}

// Sums of squares of each row, a warp's part each.
template <class T, int kRows>
__device__ __forceinline__ void squares_of_rows(const PackedRows& a, float (&squares)[kRows][kPackedConsumers]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float sum = 0.f;
    if (r < a.rows) {
      const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
#pragma unroll 2
      for (int c = 8 * int(threadIdx.x); c < a.in; c += 8 * 32 * kPackedConsumers) {
        float f[8];
        load_floats<8>(x + c, f);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = fmaf(f[i], f[i], sum);
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) squares[r][warp] = sum;
  }
  meet_consumers();
}

// The digits of four integers, of each the same one side by side.
struct FourBytes {
  uint32_t low, middle, high;
};
__device__ __forceinline__ FourBytes digits_of_four(const int* v) {
  constexpr uint32_t kHalf = 0x808080u, kSigns = 0x80808080u;  // digits from 0 to 255, and back
  const uint32_t a = uint32_t(v[0]) + kHalf, b = uint32_t(v[1]) + kHalf, c = uint32_t(v[2]) + kHalf,
                 d = uint32_t(v[3]) + kHalf;
  const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
  const uint32_t ab_high = __byte_perm(a, b, 0x0062), cd_high = __byte_perm(c, d, 0x0062);
  return {__byte_perm(ab, cd, 0x5410) ^ kSigns, __byte_perm(ab, cd, 0x7632) ^ kSigns,
          __byte_perm(ab_high, cd_high, 0x5410) ^ kSigns};
}

// A power of two by which a piece's maximum becomes 2^(kBits - 1) to 2^kBits, and its reciprocal. Of a lane eight
// elements.
struct PieceScale {
  float up, scale;
};
template <int kBits>
__device__ __forceinline__ PieceScale piece_scale(const float (&f)[8]) {
  constexpr uint32_t kMagnitude = 0x7fffffffu, kNaN = 0x7fffffffu, kLeastExponent = 27;  // both factors are normal
  uint32_t maximum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) maximum = max(maximum, __float_as_uint(f[i]) & kMagnitude);
  const uint32_t exponent = max(__reduce_max_sync(kAllLanes, maximum) >> 23, kLeastExponent);
  // Infinity and NaN make all of the row NaN, as a product with any weight does.
  return {__uint_as_float((253 + kBits - exponent) << 23),
          __uint_as_float(exponent == 255 ? kNaN : (exponent + 1 - kBits) << 23)};
}

// A lane's eight columns of a row of x as digits, with the scale and sums of the piece. kPairs: a thread of the
// products has eight columns that follow one another; else four, and the four 16 further on.
template <bool kPairs, int kTiles, bool kOne>
__device__ __forceinline__ void store_digits(const float (&f)[8], const PackedX<kTiles, kOne>& to, int row, int piece) {
  using X = PackedX<kTiles, kOne>;
  constexpr int kBits = 22;
  const int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
  const auto [up, scale] = piece_scale<kBits>(f);
  int v[8], sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += v[i] = __float2int_rn(f[i] * up);
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  if (quarter == 0) to.sums[(piece * X::kRows + row) * 8 + group] = float(sum) * scale;
  if (lane == 0) to.scales[piece * X::kRows + row] = scale;
  const FourBytes first = digits_of_four(v), second = digits_of_four(v + 4);
  const uint32_t words[3][2] = {{first.high, second.high}, {first.middle, second.middle}, {first.low, second.low}};
#pragma unroll
  for (int digit = 0; digit < 3; ++digit) {
    uint8_t* at = to.digits + piece * X::kPieceDigits + (group * X::kColumns + X::column_of(row, digit)) * 32;
    if (kPairs) {
      *reinterpret_cast<uint2*>(at + 8 * quarter) = make_uint2(words[digit][0], words[digit][1]);
    } else {
      uint32_t* half = reinterpret_cast<uint32_t*>(at + quarter % 2 * 16 + quarter / 2 * 4);
      half[0] = words[digit][0], half[2] = words[digit][1];
    }
  }
}

// The consumers read all of x, of which several loads are on their way at once, and pass eight columns of a row, after
// the norm, to store(floats, row, piece). norm: its weight, which start_norm() has begun to copy.
template <class T, int kRows, class Store>
__device__ __forceinline__ void make_x(const PackedRows& a, const uint8_t* norm,
                                       float (&squares)[kRows][kPackedConsumers], const Store& store) {
  constexpr int kAtOnce = 4;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pieces = (a.in + kPackedPiece - 1) / kPackedPiece;
  const auto row_of = [&](int at) { return kRows == 1 ? int(at >= pieces) : at / pieces; };
  const auto column_of = [&](int at, int row) { return (at - row * pieces) * kPackedPiece + 8 * lane; };
  if (a.norm != nullptr) squares_of_rows<T>(a, squares), cp_async_wait<0>();
#pragma unroll 1
  for (int begin = warp; begin < pieces * kRows; begin += kPackedConsumers * kAtOnce) {
    Pack<T, 8> given[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = begin + kPackedConsumers * i, row = row_of(at), column = column_of(at, row);
      given[i] = {};
      if (row < a.rows && column < a.in) given[i] = load<8>(static_cast<const T*>(a.x) + row * a.x_stride + column);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = begin + kPackedConsumers * i, row = row_of(at), column = column_of(at, row);
      if (row >= kRows) break;
      float f[8];
      unpack(given[i], f);
      if (a.norm != nullptr && column < a.in) {
        float weight[8];
        unpack<T, 8>(*reinterpret_cast<const Pack<T, 8>*>(norm + 2 * column), weight);
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < kPackedConsumers; ++w) sum += squares[row][w];
        const float rstd = rsqrtf(sum / float(a.in) + a.eps);
#pragma unroll
        for (int j = 0; j < 8; ++j) f[j] = rounded<T>(rounded<T>(f[j] * rstd) * weight[j]);
      }
      store(f, row, at - row * pieces);
    }
  }
  meet_consumers();
}

template <class T, bool kPairs, int kTiles, bool kOne>
__device__ __forceinline__ void fill_x(const PackedRows& a, const PackedX<kTiles, kOne>& to,
                                       float (&squares)[PackedX<kTiles, kOne>::kRows][kPackedConsumers]) {
  make_x<T>(a, to.norm, squares,
            [&](const float(&f)[8], int row, int piece) { store_digits<kPairs>(f, to, row, piece); });
}
template <class T, bool, int kTiles, bool kOne>
__device__ __forceinline__ void fill_x(const PackedRows& a, const FloatX<kTiles, kOne>& to,
                                       float (&squares)[FloatX<kTiles, kOne>::kRows][kPackedConsumers]) {
  make_x<T>(a, to.norm, squares, [&](const float(&f)[8], int row, int piece) {
    const auto [up, scale] = piece_scale<15>(f);
    float scaled[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) scaled[i] = f[i] * up;
    const int lane = threadIdx.x % 32;
    uint16_t* at = to.halves + row * to.pitch + piece * kPackedPiece + 8 * lane;
    *reinterpret_cast<Pack<Half, 8>*>(at) = pack<Half, 8>(scaled);
    if (lane == 0) to.scales[piece * to.kRows + row] = scale;
  });
}

}  // namespace kernels::gpu
