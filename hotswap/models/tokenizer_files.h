// What of a tokenizer a copy of a model needs.
#pragma once

#include <filesystem>

namespace hotswap {

// The tokenizer's files that `from` has, as they are; nothing where it is no folder.
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace hotswap
