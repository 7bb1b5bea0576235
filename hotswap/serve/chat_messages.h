// A chat request's messages in the form that chat templates read.
#pragma once

#include "hotswap/chat/chat_template.h"
#include "hotswap/serve/request_body.h"

namespace hotswap::serve {

// ApiError 400 naming what is wrong with which message; 501 on tools.
ChatRequest read_chat_fields(RequestBody& body, const ChatTemplate& chat_template);

}  // namespace hotswap::serve
