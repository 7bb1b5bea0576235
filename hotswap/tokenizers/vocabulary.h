// Strings to ids and back; and for byte-pair encoding, pairs of ids to their merge.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hotswap::tokenizers {

// Ids must not be negative nor lie far beyond the number of tokens: tables are indexed by id.
class Vocabulary {
 public:
  enum class SameString { kRefused, kLastWins };

  // `where` is what errors call the list: "tokenizer.json: model.vocab".
  Vocabulary(std::vector<std::pair<std::string, int64_t>> tokens, const std::string& where,
             SameString same = SameString::kRefused);

  int32_t find(std::string_view token) const;  // the id, -1 when there is none
  bool has(int64_t id) const {
    return id >= 0 && id < static_cast<int64_t>(present_.size()) && present_[static_cast<size_t>(id)];
  }
  const std::string& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  size_t count() const { return count_; }                                  // of tokens
  int64_t id_end() const { return static_cast<int64_t>(tokens_.size()); }  // one beyond the largest id

 private:
  std::vector<std::string> tokens_;  // by id
  std::vector<bool> present_;        // by id
  std::vector<int32_t> slots_;       // open addressing over ids, -1: free
  size_t count_ = 0;
};

// The ids of the tokens <0x00> to <0xFF>, which stand for bytes; -1 where the vocabulary lacks one.
std::vector<int32_t> byte_fallback_ids(const Vocabulary& vocabulary);

struct Merge {
  uint32_t rank;
  int32_t id;  // what the pair becomes
};

class MergeTable {
 public:
  explicit MergeTable(size_t count);
  void set(int32_t left, int32_t right, Merge merge);  // the last one counts
  const Merge* find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return &slots_[i].merge;
      if (slots_[i].key == kFree) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Slot {
    uint64_t key = kFree;
    Merge merge{};
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15ull >> 20) & mask_; }

  std::vector<Slot> slots_;
  size_t mask_;
};

}  // namespace hotswap::tokenizers
