// The page to talk at `/`: HTML, CSS and JavaScript in one text, which requests nothing from any other server.
#pragma once

#include <string>

namespace hotswap::serve {

// With the nonce that lets its own script and style run, and nothing that a model writes.
std::string chat_page(const std::string& nonce);
std::string page_policy(const std::string& nonce);  // the header Content-Security-Policy

}  // namespace hotswap::serve
