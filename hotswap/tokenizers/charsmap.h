// The normalizer Precompiled: SentencePiece's table of replacements ("precompiled_charsmap").
#pragma once

#include "hotswap/tokenizers/normalizer.h"

namespace hotswap::tokenizers {

// The table in base64: the size of a double array in bytes, the array, then replacements that end with a zero byte.
std::unique_ptr<Normalizer> read_precompiled(const Json& json);

}  // namespace hotswap::tokenizers
