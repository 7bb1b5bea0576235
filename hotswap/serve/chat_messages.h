// A chat request's messages in the form that chat templates read.
#pragma once

#include "hotswap/chat/chat_template.h"
#include "hotswap/serve/request_body.h"
#include "hotswap/serve/tools.h"

namespace hotswap::serve {

struct ChatFields {
  ChatRequest request;
  ToolRequest tools;
};

// ApiError 400 naming what is wrong with which message or tool.
ChatFields read_chat_fields(RequestBody& body, const ChatTemplate& chat_template);

}  // namespace hotswap::serve
