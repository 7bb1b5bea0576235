// Memory of a thread that is kept between calls, aligned to a cache line: a vector across two lines is two loads.
#pragma once

#include <cstdint>
#include <vector>

namespace kernels {

inline float* aligned_floats(std::vector<float>& buffer, int64_t count) {
  constexpr uintptr_t kLine = 64;
  buffer.resize(size_t(count) + kLine / sizeof(float));
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(buffer.data()) + kLine - 1) / kLine * kLine);
}

}  // namespace kernels
