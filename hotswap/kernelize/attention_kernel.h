// attn_implementation by a kernel's name, in the grammar of every kernel: org/repo[@revision][:function].
//
//   check_attn_implementation("sdpa");                                      // nothing to do
//   check_attn_implementation("kernels-community/flash-attn2@>=2.0,<3.0");  // an Error, for the reason below
#pragma once

#include <filesystem>
#include <string>

namespace hotswap {

struct AttentionLookup {
  std::string device_kind = "cpu";
  bool allow_all_kernels = false;
  std::filesystem::path project = {};  // empty: HOTSWAP_PROJECT's
};

// Nothing for names that are no kernel's. A kernel's is looked up as every other, with the project's version and lock,
// trust, variant, digest and signature, and then refused: attention has no contract yet that a package could serve. The
// Error says what was found and what to set instead; an Error on the way there is the one of that step. Runs nothing.
void check_attn_implementation(const std::string& name, const AttentionLookup& lookup = {});

}  // namespace hotswap
