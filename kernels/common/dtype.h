// Element types of the kernels, torch-free, and the one place that turns a run-time DType into a type.
#pragma once

#include <cstdint>

namespace kernels {

struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16 };

constexpr int64_t size_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// fn is a templated lambda: with_dtype(d, [&]<typename T>() { ... });
template <class Fn>
static inline void with_dtype(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::kFloat32:
      return fn.template operator()<float>();
    case DType::kBFloat16:
      return fn.template operator()<BFloat16>();
    case DType::kFloat16:
      return fn.template operator()<Half>();
  }
}

}  // namespace kernels
