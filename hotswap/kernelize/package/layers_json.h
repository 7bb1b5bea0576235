// layers.json: which layers a package's ops serve (docs/formats.md has both of its schemas).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/kernelize/package/capabilities.h"

namespace hotswap {

struct LayerEntry {
  std::string contract;                    // "rms_norm/1"
  std::map<std::string, std::string> ops;  // role of the contract -> the op's name
  Capabilities capabilities;
};

struct StandIn {  // "kernels-community/activation:Silu=SiLU"
  std::string repo, their_layer, our_layer;
  std::optional<int64_t> version = std::nullopt;  // the repository's newest that it was written for; none: any
};

struct PackageLayers {
  std::map<std::string, LayerEntry> layers;
  std::vector<StandIn> stands_in_for;
};

std::string read_layers_text(const std::filesystem::path& variant_folder);  // of its layers.json; Error: it has none
// Error on anything malformed or unknown.
PackageLayers parse_layers(const std::string& text, const std::filesystem::path& file);

}  // namespace hotswap
