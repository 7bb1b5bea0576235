#include "hotswap/serve/refusals.h"

#include "hotswap/base/log.h"
#include "hotswap/http/http_server.h"

namespace hotswap::serve {
namespace {

constexpr size_t kMaxPath = 1024;  // httplib finds the handler by a regular expression, which recurses
constexpr size_t kMaxShown = 120;

}  // namespace

void write_refusal(httplib::Response& response, const ApiError& error) {
  response.status = error.status;
  if (error.may_retry()) {
    response.set_header("Retry-After", "1");
  } else {
    response.set_header("x-should-retry", "false");
  }
  if (error.status == 401) response.set_header("WWW-Authenticate", "Bearer");
  if (!error.allow.empty()) response.set_header("Allow", error.allow);
  ClientConnection::close_after_answer();
  response.set_header("Connection", "close");
  response.set_content(error.json(), "application/json");
}

bool answered(httplib::Response& response, const std::function<bool()>& answer) {
  try {
    return answer();
  } catch (const std::exception& error) {
    const ApiError refused = api_error(error);
    if (refused.status == 500) log_warning("serve: ", refused.what());
    write_refusal(response, refused);
    return false;
  }
}

void refuse_path(const httplib::Request& request, bool has_get, bool has_post) {
  if (!has_get && !has_post) {
    throw ApiError(404, {"a path of this server", request.path.substr(0, kMaxShown),
                         "send chats to /v1/chat/completions; docs/serving.md lists the others"});
  }
  const char* method = has_get ? "GET" : "POST";
  ApiError refused(405, {cat(method, " for this path"), request.method.substr(0, kMaxShown), cat("use ", method)});
  refused.allow = has_get ? "GET, HEAD" : "POST";
  throw refused;
}

void refuse_unknown_field(const std::string& field) {
  bad_request({"fields that this server knows", came(nlohmann::ordered_json(field)),
               "leave it out, or start the server without --strict-fields", field, "unknown_parameter"});
}

void check_path_length(const httplib::Request& request) {
  if (request.path.size() <= kMaxPath) return;
  throw ApiError(404, {cat("a path of at most ", kMaxPath, " bytes"), cat(request.path.size()), "shorten it"});
}

ApiError no_http_request(int status) { return {status, {"an HTTP request", "none", "send one of HTTP/1.1"}}; }

ApiError body_too_large(size_t most) {
  return {413, {cat("a body of at most ", most, " bytes"), "a longer one", "send less at a time"}};
}

ApiError body_incomplete() {
  return {400,
          {"a whole body", "a part of it", "send as many bytes as Content-Length has, or all chunks and no trailer"}};
}

ApiError server_ends() { return {503, {"a server that runs", "one that is ending", "send the request to another"}}; }

}  // namespace hotswap::serve
