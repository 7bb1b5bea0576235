// What `hotswap kernel check` finds in a built variant.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hotswap {

struct VariantFindings {
  std::vector<std::string> problems;
  std::vector<std::string> notes;  // what could not be looked at here, and why: with --strict these are problems, too
};

// Name, metadata.json, digests, the library's symbols (abi_check.h), layers.json and its contracts. load: also loads
// the library, in a process of its own, where the variant is for this machine and nothing is wrong so far, and compares
// the ops that it registers with the contracts.
VariantFindings check_built(const std::filesystem::path& variant, bool load);

}  // namespace hotswap
