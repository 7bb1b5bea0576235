// Tools of a request: what they are, how a model writes its calls, and the grammar of calls that are demanded.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "hotswap/chat/chat_template.h"
#include "hotswap/serve/answer_rules.h"
#include "hotswap/serve/tool_formats.h"

namespace hotswap::serve {

enum class ToolChoice { kNone, kAuto, kRequired };

struct ToolRequest {
  ToolChoice choice = ToolChoice::kNone;
  nlohmann::ordered_json tools = nullptr;  // as the template gets them; null where none are shown
  std::vector<std::string> names = {};     // that may be called
  bool parallel = true;                    // several calls in one message
  const ToolFormat* format = nullptr;
};

// Special tokens by which calls are marked, so that grammars may have them: of one format, or of all.
std::set<int64_t> marker_tokens(const Tokenizer& tokenizer, const ToolFormat& format);
std::set<int64_t> marker_tokens(const Tokenizer& tokenizer);

// ApiError 400 naming the field. `chat_template`: its text shows the format.
ToolRequest read_tools(RequestBody& body, const ChatTemplate& chat_template);

// Calls of the tools that may be called, one at least. ApiError 400 where a tool's schema is not served.
AnswerRules tool_rules(const ToolRequest& request);

}  // namespace hotswap::serve
