#include "kernels/common/cpu/isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace kernels {

const char* isa_name(Isa isa) { return isa == Isa::kV4 ? "v4" : isa == Isa::kV3 ? "v3" : "base"; }

static Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // feature by feature: not every compiler knows the names of the levels
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? Isa::kV4 : v3 ? Isa::kV3 : Isa::kBase;
#else
  return Isa::kBase;
#endif
}

static Isa capped_isa() {
  const Isa best = best_isa();
  const char* cap = std::getenv("HOTSWAP_ISA");
  if (cap == nullptr || *cap == '\0') return best;
  for (const Isa isa : {Isa::kBase, Isa::kV3, Isa::kV4}) {
    if (std::string(cap) == isa_name(isa)) return isa < best ? isa : best;
  }
  throw std::runtime_error(std::string("HOTSWAP_ISA: expected base, v3 or v4; got \"") + cap +
                           "\"; unset it to use the best that this CPU has");
}

#ifdef HOTSWAP_ONLY_ISA
static Isa choose() {
  constexpr struct { Isa base = Isa::kBase, v3 = Isa::kV3, v4 = Isa::kV4; } isas;
  constexpr Isa only = isas.HOTSWAP_ONLY_ISA;
  if (const Isa capped = capped_isa(); capped < only) {
    throw std::runtime_error(std::string("expected the instruction set ") + isa_name(only) +
                             ", the only one that this package was built for; got " + isa_name(capped) +
                             ", the best that this CPU has or HOTSWAP_ISA allows; run ./x build, which builds for all");
  }
  return only;
}
#else
static Isa choose() { return capped_isa(); }
#endif

Isa chosen_isa() {
  static const Isa isa = choose();
  return isa;
}

#if defined(__x86_64__)
bool multiplies_bfloat16() { return chosen_isa() == Isa::kV4 && __builtin_cpu_supports("avx512bf16"); }
bool multiplies_float16() { return chosen_isa() == Isa::kV4 && __builtin_cpu_supports("avx512fp16"); }
#else
bool multiplies_bfloat16() { return true; }  // torch has kernels of Arm's instructions
bool multiplies_float16() { return true; }
#endif

}  // namespace kernels
