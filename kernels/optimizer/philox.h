// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011): 128 random bits that are a function of a counter and a key.
// Here they are 16 bits for each of eight elements that follow one another.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define OPTIMIZER_INLINE __host__ __device__ __forceinline__
#else
#define OPTIMIZER_INLINE static inline __attribute__((always_inline))
#endif

namespace optimizer {

constexpr int64_t kPerDraw = 8;  // elements

// What is rounded: each has bits of its own.
enum class Rounded : uint32_t { kParameter, kAverage, kAverageSquare };

struct RandomWords {
  uint32_t w[4];
};

OPTIMIZER_INLINE uint32_t high_product(uint32_t a, uint32_t b) { return uint32_t((uint64_t(a) * b) >> 32); }

constexpr int kPhiloxRounds = 10;

OPTIMIZER_INLINE void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, uint32_t k0, uint32_t k1) {
  constexpr uint32_t kMultiply0 = 0xD2511F53u, kMultiply1 = 0xCD9E8D57u;
  const uint32_t high0 = high_product(kMultiply0, c0), low0 = kMultiply0 * c0;
  const uint32_t high1 = high_product(kMultiply1, c2), low1 = kMultiply1 * c2;
  c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
}
OPTIMIZER_INLINE void next_key(uint32_t& k0, uint32_t& k1) { k0 += 0x9E3779B9u, k1 += 0xBB67AE85u; }

// draw: the element's index / kPerDraw. index: the tensor's in its list.
OPTIMIZER_INLINE RandomWords first_counter(uint32_t step, uint32_t index, Rounded what, uint64_t draw) {
  return {{uint32_t(draw), uint32_t(draw >> 32) | uint32_t(what) << 30, index, step}};
}

OPTIMIZER_INLINE RandomWords random_words(uint64_t seed, uint32_t step, uint32_t index, Rounded what, uint64_t draw) {
  RandomWords c = first_counter(step, index, what, draw);
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round, next_key(k0, k1))
    philox_round(c.w[0], c.w[1], c.w[2], c.w[3], k0, k1);
  return c;
}

// The 16 bits of the element that is i-th of its draw.
OPTIMIZER_INLINE uint32_t random_bits(const RandomWords& words, int i) {
  return i % 2 == 0 ? words.w[i / 2] & 0xffffu : words.w[i / 2] >> 16;
}

// A float32's bits, rounded into bfloat16: 16 random bits are added below its last bit, which then are cut off. NaN and
// infinity stay as they are.
OPTIMIZER_INLINE uint16_t stochastic_bfloat16(uint32_t bits, uint32_t random) {
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return uint16_t((finite ? bits + random : nan ? bits | 0x400000u : bits) >> 16);
}

}  // namespace optimizer
