// How families of models write calls of tools: a row of a table each, known by the text of their chat templates.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/chat/chat_template.h"

namespace hotswap::serve {

struct ToolFormat {
  enum class Style {
    kObject,      // {"name": ..., "arguments": {...}}
    kNamed,       // name, `between`, {...}; or an object
    kParameters,  // <function=name><parameter=key>value</parameter></function>; or an object
    kKeys,        // name<arg_key>key</arg_key><arg_value>value</arg_value>; or an object
    kChannels,    // gpt-oss: the message is in channels, see ChannelParser
  };
  const char* name;
  const char* known_by = "";  // a chat template with this text, and with `also`, is of the format
  const char* also = "";
  const char* open = "";                // before a call, or before all of them; "": the message is nothing but calls
  const char* tag = "";                 // which such a message may begin with
  const char* before = "";              // of a named call, after `open`
  const char* between = "";             // of a named call: its name and its arguments
  const char* after = "";               // follows each call
  const char* next = "";                // between two calls
  const char* end = "";                 // follows the last one
  const char* arguments = "arguments";  // the key of an object, beside "name"
  Style style = Style::kObject;
  bool list = false;                      // objects are elements of a JSON list
  bool python = false;                    // or calls as Python writes them: [f(a=1), g()]
  std::vector<const char*> special = {};  // tokens that decoding would leave out

  bool named() const { return !list && *between != '\0'; }  // a demanded call is written so
};

// The row of the model's format: of several the first; Hermes' where none is known.
const ToolFormat& tool_format_of(const ChatTemplate& chat_template);
const std::vector<ToolFormat>& tool_formats();

// Of each tool its parameters that are no texts: a value that is written without quotes is read as JSON there.
using TypedParameters = std::map<std::string, std::set<std::string>>;
TypedParameters typed_parameters(const nlohmann::ordered_json& tools);

}  // namespace hotswap::serve
