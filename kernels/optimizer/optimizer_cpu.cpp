// AdamW on the CPU. Compiled once per ISA.
#include "kernels/common/cpu/vec.h"
#include "kernels/optimizer/optimizer.h"
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

struct Random {
  bool on;
  uint64_t seed;
  uint32_t step, index;
};

// Stored to nearest, or stochastically at an element's index.
template <class T, class Count>
HOTSWAP_INLINE void write(T* p, F v, Count count, const Random& random, Rounded what, int64_t element) {
  if constexpr (__is_same(T, BFloat16)) {
    if (random.on) {
      int lanes = kLanes;
      if constexpr (__is_same(Count, Part)) lanes = count.n;
      RandomWords words{};
      for (int i = 0; i < lanes; ++i) {
        const int64_t at = element + i;
        if (i == 0 || at % kPerDraw == 0)
          words = random_words(random.seed, random.step, random.index, what, uint64_t(at / kPerDraw));
        p[i].bits = stochastic_bfloat16(bits(v[i]), random_bits(words, int(at % kPerDraw)));
      }
      return;
    }
  }
  store(p, v, count);
}

template <class T, class State, bool kMaster>
static void adamw_of(const Update& u, const Coefficients& c, const Item& item, int64_t index, int64_t begin,
                     int64_t end) {
  // A state that is wider than the parameter, or a float32, is never rounded by chance.
  constexpr bool kByChance = __is_same(State, BFloat16);
  T* parameter = static_cast<T*>(item.parameter) + begin;
  const T* gradient = static_cast<const T*>(item.gradient) + begin;
  State *average = static_cast<State*>(item.average) + begin,
        *square = static_cast<State*>(item.average_square) + begin;
  float* master = kMaster ? item.master + begin : nullptr;
  const Random random{u.stochastic && kByChance, u.seed, uint32_t(*item.step), uint32_t(index)};
  sweep(end - begin, [&](int64_t i, auto count) HOTSWAP_LAMBDA {
    const Moments m = moments(c, load(gradient + i, count), {load(average + i, count), load(square + i, count)});
    write(average + i, m.average, count, random, Rounded::kAverage, begin + i);
    write(square + i, m.average_square, count, random, Rounded::kAverageSquare, begin + i);
    if constexpr (kMaster) {
      const F p = updated(c, load(master + i, count), m);
      store(master + i, p, count);
      store(parameter + i, p, count);
    } else {
      write(parameter + i, updated(c, load(parameter + i, count), m), count, random, Rounded::kParameter, begin + i);
    }
  });
}

static void adamw(const Update& u, const Coefficients& c, const Item& item, int64_t index, int64_t begin, int64_t end) {
  with_forms(u, [&]<typename T, typename State, bool kMaster>() {
    adamw_of<T, State, kMaster>(u, c, item, index, begin, end);
  });
}

const Table kTable = {.adamw = adamw};

}  // namespace optimizer::HOTSWAP_ISA
