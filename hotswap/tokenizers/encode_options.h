// How texts are encoded: special tokens, truncation, padding, threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hotswap {

enum class Side { kLeft, kRight };

// Applied before special tokens are added; their count is taken off max_length first.
struct Truncation {
  enum class Strategy { kLongestFirst, kOnlyFirst, kOnlySecond };  // which text of a pair is cut

  int64_t max_length = 512;  // tokens, special ones included
  Strategy strategy = Strategy::kLongestFirst;
  Side side = Side::kRight;       // from which tokens are removed
  bool keep_overflowing = false;  // into Encoding::overflowing, in parts of up to max_length
  int64_t stride = 0;             // tokens that neighbouring parts share
};

struct Padding {
  std::optional<int64_t> length;  // none: the longest encoding of the batch
  Side side = Side::kRight;
  int64_t multiple_of = 0;  // the length is rounded up to a multiple; 0: it is not
  int64_t id = 0, type_id = 0;
  std::string token = "[PAD]";
};

struct EncodeOptions {
  bool add_special_tokens = true;
  std::optional<Truncation> truncation = std::nullopt;
  std::optional<Padding> padding = std::nullopt;
  bool ids_only = false;  // no tokens and offsets: faster
  int threads = 0;        // of a batch, at most; 0: as many as the machine has cores
};

}  // namespace hotswap
