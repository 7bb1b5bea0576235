// What a package claims of a layer in layers.json; what it does not claim is "no".
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "hotswap/base/json.h"

namespace hotswap {

// A set of numbers, as layers.json lists them: 64, "80-128", "multiple of 16", and the pair "192/128".
class Numbers {
 public:
  // Adds one entry of the list. Error naming it where it is none of these.
  void add(const Json& entry);
  // One number, or a pair; of equal numbers a pair is one.
  bool has(const std::vector<int64_t>& wanted) const;
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  struct Range {
    int64_t first, last, step;
  };
  std::vector<Range> ranges_;
  std::set<std::pair<int64_t, int64_t>> pairs_;
  std::vector<std::string> entries_;  // as written
};

struct Capabilities {
  bool backward = false;
  bool capture = false;
  bool deterministic = false;
  bool needs_host_sync = false;                   // its ops wait for the device: no step with them can be captured
  std::set<std::string> dtypes;                   // "float32"
  std::set<std::string> features;                 // of those that the contract knows: "window"
  std::set<std::string> inference_features = {};  // more of them, without gradients; of adapted packages alone
  std::map<std::string, Numbers> numbers;         // of those that the contract knows: "head_dims"
  std::set<std::string> weights = {};             // formats of the weights that it takes: "plain", "q8_0"
};

}  // namespace hotswap
