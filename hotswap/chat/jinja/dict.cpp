#include <algorithm>

#include "hotswap/chat/jinja/compare.h"
#include "hotswap/chat/jinja/value.h"

namespace hotswap::jinja {
namespace {

constexpr size_t kEntryBytes = 2 * sizeof(Value) + 48;

}  // namespace

Dict::Dict(const std::vector<std::pair<Value, Value>>& pairs) {
  for (const auto& [key, value] : pairs) set(key, value);
}

size_t Dict::position(const Value& key, size_t hash) const {
  const auto [begin, end] = places_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (equal(entries[at->second].first, key)) return at->second;
  }
  return size();
}

void Dict::set(const Value& key, Value value) {
  depth = std::max({depth, deeper(key.depth()), deeper(value.depth())});
  const size_t hash = hash_of(key);
  const size_t at = position(key, hash);
  if (at < size()) {
    entries[at].second = std::move(value);
    return;
  }
  places_.emplace(hash, size());
  entries.emplace_back(key, std::move(value));
  if (size() > counted_entries_) {
    counted_entries_ = std::max<size_t>(4, 2 * counted_entries_);
    counted_ = std::make_shared<Counted>(counted_entries_ * kEntryBytes);
  }
}

const Value* Dict::find(const Value& key) const {
  const size_t at = position(key, hash_of(key));
  return at < size() ? &entries[at].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  const auto [begin, end] = places_.equal_range(hash_of_text(key));
  for (auto at = begin; at != end; ++at) {
    const Value& candidate = entries[at->second].first;
    if (candidate.is_string() && candidate.str() == key) return &entries[at->second].second;
  }
  return nullptr;
}

}  // namespace hotswap::jinja
