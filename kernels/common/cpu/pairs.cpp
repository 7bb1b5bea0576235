#include "kernels/common/cpu/pairs.h"

#include <cstdlib>

namespace kernels {

bool multiplies_pairs() {
#if defined(__x86_64__)
  static const bool does = [] {
    const char* cap = std::getenv("HOTSWAP_ISA");
    return (cap == nullptr || *cap == '\0') && chosen_isa() == Isa::kV4 && __builtin_cpu_supports("avx512bf16");
  }();
  return does;
#else
  return false;
#endif
}

}  // namespace kernels
