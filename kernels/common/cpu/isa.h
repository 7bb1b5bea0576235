// One source, compiled once per instruction set. CMake compiles cpu/*.cpp with HOTSWAP_ISA = base, v3, v4
// (x86-64 levels); everything in it and in the headers that it includes lives in `namespace HOTSWAP_ISA` or is static,
// so that no weak inline function compiled for AVX-512 can be the one the linker keeps for a machine without it. For
// the same reason these files call nothing inline of the standard library.
//
// A package declares a table of function pointers in its header and fills it once per ISA:
//   struct Table { void (*forward)(const Args&, int64_t begin, int64_t end); };   // norm.h
//   HOTSWAP_ISA_TABLES(Table)
//   namespace HOTSWAP_ISA { const Table kTable = {forward}; }                     // cpu/norm.cpp
//   static const Table& t = HOTSWAP_CHOOSE_TABLE(norm);                           // torch_binding.cpp
#pragma once

#ifndef HOTSWAP_ISA
#error "expected HOTSWAP_ISA=base|v3|v4; got nothing; compile through hotswap_kernel() of cmake/hotswap_kernel.cmake"
#endif

#define HOTSWAP_INLINE static inline __attribute__((always_inline))
#define HOTSWAP_LAMBDA __attribute__((always_inline))

namespace kernels {

enum class Isa { kBase = 0, kV3 = 1, kV4 = 2 };

// The best ISA of this CPU, capped by the environment variable HOTSWAP_ISA=base|v3|v4. Throws on any other value.
Isa chosen_isa();
const char* isa_name(Isa isa);

// Has this CPU, within HOTSWAP_ISA, instructions that multiply such elements, so that torch's library is fast at them?
bool multiplies_bfloat16();
bool multiplies_float16();

}  // namespace kernels

#if defined(HOTSWAP_ONLY_ISA)  // a build for this machine alone
#define HOTSWAP_ISA_TABLES(Table) \
  namespace HOTSWAP_ONLY_ISA {    \
  extern const Table kTable;      \
  }
#define HOTSWAP_CHOOSE_TABLE(package) (kernels::chosen_isa(), package::HOTSWAP_ONLY_ISA::kTable)
#elif defined(__x86_64__)
#define HOTSWAP_ISA_TABLES(Table) \
  namespace base {                \
  extern const Table kTable;      \
  }                               \
  namespace v3 {                  \
  extern const Table kTable;      \
  }                               \
  namespace v4 {                  \
  extern const Table kTable;      \
  }
#define HOTSWAP_CHOOSE_TABLE(package)                                 \
  (kernels::chosen_isa() == kernels::Isa::kV4   ? package::v4::kTable \
   : kernels::chosen_isa() == kernels::Isa::kV3 ? package::v3::kTable \
                                                : package::base::kTable)
#else
#define HOTSWAP_ISA_TABLES(Table) \
  namespace base {                \
  extern const Table kTable;      \
  }
#define HOTSWAP_CHOOSE_TABLE(package) (kernels::chosen_isa(), package::base::kTable)
#endif
