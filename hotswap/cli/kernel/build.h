// `hotswap kernel build`: the CPU variant of a package for this machine, from its build.toml alone.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hotswap {

struct BuiltVariant {
  std::filesystem::path folder;             // <package>/build/<variant>
  std::string id;                           // _<name>_cpu_<7 hex of a hash over what is compiled or staged>
  std::vector<std::string> other_backends;  // of build.toml: not built here
};

// Compiles what build.toml lists with $CXX (else c++) against the headers of the torch that this program runs on,
// stages it in kernel-builder's layout with digests, checks it (check.h), and only then puts it in place of an older
// one. Error with the compiler's words, or every problem; the older one is untouched then. The same sources give the
// same bytes, wherever they lie.
BuiltVariant build_package(const std::filesystem::path& package, bool verbose);

}  // namespace hotswap
