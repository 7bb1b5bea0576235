// Repositories of GGUF files hold one model in many quantisations. "org/name:Q4_K_M" (or "folder:Q4_K_M") is the file
// whose name ends so, "model-Q4_K_M.gguf" or "model-Q4_K_M-00001-of-00002.gguf".
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace hotswap {

struct TaggedName {
  std::string name, tag;
};
std::optional<TaggedName> tagged_name(const std::string& name);

// The file among `files` (paths inside `where`) of that quantisation; of a set the first part. Error, with the choices,
// where none or several fit.
std::string gguf_of_tag(const std::vector<std::string>& files, const std::string& tag, const std::string& where);

// The pattern of the file and, if it is part of a set, of all its parts.
std::string with_all_parts(const std::string& gguf_file);

}  // namespace hotswap
