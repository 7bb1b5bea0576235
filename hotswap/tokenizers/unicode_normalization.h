// Unicode normalization (NFC, NFD, NFKC, NFKD), code point by code point, with what became of each.
#pragma once

#include <string_view>
#include <vector>

#include "hotswap/tokenizers/pre_tokenized_string.h"

namespace hotswap::tokenizers {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// What the text becomes, as NormalizedString::rewrite() takes it.
std::vector<NewPoint> normalize_unicode(std::string_view text, NormalizationForm form);

// A quick test: true only when the text has the form already.
bool is_normalized(std::string_view text, NormalizationForm form);

}  // namespace hotswap::tokenizers
