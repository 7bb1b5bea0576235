// Which built variant of a package this host takes: build/<variant>/, named torch-stable-abi210-cpu-x86_64-linux.
// Pure: what the host is comes in, a choice and the reason for every variant come out.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hotswap {

struct VariantHost {
  int torch_major = 0, torch_minor = 0;
  std::string cpu;              // x86_64, aarch64
  std::string os = "linux";     // linux, darwin, windows
  std::string backend = "cpu";  // cpu, cu130, rocm71
};

struct VariantChoice {
  std::optional<std::string> chosen;
  std::vector<std::pair<std::string, std::string>> trace;  // variant, "compatible, preferred" or why not; best first
  std::string trace_text() const;                          // "a: reason; b: reason", "none" where there is no variant
};

// Only stable-ABI variants can run without Python and without a rebuild for this torch; the newest ABI that this torch
// has wins. A CUDA variant needs the same major version and no newer a minor one.
VariantChoice choose_variant(std::vector<std::string> variants, const VariantHost& host);

}  // namespace hotswap
