// What the servers of texts and of vectors refuse alike, before a request's fields are read.
#pragma once

#include <httplib.h>

#include <functional>

#include "hotswap/serve/api_error.h"

namespace hotswap::serve {

// Writes the error, with the headers that clients look for, and ends the connection: the body may not have been read.
void write_refusal(httplib::Response& response, const ApiError& error);
// Whatever goes wrong in `answer` becomes an answer in OpenAI's form; false then.
bool answered(httplib::Response& response, const std::function<bool()>& answer);

// 405 where the path is there for another method, 404 where it is not.
[[noreturn]] void refuse_path(const httplib::Request& request, bool has_get, bool has_post);
[[noreturn]] void refuse_unknown_field(const std::string& field);
void check_path_length(const httplib::Request& request);

ApiError no_http_request(int status);
ApiError body_too_large(size_t most);
ApiError body_incomplete();
ApiError server_ends();

}  // namespace hotswap::serve
