#include "hotswap/tokenizers/vocabulary.h"

#include <cstdio>
#include <functional>

#include "hotswap/base/error.h"

namespace hotswap::tokenizers {
namespace {

size_t table_size(size_t count) {
  size_t size = 16;
  while (size < 2 * count) size *= 2;
  return size;
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::pair<std::string, int64_t>> tokens, const std::string& where, SameString same)
    : slots_(table_size(tokens.size()), -1) {
  const auto limit = static_cast<int64_t>(4 * tokens.size() + 65536);
  const size_t mask = slots_.size() - 1;
  for (auto& [token, id] : tokens) {
    if (id < 0 || id >= limit) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("ids from 0 to ", limit - 1, " in ", where, ", which has ", tokens.size(), " tokens"),
                   .got = cat(id, " for '", token, "'"),
                   .next = "give the tokens ids without gaps, or fetch the file again"});
    }
    if (id >= id_end()) {
      tokens_.resize(static_cast<size_t>(id) + 1);
      present_.resize(static_cast<size_t>(id) + 1);
    }
    const auto at = static_cast<size_t>(id);
    if (present_[at]) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("each id once in ", where),
                   .got = cat(id, " for '", tokens_[at], "' and for '", token, "'"),
                   .next = "give one of the two another id, or fetch the file again"});
    }
    size_t slot = std::hash<std::string_view>{}(token)&mask;
    while (slots_[slot] >= 0 && tokens_[static_cast<size_t>(slots_[slot])] != token) slot = (slot + 1) & mask;
    if (slots_[slot] >= 0 && same == SameString::kRefused) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("each token once in ", where),
                   .got = cat("'", token, "' twice"),
                   .next = "remove one of the two entries"});
    }
    slots_[slot] = static_cast<int32_t>(id);
    tokens_[at] = std::move(token);
    present_[at] = true;
    ++count_;
  }
}

int32_t Vocabulary::find(std::string_view token) const {
  const size_t mask = slots_.size() - 1;
  for (size_t slot = std::hash<std::string_view>{}(token)&mask; slots_[slot] >= 0; slot = (slot + 1) & mask) {
    if (tokens_[static_cast<size_t>(slots_[slot])] == token) return slots_[slot];
  }
  return -1;
}

std::vector<int32_t> byte_fallback_ids(const Vocabulary& vocabulary) {
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    ids.push_back(vocabulary.find(name));
  }
  return ids;
}

MergeTable::MergeTable(size_t count) : slots_(table_size(count)), mask_(slots_.size() - 1) {}

void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t i = slot_of(key);
  while (slots_[i].key != kFree && slots_[i].key != key) i = (i + 1) & mask_;
  slots_[i] = {key, merge};
}

}  // namespace hotswap::tokenizers
