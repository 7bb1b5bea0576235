// A refusal in OpenAI's form: {"error": {"message", "type", "param", "code"}} with a status.
#pragma once

#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

#include "hotswap/base/error.h"
#include "hotswap/base/json.h"
#include "hotswap/base/without_nul.h"

namespace hotswap::serve {

// What a refusal states, as an Error does: what was expected, what came, what to do next.
struct Refusal {
  std::string expected, got;
  NextStep next;
  std::string param = {}, code = {};  // "": null
};

struct ApiError : std::runtime_error {
  ApiError(int status, const Refusal& refusal);
  // In other words: OpenAI's own, for which some clients look.
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : std::runtime_error(without_nul(message)), status(status), param(std::move(param)), code(std::move(code)) {}

  int status;
  std::string param, code;  // "": null
  std::string allow = {};   // of a 405: the methods that the path has
  // "invalid_request_error" and the other names that clients know.
  const char* type() const;
  // Whether the same request may succeed later. Clients repeat 429 and 5xx unless a header forbids it.
  bool may_retry() const { return status == 429 || status == 503; }
  std::string json() const;  // the body
};

// Of a request's own fault: 400 with the parameter's name.
[[noreturn]] void bad_request(const Refusal& refusal);

// What came in place of what was expected, as JSON: 5, "a", {"a":1}; the start of what is long. None: "none".
std::string came(const std::optional<Json>& value);
std::string came(const nlohmann::ordered_json& value);

// By the error's kind: 400, 404, 501, 503 or 500. What is no Error is 500.
ApiError api_error(const std::exception& error);

}  // namespace hotswap::serve
