// Iteration as Python's iter(), len() and list() have it.
#pragma once

#include <optional>
#include <vector>

#include "hotswap/chat/jinja/value.h"

namespace hotswap::jinja {

bool iterable(const Value& value);

// Over characters, items, keys, or what a generator gives; a type error where the value cannot be iterated.
class Iterator {
 public:
  explicit Iterator(Value value);
  std::optional<Value> next();

 private:
  Value value_;
  size_t at_ = 0;
};

std::optional<int64_t> length_if_sized(const Value& value);
int64_t length_of(const Value& value);  // a type error where len() is one
std::vector<Value> to_vector(const Value& value);
// [start, stop, step] of a slice over a length, as Python's slice.indices: each bound may be none.
Range slice_range(const Value& start, const Value& stop, const Value& step, int64_t length);
bool sliceable(const Value& value);
Value slice(const Value& value, const Value& start, const Value& stop, const Value& step);

}  // namespace hotswap::jinja
