#include "hotswap/engine/prefix_cache.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <random>

#include "hotswap/base/error.h"
#include "hotswap/base/sha256.h"
#include "hotswap/engine/device_copy.h"

namespace hotswap {
namespace {

template <typename T>
void append_bytes(std::vector<uint8_t>& bytes, std::span<const T> values) {
  const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
  bytes.insert(bytes.end(), begin, begin + values.size_bytes());
}

// Of pages that follow one another.
int64_t runs_of(const std::vector<int64_t>& pages) {
  int64_t runs = 1;
  for (size_t i = 1; i < pages.size(); ++i) runs += pages[i] == pages[i - 1] + 1 ? 0 : 1;
  return runs;
}

}  // namespace

PrefixCache::PrefixCache(KvPool& pool, const PrefixCacheOptions& options) : pool_(pool), options_(options) {
  if (options.pages < 1 || options.page_tokens < 1) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "at least one page of at least one token",
                 .got = cat(options.pages, " pages of ", options.page_tokens),
                 .next = "set PrefixCacheOptions, or make no PrefixCache"});
  }
  std::random_device random;
  for (uint8_t& byte : secret_) byte = static_cast<uint8_t>(random());
}

void PrefixCache::extend(PrefixChain& chain, std::span<const int64_t> tokens, int64_t pages) const {
  std::vector<uint8_t> bytes;
  while (static_cast<int64_t>(chain.keys.size()) < pages) {
    const size_t page = chain.keys.size(), size = static_cast<size_t>(options_.page_tokens);
    bytes.clear();
    append_bytes(bytes, std::span<const uint8_t>(secret_));
    if (page == 0) {
      append_bytes(bytes, std::span<const char>(chain.salt));
    } else {
      append_bytes(bytes, std::span<const uint8_t>(chain.keys.back()));
    }
    append_bytes(bytes, tokens.subspan(page * size, size));
    const Sha256 hash = sha256(bytes);
    PrefixKey& key = chain.keys.emplace_back();
    std::copy_n(hash.begin(), key.size(), key.begin());
  }
}

int64_t PrefixCache::known(std::span<const int64_t> tokens, PrefixChain& chain, int64_t limit) const {
  const int64_t most = limit / options_.page_tokens;
  for (int64_t pages = 0; pages < most; ++pages) {
    extend(chain, tokens, pages + 1);
    if (!found_.contains(chain.keys[static_cast<size_t>(pages)])) return pages * options_.page_tokens;
  }
  return std::max<int64_t>(most, 0) * options_.page_tokens;
}

int64_t PrefixCache::restore(int64_t sequence, std::span<const int64_t> tokens, PrefixChain& chain, int64_t limit) {
  const int64_t count = known(tokens, chain, limit);
  if (count == 0) return 0;
  std::vector<int64_t> pages;
  for (int64_t i = 0; i < count / options_.page_tokens; ++i) {
    pages.push_back(found_.at(chain.keys[static_cast<size_t>(i)])->index);
  }
  touch(chain, static_cast<int64_t>(pages.size()));
  constexpr int64_t kMaxRuns = 4;  // more would be more launches than by an index
  if (pool_.one_page_each() && runs_of(pages) <= kMaxRuns) {
    restore_in_place(pages, pool_.append(sequence, count));
    return count;
  }
  const Tensor at = to_device(pages, at::kLong, pool_.device());
  std::vector<KvTokens> rows(memory_.size());
  for (size_t layer = 0; layer < memory_.size(); ++layer) {
    if (!memory_[layer].k.defined()) continue;
    rows[layer].k = memory_[layer].k.index_select(0, at).flatten(0, 1);
    rows[layer].v = memory_[layer].v.index_select(0, at).flatten(0, 1);
  }
  pool_.append(sequence, count, rows);
  return count;
}

// Straight to where the sequence is. Pages of one prompt mostly follow one another: two copies a layer.
void PrefixCache::restore_in_place(const std::vector<int64_t>& pages, const std::vector<KvTokens>& to) const {
  const auto count = static_cast<int64_t>(pages.size()), size = options_.page_tokens;
  const auto copy = [&](const Tensor& memory, const Tensor& tokens) {
    for (int64_t first = 0, end = 0; first < count; first = end) {
      for (end = first + 1; end < count && pages[end] == pages[end - 1] + 1;) ++end;
      const Tensor run = memory.narrow(0, pages[first], end - first).flatten(0, 1);
      tokens.narrow(0, first * size, (end - first) * size).copy_(run);
    }
  };
  for (size_t layer = 0; layer < memory_.size(); ++layer) {
    if (!memory_[layer].k.defined()) continue;
    copy(memory_[layer].k, to[layer].k);
    copy(memory_[layer].v, to[layer].v);
  }
}

// Those of the chain's first pages that are kept count as used now, the first one last: of a chain the end makes room
// before its beginning.
void PrefixCache::touch(const PrefixChain& chain, int64_t pages) {
  for (int64_t i = pages; i-- > 0;) {
    const auto found = found_.find(chain.keys[static_cast<size_t>(i)]);
    if (found != found_.end()) recent_.splice(recent_.begin(), recent_, found->second);
  }
}

// The index of a page for this key: a free one, or the one used longest ago.
int64_t PrefixCache::take_page(const PrefixKey& key) {
  int64_t index = pages_in_use();
  if (index == options_.pages) {
    index = recent_.back().index;
    found_.erase(recent_.back().key);
    recent_.pop_back();
  }
  recent_.push_front({key, index});
  found_.emplace(key, recent_.begin());
  return index;
}

void PrefixCache::keep(int64_t sequence, std::span<const int64_t> tokens, PrefixChain& chain, int64_t count) {
  if (pool_.recurs()) return;
  // More pages than there are would put out their own beginning.
  const int64_t last = std::min(count / options_.page_tokens, options_.pages);
  extend(chain, tokens, last);
  touch(chain, last);
  int64_t first = 0;
  while (first < last && found_.contains(chain.keys[static_cast<size_t>(first)])) ++first;
  if (first == last) return;
  std::vector<int64_t> pages;
  for (int64_t i = first; i < last; ++i) {
    const PrefixKey& key = chain.keys[static_cast<size_t>(i)];
    const auto found = found_.find(key);
    pages.push_back(found != found_.end() ? found->second->index : take_page(key));
  }
  touch(chain, last);
  write(to_device(pages, at::kLong, pool_.device()),
        pool_.tokens_of(sequence, first * options_.page_tokens, (last - first) * options_.page_tokens));
}

void PrefixCache::write(const Tensor& pages, const std::vector<KvTokens>& layers) {
  memory_.resize(layers.size());
  const auto copy = [&](Tensor& memory, const Tensor& fresh) {
    if (!memory.defined()) {
      const c10::InferenceMode off(false);  // else only inference mode could write them
      memory = at::empty({options_.pages, options_.page_tokens, fresh.size(1), fresh.size(2)}, fresh.options());
    }
    memory.index_copy_(0, pages, fresh.unflatten(0, {-1, options_.page_tokens}));
  };
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (!layers[layer].k.defined()) continue;
    copy(memory_[layer].k, layers[layer].k);
    copy(memory_[layer].v, layers[layer].v);
  }
}

}  // namespace hotswap
