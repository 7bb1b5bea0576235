// Result<T>: a value, or the reason why there is none, for outcomes that the caller expects.
//
//   Result<Package> found = find_package(name);
//   if (!found) report.push_back(found.why());
//   use(*found);              // dereferencing an empty Result throws Error
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "hotswap/base/error.h"

namespace hotswap {

struct Reason {
  std::string text;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}               // NOLINT(google-explicit-constructor)
  Result(Reason reason) : reason_(std::move(reason.text)) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return value_.has_value(); }
  const std::string& why() const { return reason_; }
  T& operator*() { return checked(), *value_; }
  const T& operator*() const { return checked(), *value_; }
  T* operator->() { return &**this; }
  const T* operator->() const { return &**this; }

 private:
  void checked() const {
    if (!value_)
      throw Error({.kind = ErrorKind::kInternal,
                   .wanted = "a value",
                   .got = reason_,
                   .next = "test the Result before using it"});
  }
  std::optional<T> value_;
  std::string reason_;
};

}  // namespace hotswap
