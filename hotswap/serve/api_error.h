// A refusal in OpenAI's form: {"error": {"message", "type", "param", "code"}} with a status.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "hotswap/base/error.h"

namespace hotswap::serve {

struct ApiError : std::runtime_error {
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : std::runtime_error(message), status(status), param(std::move(param)), code(std::move(code)) {}

  int status;
  std::string param, code;  // "": null
  // "invalid_request_error" and the other names that clients know.
  const char* type() const;
  // Whether the same request may succeed later. Clients repeat 429 and 5xx unless a header forbids it.
  bool may_retry() const { return status == 429 || status == 503; }
  std::string json() const;  // the body
};

// Of a request's own fault: 400 with the parameter's name.
[[noreturn]] void bad_request(const std::string& message, const std::string& param = "", const std::string& code = "");

// By the error's kind: 400, 404, 501, 503 or 500. What is no Error is 500.
ApiError api_error(const std::exception& error);

}  // namespace hotswap::serve
