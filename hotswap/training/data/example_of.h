// A line of a file of examples as tokens with labels. For sources of this room.
#pragma once

#include <string>

#include "hotswap/base/json.h"
#include "hotswap/chat/chat_template.h"
#include "hotswap/tokenizers/tokenizer.h"
#include "hotswap/training/data/dataset.h"

namespace hotswap {

// "text", "prompt and completion", "messages"; Error, with the line, for another object.
std::string form_of(const Json& line);

// chat: null where the model has no template, which is an Error for messages.
Example example_of(const Json& line, const Tokenizer& tokenizer, const ChatTemplate* chat);

}  // namespace hotswap
