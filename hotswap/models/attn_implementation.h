// attn_implementation: a stock forward ("sdpa", "eager"), or a kernel, which becomes the attention's row of the kernel
// mapping.
//
//   "kernels-community/flash-attn2@>=2.0,<3.0"    as every kernel: org/repo[@revision][:layer]
//   "flash_attention_2"                           transformers' short names for two of them
//   "paged|flash_attention_2"                     refused: pages are continuous batching's, which is Python's
#pragma once

#include <filesystem>
#include <string>

#include "hotswap/hub/names/kernel_ref.h"

namespace hotswap {

inline constexpr const char* kAttentionLayer = "attention";  // of the slot, and of the mapping

// A kernel's name, or a short one; also behind transformers' "paged|", which check_attn_implementation refuses.
bool is_attention_kernel(const std::string& name);
// Error where `name` is neither a stock forward nor may be a kernel, and for one behind "paged|", which says what to
// write instead. Asks nobody.
void check_attn_implementation(const std::string& name);
// What the mapping's row says: stock for a stock forward. Where the name gives no version, the project's or else the
// one that transformers asks for.
KernelRef attention_kernel(const std::string& name, bool allow_all_kernels, const std::filesystem::path& project);

}  // namespace hotswap
