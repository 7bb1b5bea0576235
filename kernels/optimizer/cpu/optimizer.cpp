// AdamW on the CPU. Compiled once per ISA.
#include "kernels/optimizer/optimizer.h"

#include "kernels/common/cpu/vec.h"
#include "kernels/optimizer/philox.h"

namespace optimizer::HOTSWAP_ISA {
using namespace kernels;
using namespace kernels::HOTSWAP_ISA;

// A product that no later addition is fused with.
HOTSWAP_INLINE F product(F a, F b) {
  F both = a * b;
#if defined(__x86_64__)
  asm("" : "+x"(both));
#elif defined(__aarch64__)
  asm("" : "+w"(both));
#endif
  return both;
}

// a b + c, rounded once where the instruction set has it.
HOTSWAP_INLINE F multiply_add(F a, F b, F c) {
#if HOTSWAP_AVX512
  return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif HOTSWAP_AVX2
  return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

HOTSWAP_INLINE F root(F v) {
#if HOTSWAP_AVX512
  return (F)_mm512_maskz_sqrt_ps(kAllLanes, (__m512)v);
#elif HOTSWAP_AVX2
  return (F)_mm256_sqrt_ps((__m256)v);
#else
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}

struct Moments {
  F average, average_square;
};

// m and v of the element, and what is taken off the parameter times the step size.
HOTSWAP_INLINE Moments moments(const Coefficients& c, F gradient, const Moments& before) {
  const F g = product(gradient, splat<F>(c.inverse_scale));
  return {multiply_add(splat<F>(c.one_minus_beta1), g - before.average, before.average),
          multiply_add(splat<F>(c.one_minus_beta2), product(g, g), product(splat<F>(c.beta2), before.average_square))};
}
HOTSWAP_INLINE F updated(const Coefficients& c, F parameter, const Moments& m) {
  const F direction = m.average / multiply_add(root(m.average_square), splat<F>(c.inverse_root), splat<F>(c.eps));
  return multiply_add(splat<F>(c.minus_step_size), direction, product(parameter, splat<F>(c.decay)));
}

// The random bits of kBlock elements: philox.h's, of kDraws draws side by side, so that loops over them become vectors.
constexpr int kBlock = 128, kDraws = kBlock / int(kPerDraw);
struct Random {
  uint64_t seed;
  uint32_t step, index;
};
static void fill(uint16_t (&bits)[kBlock], const Random& random, Rounded what, uint64_t first_draw) {
  uint32_t c[4][kDraws], k0 = uint32_t(random.seed), k1 = uint32_t(random.seed >> 32);
  for (int i = 0; i < kDraws; ++i) {
    const RandomWords first = first_counter(random.step, random.index, what, first_draw + uint64_t(i));
    for (int w = 0; w < 4; ++w) c[w][i] = first.w[w];
  }
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int i = 0; i < kDraws; ++i) philox_round(c[0][i], c[1][i], c[2][i], c[3][i], k0, k1);
    next_key(k0, k1);
  }
  for (int i = 0; i < kDraws; ++i) {
    for (int w = 0; w < 4; ++w) {
      bits[kPerDraw * i + 2 * w] = uint16_t(c[w][i]);
      bits[kPerDraw * i + 2 * w + 1] = uint16_t(c[w][i] >> 16);
    }
  }
}

// Stored to nearest, or where there are random bits stochastically.
template <class T, class Count>
HOTSWAP_INLINE void write(T* p, F v, Count count, const uint16_t* random) {
  if constexpr (__is_same(T, BFloat16)) {
    if (random != nullptr) {
      const U as_is = bits(v), added = as_is + widen(random), quiet = as_is | 0x400000u;
      const I finite = (as_is & 0x7f800000u) != 0x7f800000u;
      const U16 rounded_bits = narrow_high(select(finite, added, select(v != v, quiet, as_is)));
      if constexpr (__is_same(Count, Part)) {
        for (int i = 0; i < count.n; ++i) p[i].bits = rounded_bits[i];
      } else {
        __builtin_memcpy(p, &rounded_bits, sizeof rounded_bits);
      }
      return;
    }
  }
  store(p, v, count);
}

// `size` elements from `at` on, at most kBlock. random: of what is rounded, or null.
template <class T, class State, bool kMaster>
HOTSWAP_INLINE void adamw_block(const Coefficients& c, const Item& item, int64_t at, int64_t size,
                                const uint16_t (*random)[kBlock]) {
  T* parameter = static_cast<T*>(item.parameter) + at;
  const T* gradient = static_cast<const T*>(item.gradient) + at;
  State *average = static_cast<State*>(item.average) + at, *square = static_cast<State*>(item.average_square) + at;
  float* master = kMaster ? item.master + at : nullptr;
  const auto bits_of = [&](Rounded what, int64_t i)
                           HOTSWAP_LAMBDA { return random != nullptr ? random[int(what)] + i : nullptr; };
  sweep(size, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const Moments m = moments(c, load(gradient + i, count), {load(average + i, count), load(square + i, count)});
    write(average + i, m.average, count, bits_of(Rounded::kAverage, i));
    write(square + i, m.average_square, count, bits_of(Rounded::kAverageSquare, i));
    if constexpr (kMaster) {
      const F p = updated(c, load(master + i, count), m);
      store(master + i, p, count);
      store(parameter + i, p, count);
    } else {
      write(parameter + i, updated(c, load(parameter + i, count), m), count, bits_of(Rounded::kParameter, i));
    }
  });
}

template <class T, class State, bool kMaster>
static void adamw_of(const Update& u, const Coefficients& c, const Item& item, int64_t index, int64_t begin,
                     int64_t end) {
  if (!u.stochastic) return adamw_block<T, State, kMaster>(c, item, begin, end - begin, nullptr);
  const Random random{u.seed, uint32_t(*item.step), uint32_t(index)};
  for (int64_t at = begin; at < end; at += kBlock) {  // begin is a multiple of kBlock
    const int64_t size = end - at < kBlock ? end - at : kBlock;
    uint16_t bits[3][kBlock];
    for (int i = 0; i < 3; ++i) {
      const auto what = Rounded(i);
      const bool is_float32 = what == Rounded::kParameter && (kMaster || sizeof(T) == 4);
      if (!is_float32) fill(bits[i], random, what, uint64_t(at / kPerDraw));
    }
    adamw_block<T, State, kMaster>(c, item, at, size, bits);
  }
}

static void adamw(const Update& u, const Coefficients& c, const Item& item, int64_t index, int64_t begin, int64_t end) {
  with_forms(u, [&]<typename T, typename State, bool kMaster>() {
    adamw_of<T, State, kMaster>(u, c, item, index, begin, end);
  });
}

const Table kTable = {.adamw = adamw};

}  // namespace optimizer::HOTSWAP_ISA
