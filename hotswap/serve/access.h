// Which requests are let in: those of programs and of this server's own pages, with a key where there are keys.
#pragma once

#include <httplib.h>

#include <string>
#include <vector>

#include "hotswap/serve/api_error.h"

namespace hotswap::serve {

struct AccessRules {
  bool loopback = true;  // the server listens on the loopback interface only
  std::vector<std::string> hosts;
  std::vector<std::string> api_keys;
};

// ApiError 403 where Host or Origin is foreign: pages of other sites must not use a browser's access to this machine.
void check_origin(const httplib::Request& request, const AccessRules& rules);
// ApiError 401 without one of the keys.
void check_key(const httplib::Request& request, const AccessRules& rules);
// ApiError 415 unless a body is JSON: what a form of another site sends is none.
void check_content_type(const httplib::Request& request);
void check_length(const httplib::Request& request, size_t most);  // of the body, by its header

}  // namespace hotswap::serve
