// The folder of a model of sentence-transformers: those of a model, and the parts that modules.json names.
#pragma once

#include <filesystem>
#include <string>

namespace hotswap {

// As model_folder(): a path of this machine as it is, or the name of a repository of the Hub, fetched.
std::filesystem::path sentence_folder(const std::filesystem::path& name, const std::string& revision = "main");

}  // namespace hotswap
