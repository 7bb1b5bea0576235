// What kernelize did: one row per slot of the model, and one for each entry of the mapping that no slot was for. Tests
// read it; people read it printed.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace hotswap {

struct KernelRow {
  std::string name;                                   // of the module in transformers: "model.layers.0.mlp"
  std::string layer;                                  // of the slot: "SwiGLUMLP"
  std::string device;                                 // "cpu", "cuda:1"
  std::string mode;                                   // asked for: "TRAINING|TORCH_COMPILE"
  std::optional<std::string> package = std::nullopt;  // none: the layer is stock
  std::string package_layer = {};                     // empty where stock, as digest
  int64_t version = 0;
  std::string digest = {};
  std::string reason = {};  // why stock; where bound, what the kernel stands in for and which calls it serves
  bool by_choice = false;   // stock because the user's mapping says so, or nothing is lost: strict does not mind
};

class KernelReport {
 public:
  std::vector<KernelRow> rows;

  int64_t bound() const;
  int64_t stock() const { return static_cast<int64_t>(rows.size()) - bound(); }
  KernelReport left_stock() const;  // the rows that strict would not let pass
  // {"layers":[{"name","layer","device","mode","package","package_layer","version","digest","reason"}]}
  nlohmann::ordered_json to_json() const;
};

// A table with one line for all layers that fared alike.
std::ostream& operator<<(std::ostream& out, const KernelReport& report);

}  // namespace hotswap
