// Encodings cut to a length, and filled up to one.
#pragma once

#include <span>

#include "hotswap/base/json.h"
#include "hotswap/tokenizers/encode_options.h"
#include "hotswap/tokenizers/encoding.h"

namespace hotswap::tokenizers {

// One encoding per text; their ids are at most max_length - added_tokens in total afterwards. What is cut off goes into
// `overflowing` of each where it is to be kept. Error where the strategy cannot do that.
void truncate(std::span<Encoding> texts, const Truncation& truncation, int64_t added_tokens);

// All encodings, and what overflowed of them, to one length.
void pad(std::span<Encoding> batch, const Padding& padding);

// "truncation" and "padding" of a tokenizer.json.
Truncation read_truncation(const Json& json);
Padding read_padding(const Json& json);

}  // namespace hotswap::tokenizers
