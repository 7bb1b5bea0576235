#include "hotswap/tokenizers/double_array.h"

#include <algorithm>

namespace hotswap::tokenizers {

// Gives every node of the trie a base under which all its children are free. Only the last blocks of 256 units are
// searched for free ones: earlier ones are nearly full, and a search through them all would take quadratic time.
class DoubleArrayBuilder {
 public:
  using Keys = std::vector<std::pair<std::string_view, int32_t>>;

  DoubleArrayBuilder(std::vector<DoubleArray::Unit>& units, const Keys& keys) : units_(units), keys_(keys) {
    units_.clear();
    grow();
    use(0, DoubleArray::kRoot);
    build();
  }

 private:
  static constexpr size_t kOpenBlocks = 16;
  static constexpr uint32_t kBlock = 256;

  struct Node {
    uint32_t unit;
    size_t begin, end, depth;  // the keys that share its first `depth` bytes
  };
  struct Child {
    uint8_t label;
    size_t begin, end;
  };

  void build() {
    std::vector<Node> nodes = {{0, 0, keys_.size(), 0}};
    std::vector<Child> children;
    while (!nodes.empty()) {
      Node node = nodes.back();
      nodes.pop_back();
      if (node.begin < node.end && keys_[node.begin].first.size() == node.depth) {
        units_[node.unit].value = keys_[node.begin].second;
        ++node.begin;
      }
      if (node.begin == node.end) continue;
      children_of(node, children);
      const uint32_t base = find_base(children);
      units_[node.unit].base = base;
      for (const Child& child : children) {
        use(base ^ child.label, node.unit);
        nodes.push_back({base ^ child.label, child.begin, child.end, node.depth + 1});
      }
    }
  }

  void children_of(const Node& node, std::vector<Child>& children) const {
    children.clear();
    for (size_t i = node.begin; i < node.end; ++i) {
      const auto label = static_cast<uint8_t>(keys_[i].first[node.depth]);
      if (children.empty() || children.back().label != label) children.push_back({label, i, i});
      children.back().end = i + 1;
    }
  }

  uint32_t find_base(const std::vector<Child>& children) {
    for (size_t i = 0; i < free_.size();) {
      const uint32_t unit = free_[i];
      if (units_[unit].parent != DoubleArray::kFree || unit < first_open_) {
        free_[i] = free_.back();  // taken, or in a closed block
        free_.pop_back();
        continue;
      }
      const uint32_t base = unit ^ children[0].label;
      const auto is_free = [&](const Child& child) { return units_[base ^ child.label].parent == DoubleArray::kFree; };
      if (std::all_of(children.begin(), children.end(), is_free)) return base;
      ++i;
    }
    const auto block = static_cast<uint32_t>(units_.size());
    grow();
    return block;
  }

  void grow() {
    const auto first = static_cast<uint32_t>(units_.size());
    units_.resize(first + kBlock);
    for (uint32_t unit = first; unit < first + kBlock; ++unit) free_.push_back(unit);
    if (units_.size() > kOpenBlocks * kBlock) first_open_ = static_cast<uint32_t>(units_.size() - kOpenBlocks * kBlock);
  }

  void use(uint32_t unit, uint32_t parent) { units_[unit].parent = parent; }

  std::vector<DoubleArray::Unit>& units_;
  const Keys& keys_;
  std::vector<uint32_t> free_;  // units of open blocks; those that were taken since leave it when they are met
  uint32_t first_open_ = 0;
};

DoubleArray::DoubleArray(std::vector<std::pair<std::string_view, int32_t>> keys) {
  std::stable_sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::pair<std::string_view, int32_t>> unique;
  for (const auto& key : keys) {
    if (key.first.empty()) continue;
    if (!unique.empty() && unique.back().first == key.first) unique.pop_back();
    unique.push_back(key);
  }
  const DoubleArrayBuilder builder(units_, unique);
}

}  // namespace hotswap::tokenizers
