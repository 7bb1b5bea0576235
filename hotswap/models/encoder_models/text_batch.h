// What a model that reads text gets to see: a padded batch, or sequences of any length packed into one row without
// padding.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "hotswap/layers/attention.h"

namespace hotswap {

struct TextBatch {
  Tensor ids;                         // [rows, time] int64
  Tensor token_type_ids = {};         // [rows, time] int64, or undefined: all of type 0
  Tensor position_ids = {};           // [1 or rows, time] int64, or undefined: counted in each sequence
  Tensor padding = {};                // [rows, time] bool, false where a token is padding; or undefined: none is
  std::vector<int64_t> lengths = {};  // of the sequences that are packed into one row; empty: a row is a sequence

  bool packed() const { return !lengths.empty(); }
  int64_t sequences() const { return packed() ? static_cast<int64_t>(lengths.size()) : ids.size(0); }
  int64_t longest() const;                          // tokens of a sequence, padding included
  Tensor positions() const;                         // of a token in its sequence, from 0: [1, time] int64
  Tensor starts() const;                            // of packed sequences: [sequences + 1] int32, the end included
  AttentionMetadata attention() const;              // which token is padding, where sequences begin
  Tensor first_tokens(const Tensor& hidden) const;  // [rows, time, dim] -> [sequences, dim]
  // Of each sequence the last token that is no padding; of one that is all padding its first.
  Tensor last_tokens(const Tensor& hidden) const;
};

// Error where `lengths` are not those of one row, or of an empty sequence.
void check_lengths(const TextBatch& batch);

}  // namespace hotswap
