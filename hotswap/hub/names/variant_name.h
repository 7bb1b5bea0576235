// The grammar of build/<variant>/:
//
//   variant   := noarch | framework "-" backend "-" cpu "-" os
//   noarch    := "torch-" (a backend's name, npu, universal, or any other text)
//   framework := "torch" D D+ ["-cxx11" | "-cxx98"] | "torch-stable-abi" D D+ | "tvm-ffi" D D+
//   backend   := cpu | metal | neuron | tpu | cu<version> | rocm<version> | xpu<version> | cann<version>
//   cpu       := x86_64 | aarch64      os := linux | darwin | windows
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>

namespace hotswap {

struct MajorMinor {
  int major = 0, minor = 0;
  auto operator<=>(const MajorMinor&) const = default;
  std::string str() const;  // "12.8"
  // "12.8.1+x" -> 12.8; none where it does not start with a number.
  static std::optional<MajorMinor> parse(std::string_view text);
};

enum class BackendKind { kCann, kCpu, kCuda, kMetal, kNeuron, kRocm, kTpu, kXpu };

struct Backend {
  BackendKind kind = BackendKind::kCpu;
  std::optional<MajorMinor> version = std::nullopt;  // of CUDA, ROCm, XPU and CANN; none: unknown
  bool operator==(const Backend&) const = default;

  std::string name() const;  // "cuda": metadata.json's backend.type, and the name of a noarch variant
  std::string text() const;  // "cu128": as in a variant's name; name() where the version is not known
  // "cu128" is 12.8 and "cu1210" 12.10, "rocm71" 7.1, "xpu20253" 2025.3: a CUDA major has two digits, a ROCm or CANN
  // major one and an XPU major four, or fewer where else none were left for the minor.
  static std::optional<Backend> parse(std::string_view text);
  static std::optional<BackendKind> kind_named(std::string_view name);  // "cuda"
};

enum class Framework { kTorchStableAbi, kTorch, kTvmFfi, kNoarch };

struct VariantName {
  Framework framework = Framework::kNoarch;
  MajorMinor version;             // of the framework; not of noarch
  std::optional<bool> cxx11_abi;  // torch only; none: no tag
  Backend backend;                // not of noarch
  std::string cpu, os;            // not of noarch
  std::string noarch;             // "cpu", "npu", "universal", ...

  std::string str() const;
  static std::optional<VariantName> parse(std::string_view text);
};

}  // namespace hotswap
