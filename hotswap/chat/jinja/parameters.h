// The arguments of a built-in function by their names, bound as Python binds them.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/chat/jinja/value.h"

namespace hotswap::jinja {

class Parameters {
 public:
  // The first `required` of `names` must be given; too many, unknown or doubled arguments are type errors.
  Parameters(const char* function, const Arguments& arguments, std::initializer_list<const char*> names,
             size_t required = 0);

  bool given(size_t i) const { return values_[i].has_value(); }
  const Value& at(size_t i) const { return *values_[i]; }
  Value get(size_t i, Value otherwise) const { return values_[i] ? *values_[i] : std::move(otherwise); }
  // none() counts as absent.
  std::optional<Value> optional(size_t i) const;
  bool truth(size_t i, bool otherwise) const;
  int64_t integer(size_t i, int64_t otherwise) const;  // a type error for what is no int
  const std::string& text(size_t i) const;             // a type error for what is no str
  std::string text(size_t i, const char* otherwise) const;

 private:
  std::string function_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace hotswap::jinja
