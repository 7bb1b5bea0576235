// Keys and values of prompts that were computed before. A sequence whose tokens begin as an earlier one's takes them
// instead of running those tokens again:
//
//   PrefixCache cache(pool, {.pages = 256, .page_tokens = 64});
//   PrefixChain chain{.salt = salt};
//   cache.keep(sequence, tokens, chain, pool.length(sequence));
//   const int64_t found = cache.restore(other, tokens, chain, tokens.size() - 1);
//
// It holds copies, in pages of its own: a sequence's memory stays in one piece, which is what the fastest kernels and
// captured steps read, and copying a page costs far less than computing it. The page used longest ago makes room.
// A page is found by a hash of its tokens, of all tokens before them, and of the salt.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "hotswap/engine/kv_pool.h"

namespace hotswap {

using PrefixKey = std::array<uint8_t, 16>;

struct PrefixCacheOptions {
  int64_t pages = 0;  // that are kept at most
  int64_t page_tokens = 64;
};

// The keys of a sequence's whole pages, each computed once.
struct PrefixChain {
  std::string salt = {};  // sequences find only pages of their own salt
  std::vector<PrefixKey> keys = {};
};

class PrefixCache {
 public:
  // `pool` must outlive it. Error where a size is below 1.
  PrefixCache(KvPool& pool, const PrefixCacheOptions& options);

  // How many of the first tokens are kept, in whole pages and at most `limit`. The chain then has the key of the page
  // after them, too, if that is within the limit.
  int64_t known(std::span<const int64_t> tokens, PrefixChain& chain, int64_t limit) const;
  // Adds keys until the chain has those of the first `pages` pages.
  void extend(PrefixChain& chain, std::span<const int64_t> tokens, int64_t pages) const;
  // Gives an empty sequence of the pool the longest known beginning of `tokens`, whole pages of at most `limit`
  // tokens, as if they had run. -> how many tokens it has now
  int64_t restore(int64_t sequence, std::span<const int64_t> tokens, PrefixChain& chain, int64_t limit);
  // Keeps the whole pages among the sequence's first `count` tokens, which have run. Nothing where a layer has a
  // recurrent state: that is of all tokens at once, and none of its earlier values is there.
  void keep(int64_t sequence, std::span<const int64_t> tokens, PrefixChain& chain, int64_t count);

  int64_t page_tokens() const { return options_.page_tokens; }
  int64_t pages_in_use() const { return static_cast<int64_t>(found_.size()); }

 private:
  struct Page {
    PrefixKey key;
    int64_t index;  // in the memory of each layer
  };
  using Pages = std::list<Page>;
  void touch(const PrefixChain& chain, int64_t pages);
  int64_t take_page(const PrefixKey& key);
  void restore_in_place(const std::vector<int64_t>& pages, const std::vector<KvTokens>& to) const;
  void write(const Tensor& pages, const std::vector<KvTokens>& layers);

  KvPool& pool_;
  PrefixCacheOptions options_;
  std::array<uint8_t, 32> secret_;  // of this process, so that no client can make up tokens of equal keys
  Pages recent_;                    // the one used last is the first
  std::map<PrefixKey, Pages::iterator> found_;
  std::vector<KvTokens> memory_;  // of each layer, [pages, page_tokens, kv_heads, head_dim]; made when first used
};

}  // namespace hotswap
