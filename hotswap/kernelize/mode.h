// The modes that a kernel is registered for and that kernelize asks for, as the `kernels` library has them.
//
//   const Mode mode = Mode::TRAINING | Mode::TORCH_COMPILE;
//
// INFERENCE and TRAINING exclude each other, FALLBACK stands alone.
//
// In this host TORCH_COMPILE means capture-safe: the step is recorded as a CUDA graph.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hotswap {

class Mode {
 public:
  static const Mode INFERENCE, TRAINING, TORCH_COMPILE, FALLBACK;

  // Error where the union makes no sense.
  friend Mode operator|(Mode a, Mode b);
  bool operator==(const Mode&) const = default;
  bool operator<(const Mode& other) const { return bits_ < other.bits_; }  // for maps
  bool has(Mode flag) const { return (bits_ & flag.bits_) == flag.bits_; }

  std::string str() const;  // "TRAINING|TORCH_COMPILE"
  static Mode parse(
      std::string_view s);  // the same, any case, "|" or "," between; "compile" is short for TORCH_COMPILE
  static Mode of_training(bool training);  // TRAINING or INFERENCE

 private:
  constexpr explicit Mode(unsigned bits) : bits_(bits) {}
  unsigned bits_;
};

inline constexpr Mode Mode::FALLBACK{1};
inline constexpr Mode Mode::TRAINING{2};
inline constexpr Mode Mode::INFERENCE{4};
inline constexpr Mode Mode::TORCH_COMPILE{8};

// Which registered modes serve a requested one, best first. Error unless INFERENCE or TRAINING is requested.
std::vector<Mode> modes_that_serve(Mode requested);

}  // namespace hotswap
