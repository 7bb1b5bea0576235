// `hotswap kernel build`: the CPU variant of a package for this machine, from its build.toml alone.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hotswap {

struct BuiltVariant {
  std::filesystem::path folder;             // <package>/build/<variant>
  std::string id;                           // _<name>_cpu_<7 hex of a hash over the sources>
  std::vector<std::string> other_backends;  // of build.toml: not built here
};

// Compiles what build.toml lists with $CXX (else c++) against the headers of the torch that this program runs on,
// stages it in kernel-builder's layout with digests, checks its ABI, and only then puts it in place of an older one.
// Error with the compiler's words, or every ABI problem; the older one is untouched then.
BuiltVariant build_package(const std::filesystem::path& package, bool verbose);

}  // namespace hotswap
