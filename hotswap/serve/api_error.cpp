#include "hotswap/serve/api_error.h"

#include <nlohmann/json.hpp>

namespace hotswap::serve {
namespace {

using OutJson = nlohmann::ordered_json;

int status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return 400;
    case ErrorKind::kNotFound:
      return 404;
    case ErrorKind::kUnsupported:
      return 501;
    case ErrorKind::kUnavailable:
      return 503;
    case ErrorKind::kCorrupt:
    case ErrorKind::kInternal:
      break;
  }
  return 500;
}

OutJson null_if_empty(const std::string& text) { return text.empty() ? OutJson() : OutJson(text); }

}  // namespace

ApiError::ApiError(int status, const Refusal& refusal)
    : ApiError(status, cat("expected ", refusal.expected, "; got ", refusal.got, "; ", refusal.next.str()), refusal.param,
               refusal.code) {}

const char* ApiError::type() const {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 501:
      return "not_implemented_error";
    case 503:
      return "unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string ApiError::json() const {
  const OutJson body = {
      {"error",
       {{"message", what()}, {"type", type()}, {"param", null_if_empty(param)}, {"code", null_if_empty(code)}}}};
  return body.dump(-1, ' ', false, OutJson::error_handler_t::replace);
}

void bad_request(const Refusal& refusal) { throw ApiError(400, refusal); }

std::string came(const std::optional<Json>& value) { return value ? came(value->raw()) : "none"; }

std::string came(const nlohmann::ordered_json& value) {
  constexpr size_t kLongest = 80;
  const std::string text = value.dump(-1, ' ', false, OutJson::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest - 3) + "...";
}

ApiError api_error(const std::exception& error) {
  if (const auto* api = dynamic_cast<const ApiError*>(&error)) return *api;
  if (const auto* ours = dynamic_cast<const Error*>(&error)) return {status_of(ours->kind()), ours->what()};
  return {500, cat("internal error: ", error.what())};
}

}  // namespace hotswap::serve
