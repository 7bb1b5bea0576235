// A trie of byte strings in two arrays ("double array"): a step reads one unit, and matching makes no strings.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace hotswap::tokenizers {

class DoubleArray {
 public:
  DoubleArray() : units_(256) {}
  // Keys with their values, which are >= 0. Empty keys are left out; of equal keys the last one counts.
  explicit DoubleArray(std::vector<std::pair<std::string_view, int32_t>> keys);

  // Calls found(size, value) for every key that text[at..] begins with, shorter ones first.
  template <class Found>
  void prefixes(std::string_view text, size_t at, const Found& found) const {
    uint32_t unit = 0;
    for (size_t i = at; i < text.size(); ++i) {
      const uint32_t parent = unit;
      unit = units_[parent].base ^ static_cast<uint8_t>(text[i]);
      if (unit >= units_.size() || units_[unit].parent != parent) return;
      if (units_[unit].value >= 0) found(i + 1 - at, units_[unit].value);
    }
  }

 private:
  friend class DoubleArrayBuilder;
  static constexpr uint32_t kFree = ~uint32_t{0};
  static constexpr uint32_t kRoot = kFree - 1;  // the root's parent
  struct Unit {
    uint32_t base = kFree;    // the child of a byte is units[base ^ byte]; kFree: no child
    uint32_t parent = kFree;  // kFree: not in use
    int32_t value = -1;       // of the key that ends here
  };
  std::vector<Unit> units_;  // the root is the first
};

}  // namespace hotswap::tokenizers
