// Files of the cache while they come into being. The names are those that huggingface_hub's own tools know.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace hotswap {

// "<file>.<8 hex digits><suffix>", a name that no other process takes.
std::filesystem::path temporary_beside(const std::filesystem::path& file, const std::string& suffix);

// Writes a file of that name and renames it over `file`. Not synced: for what can be asked again.
void replace_file(const std::filesystem::path& file, std::string_view bytes);

}  // namespace hotswap
