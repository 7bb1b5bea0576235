#include "hotswap/chat/jinja/compare.h"

#include <cmath>
#include <functional>

#include "hotswap/chat/jinja/iterate.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {
namespace {

bool equal_sequences(const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!identical(a[i], b[i]) && !equal(a[i], b[i])) return false;
  }
  return true;
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.find(key);
    if (other == nullptr || (!identical(value, *other) && !equal(value, *other))) return false;
  }
  return true;
}

bool equal_ranges(const Range& a, const Range& b) {
  const int64_t size = a.size();
  if (size != b.size()) return false;
  return size == 0 || (a.start == b.start && (size == 1 || a.step == b.step));
}

// An int and a float, exactly: a double cannot hold every int64.
int compare_int_float(int64_t a, double b) {
  if (std::isnan(b)) return 2;  // neither less, equal nor greater
  if (b >= 9223372036854775808.0) return -1;
  if (b < -9223372036854775808.0) return 1;
  const auto whole = static_cast<int64_t>(std::floor(b));
  if (a != whole) return a < whole ? -1 : 1;
  return b > std::floor(b) ? -1 : 0;
}

// -1, 0, 1, or 2 where one is NaN.
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
  if (a.is_integer()) return compare_int_float(a.as_int(), b.as_float());
  if (b.is_integer()) {
    const int order = compare_int_float(b.as_int(), a.as_float());
    return order == 2 ? 2 : -order;
  }
  const double x = a.as_float(), y = b.as_float();
  if (std::isnan(x) || std::isnan(y)) return 2;
  return x < y ? -1 : x > y;
}

[[noreturn]] void no_order(const Value& a, const Value& b, const char* symbol) {
  type_error(cat("'", symbol, "' not supported between instances of '", type_name(a), "' and '", type_name(b), "'"));
}

// less() and less_equal() differ in what equal operands give.
bool ordered(const Value& a, const Value& b, const char* symbol, bool or_equal) {
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  if (a.is_number() && b.is_number()) {
    const int order = compare_numbers(a, b);
    return order == -1 || (or_equal && order == 0);
  }
  if (a.is_string() && b.is_string()) {
    const int order = a.str().compare(b.str());  // the order of UTF-8 is that of code points
    return order < 0 || (or_equal && order == 0);
  }
  if (a.kind() == b.kind() && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    const auto &x = a.items(), &y = b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!identical(x[i], y[i]) && !equal(x[i], y[i])) return ordered(x[i], y[i], symbol, or_equal);
    }
    return x.size() < y.size() || (or_equal && x.size() == y.size());
  }
  no_order(a, b, symbol);
}

size_t mixed(size_t seed, size_t hash) { return (seed ^ hash) * 0x9E3779B97F4A7C15ull + (seed >> 29); }

bool in_range(const Range& range, const Value& item) {
  if (!item.is_number()) return false;
  if (item.is(Kind::kFloat) && item.as_float() != std::floor(item.as_float())) return false;
  for (int64_t i = 0; i < range.size(); ++i) {
    if (equal(Value::integer(range.at(i)), item)) return true;
  }
  return false;
}

bool in_view(const View& view, const Value& item) {
  if (view.which == View::Which::kKeys) return view.dict->find(item) != nullptr;
  for (const auto& [key, value] : view.dict->entries) {
    if (view.which == View::Which::kValues ? equal(value, item) : equal(Value::tuple({key, value}), item)) return true;
  }
  return false;
}

}  // namespace

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.as_bool();
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_float() != 0;
    case Kind::kString:
      return !value.str().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return value.dict()->size() > 0;
    case Kind::kView:
      return value.view().dict->size() > 0;
    case Kind::kRange:
      return value.range().size() > 0;
    case Kind::kLoop:
      return value.loop().length() > 0;
    default:
      return true;
  }
}

bool identical(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kNone:
      return true;
    case Kind::kBool:
      return a.as_bool() == b.as_bool();
    case Kind::kInt:
      return a.as_int() == b.as_int();
    default:
      return a.identity() != nullptr && a.identity() == b.identity();
  }
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
      return true;
    case Kind::kNone:
      return true;
    case Kind::kBigInt:
      return a.digits() == b.digits();
    case Kind::kString:
      return a.str() == b.str();
    case Kind::kList:
    case Kind::kTuple:
      return equal_sequences(a.items(), b.items());
    case Kind::kDict:
      return equal_dicts(*a.dict(), *b.dict());
    case Kind::kRange:
      return equal_ranges(a.range(), b.range());
    case Kind::kView:
      return a.view().which == b.view().which && a.view().which != View::Which::kValues &&
             equal_dicts(*a.view().dict, *b.view().dict);
    default:
      return identical(a, b);
  }
}

bool less(const Value& a, const Value& b, const char* symbol) { return ordered(a, b, symbol, false); }
bool less_equal(const Value& a, const Value& b, const char* symbol) { return ordered(a, b, symbol, true); }

bool contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      type_error(cat("'in <string>' requires string as left operand, not ", type_name(item)));
    }
    return container.str().find(item.str()) != std::string::npos;
  }
  if (container.is(Kind::kDict)) return container.dict()->find(item) != nullptr;
  if (container.is(Kind::kRange)) return in_range(container.range(), item);
  if (container.is(Kind::kView)) return in_view(container.view(), item);
  if (!iterable(container)) type_error(cat("argument of type '", type_name(container), "' is not iterable"));
  Iterator items(container);
  while (const auto next = items.next()) {
    if (identical(*next, item) || equal(*next, item)) return true;
  }
  return false;
}

size_t hash_of_text(std::string_view text) { return std::hash<std::string_view>{}(text); }

size_t hash_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
      return 0x5bd1e995;
    case Kind::kUndefined:
      return 0x1b873593;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return std::hash<double>{}(value.as_float());
    case Kind::kBigInt:
      return hash_of_text(value.digits());
    case Kind::kString:
      return hash_of_text(value.str());
    case Kind::kTuple: {
      size_t hash = 0x345678;
      for (const Value& item : value.items()) hash = mixed(hash, hash_of(item));
      return hash;
    }
    case Kind::kRange:
      return static_cast<size_t>(value.range().size());
    case Kind::kList:
    case Kind::kDict:
    case Kind::kView:
      type_error(cat("unhashable type: '", type_name(value), "'"));
    default:
      return std::hash<const void*>{}(value.identity());
  }
}

}  // namespace hotswap::jinja
