// Unicode normal forms, code point by code point, with what became of each.
#pragma once

#include <string_view>
#include <vector>

#include "hotswap/tokenizers/draft.h"

namespace hotswap::tokenizers {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// What the text becomes, as PieceText::rewrite() takes it.
std::vector<NewPoint> normal_form(std::string_view text, NormalForm form);

// A quick test: true only when the text has the form already.
bool has_normal_form(std::string_view text, NormalForm form);

}  // namespace hotswap::tokenizers
