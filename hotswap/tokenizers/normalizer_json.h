// The "normalizer" of tokenizer.json: Sequence, NFC, NFD, NFKC, NFKD, Replace, Prepend, Lowercase, Strip, StripAccents,
// Nmt, ByteLevel, BertNormalizer, Precompiled.
#pragma once

#include "hotswap/tokenizers/normalizer.h"

namespace hotswap::tokenizers {

std::unique_ptr<Normalizer> read_normalizer(const Json& json);

}  // namespace hotswap::tokenizers
