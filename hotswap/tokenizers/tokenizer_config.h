// tokenizer_config.json: what of it changes ids, beside tokenizer.json.
#pragma once

#include <vector>

#include "hotswap/base/json.h"
#include "hotswap/tokenizers/added_tokens.h"
#include "hotswap/tokenizers/vocabulary.h"

namespace hotswap::tokenizers {

// The tokens that the config names are looked for in a text as added tokens are, whether tokenizer.json lists them or
// not: adds those that it does not, and marks all of them special.
void add_named_tokens(const Json& config, const Vocabulary& model, std::vector<AddedToken>& tokens);

// Error for a setting that gives other ids than tokenizer.json does.
void refuse_other_ids(const Json& config, const Json& tokenizer_json);

}  // namespace hotswap::tokenizers
