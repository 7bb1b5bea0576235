#include "hotswap/chat/jinja/attributes.h"

#include <algorithm>
#include <cmath>

#include "hotswap/chat/jinja/compare.h"
#include "hotswap/chat/jinja/iterate.h"
#include "hotswap/chat/jinja/parameters.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {
namespace {

template <size_t size>
bool is_one_of(const std::string& name, const char* const (&names)[size]) {
  return std::any_of(std::begin(names), std::end(names), [&](const char* one) { return name == one; });
}

Value unsafe(const Value& object, const std::string& name) {
  return Value::undefined(
      cat("access to attribute ", repr_of_text(name), " of '", type_name(object), "' object is unsafe."), true);
}

template <typename Call>
Value method(const Value& object, const std::string& name, Call call) {
  return Value::callable(
      {.call = [object, call](Interpreter&, Arguments& arguments) -> Value { return call(object, arguments); },
       .name = cat("built-in method ", name, " of ", type_name(object), " object")});
}

Value dict_get(const Value& object, const Arguments& arguments) {
  const Parameters p("get", arguments, {"key", "default"}, 1);
  const Value* found = object.dict()->find(p.at(0));
  return found != nullptr ? *found : p.get(1, Value::none());
}

std::optional<Value> dict_attribute(const Value& object, const std::string& name) {
  static constexpr const char* kChanging[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (is_one_of(name, kChanging)) return unsafe(object, name);
  if (name == "get") return method(object, name, dict_get);
  const auto view = [&](View::Which which) {
    return method(object, name, [which](const Value& self, const Arguments& arguments) {
      const Parameters none("dict's view", arguments, {});
      return Value::view({which, self.dict()});
    });
  };
  if (name == "keys") return view(View::Which::kKeys);
  if (name == "values") return view(View::Which::kValues);
  if (name == "items") return view(View::Which::kItems);
  if (name == "copy") return method(object, name, [](const Value& self, const Arguments&) { return self; });
  return std::nullopt;
}

Value index_of(const Value& object, const Arguments& arguments) {
  const Parameters p("index", arguments, {"value", "start", "stop"}, 1);
  const auto& items = object.items();
  const Range range =
      slice_range(p.get(1, Value::none()), p.get(2, Value::none()), Value::none(), static_cast<int64_t>(items.size()));
  for (int64_t i = range.start; i < range.stop; ++i) {
    if (equal(items[static_cast<size_t>(i)], p.at(0))) return Value::integer(i);
  }
  value_error(cat(repr(p.at(0)), " is not in ", type_name(object)));
}

Value count_in(const Value& object, const Arguments& arguments) {
  const Parameters p("count", arguments, {"value"}, 1);
  const auto& items = object.items();
  return Value::integer(std::count_if(items.begin(), items.end(), [&](const Value& v) { return equal(v, p.at(0)); }));
}

std::optional<Value> sequence_attribute(const Value& object, const std::string& name) {
  static constexpr const char* kChanging[] = {"append", "clear", "pop",    "reverse",
                                              "insert", "sort",  "extend", "remove"};
  if (object.is(Kind::kList) && is_one_of(name, kChanging)) return unsafe(object, name);
  if (object.sequence().group && name == "grouper") return object.items()[0];
  if (object.sequence().group && name == "list") return object.items()[1];
  if (name == "index") return method(object, name, index_of);
  if (name == "count") return method(object, name, count_in);
  if (object.is(Kind::kList) && name == "copy") {
    return method(object, name, [](const Value& self, const Arguments&) { return Value::list(self.items()); });
  }
  return std::nullopt;
}

std::optional<Value> number_attribute(const Value& object, const std::string& name) {
  const bool whole = object.is_integer();
  const Value self = whole ? Value::integer(object.as_int()) : object;
  const auto constant = [&](Value value) {
    return method(object, name, [value](const Value&, const Arguments& arguments) {
      const Parameters none("a number's method", arguments, {});
      return value;
    });
  };
  if (name == "real") return self;
  if (name == "imag") return whole ? Value::integer(0) : Value::real(0);
  if (name == "conjugate") return constant(self);
  if (whole) {
    const uint64_t magnitude = object.as_int() < 0 ? -static_cast<uint64_t>(object.as_int()) : object.as_int();
    if (name == "numerator") return self;
    if (name == "denominator") return Value::integer(1);
    if (name == "bit_length") return constant(Value::integer(64 - __builtin_clzll(magnitude | 1) - (magnitude == 0)));
    if (name == "bit_count") return constant(Value::integer(__builtin_popcountll(magnitude)));
  } else if (name == "is_integer") {
    const double value = object.as_float();
    return constant(Value::boolean(std::isfinite(value) && value == std::floor(value)));
  }
  return std::nullopt;
}

// Where `value` is in the range; -1: nowhere. Without a loop: a template may call it millions of times.
int64_t find_in_range(const Value& object, const Value& value) {
  if (!value.is_number()) return -1;
  const Range& range = object.range();
  const double steps = (value.as_float() - static_cast<double>(range.start)) / static_cast<double>(range.step);
  if (!(steps >= 0 && steps < static_cast<double>(range.size()))) return -1;  // NaN is nowhere
  const auto index = static_cast<int64_t>(steps);
  return equal(Value::integer(range.at(index)), value) ? index : -1;
}

Value range_index(const Value& object, const Arguments& arguments) {
  const Parameters p("index", arguments, {"value"}, 1);
  const int64_t found = find_in_range(object, p.at(0));
  if (found < 0) value_error(cat(repr(p.at(0)), " is not in range"));
  return Value::integer(found);
}

Value range_count(const Value& object, const Arguments& arguments) {
  const Parameters p("count", arguments, {"value"}, 1);
  return Value::integer(find_in_range(object, p.at(0)) < 0 ? 0 : 1);
}

std::optional<Value> range_attribute(const Value& object, const std::string& name) {
  if (name == "index") return method(object, name, range_index);
  if (name == "count") return method(object, name, range_count);
  if (name == "start") return Value::integer(object.range().start);
  if (name == "stop") return Value::integer(object.range().stop);
  if (name == "step") return Value::integer(object.range().step);
  return std::nullopt;
}

std::optional<Value> item_at(const Value& object, const Value& key) {
  if (object.is(Kind::kDict)) {
    if (key.is(Kind::kList) || key.is(Kind::kDict) || key.is(Kind::kView)) return std::nullopt;  // unhashable
    const Value* found = object.dict()->find(key);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  if (object.is(Kind::kGenerator) || !key.is_integer()) return std::nullopt;
  const bool indexed =
      object.is_string() || object.is(Kind::kList) || object.is(Kind::kTuple) || object.is(Kind::kRange);
  if (!indexed) return std::nullopt;
  const int64_t length = length_of(object);
  const int64_t at = key.as_int() < 0 ? key.as_int() + length : key.as_int();
  if (at < 0 || at >= length) return std::nullopt;
  if (object.is(Kind::kRange)) return Value::integer(object.range().at(at));
  if (!object.is_string()) return object.items()[static_cast<size_t>(at)];
  return slice(object, Value::integer(at), Value::integer(at + 1), Value::none());
}

}  // namespace

Value undefined_attribute(const Value& object, const Value& name) {
  const std::string type = type_name(object);
  return Value::undefined(name.is_string() ? cat("'", type, " object' has no attribute ", repr(name))
                                           : cat(type, " object has no element ", repr(name)));
}

std::optional<Value> find_attribute(const Value& object, const std::string& name) {
  if (name.starts_with("__")) {
    static constexpr const char* kDunders[] = {
        "__class__",   "__doc__",  "__init__",   "__dict__",       "__eq__",      "__hash__", "__len__", "__iter__",
        "__getitem__", "__call__", "__module__", "__subclasses__", "__globals__", "__str__",  "__repr__"};
    return is_one_of(name, kDunders) ? std::optional(unsafe(object, name)) : std::nullopt;
  }
  std::optional<Value> found;
  switch (object.kind()) {
    case Kind::kString:
      found = string_method(object, name);
      break;
    case Kind::kDict:
      found = dict_attribute(object, name);
      break;
    case Kind::kList:
    case Kind::kTuple:
      found = sequence_attribute(object, name);
      break;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      found = number_attribute(object, name);
      break;
    case Kind::kRange:
      found = range_attribute(object, name);
      break;
    case Kind::kLoop:
      found = object.loop().attribute(name);
      break;
    case Kind::kNamespace: {
      const Value* value = object.attributes().find(name);
      if (value != nullptr) found = *value;
      break;
    }
    case Kind::kCallable:
      if (object.callable().attribute) found = object.callable().attribute(name);
      break;
    default:
      break;
  }
  if (found && name.starts_with("_")) return unsafe(object, name);
  return found;
}

Value get_attribute(Interpreter&, const Value& object, const std::string& name) {
  if (object.is_undefined()) {  // Python's object has these, and the sandbox hides them
    static constexpr const char* kOwn[] = {"__class__", "__doc__", "__init__", "__eq__",
                                           "__hash__",  "__len__", "__iter__"};
    if (is_one_of(name, kOwn)) return unsafe(object, name);
    fail_undefined(object);
  }
  if (auto found = find_attribute(object, name)) return *found;
  if (auto found = item_at(object, Value::string(name))) return *found;
  return undefined_attribute(object, Value::string(name));
}

Value get_item(Interpreter&, const Value& object, const Value& key) {
  if (object.is_undefined()) fail_undefined(object);
  if (auto found = item_at(object, key)) return *found;
  if (key.is_string()) {
    if (auto found = find_attribute(object, key.str())) return *found;
  }
  return undefined_attribute(object, key);
}

}  // namespace hotswap::jinja
