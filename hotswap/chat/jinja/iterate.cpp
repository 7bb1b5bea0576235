#include "hotswap/chat/jinja/iterate.h"

#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"
#include "hotswap/chat/jinja/text.h"

namespace hotswap::jinja {
namespace {

Value view_item(const View& view, size_t at) {
  const auto& [key, value] = view.dict->entries[at];
  if (view.which == View::Which::kKeys) return key;
  return view.which == View::Which::kValues ? value : Value::tuple({key, value});
}

std::optional<int64_t> slice_bound(const Value& bound) {
  if (bound.is(Kind::kNone)) return std::nullopt;
  if (bound.is_integer()) return bound.as_int();
  type_error("slice indices must be integers or None or have an __index__ method");
}

}  // namespace

bool iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kView:
    case Kind::kRange:
    case Kind::kGenerator:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

Iterator::Iterator(Value value) : value_(std::move(value)) {
  if (!iterable(value_)) type_error(cat("'", type_name(value_), "' object is not iterable"));
}

std::optional<Value> Iterator::next() {
  const auto end = [&](size_t size) { return at_ >= size; };
  switch (value_.kind()) {
    case Kind::kString: {
      const std::string& text = value_.str();
      if (end(text.size())) return std::nullopt;
      const size_t size = tokenizers::code_point_at(text, at_).size;
      at_ += size;
      return Value::string(text.substr(at_ - size, size), value_.text().markup);
    }
    case Kind::kList:
    case Kind::kTuple:
      return end(value_.items().size()) ? std::nullopt : std::optional(value_.items()[at_++]);
    case Kind::kDict:
      return end(value_.dict()->size()) ? std::nullopt : std::optional(value_.dict()->entries[at_++].first);
    case Kind::kView:
      return end(value_.view().dict->size()) ? std::nullopt : std::optional(view_item(value_.view(), at_++));
    case Kind::kRange:
      return end(static_cast<size_t>(value_.range().size()))
                 ? std::nullopt
                 : std::optional(Value::integer(value_.range().at(static_cast<int64_t>(at_++))));
    case Kind::kGenerator:
      return value_.generator().next();
    case Kind::kLoop: {
      const auto item = value_.loop().advance();
      return item ? std::optional(Value::tuple({*item, value_})) : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

std::optional<int64_t> length_if_sized(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return static_cast<int64_t>(count_characters(value.str()));
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict()->size());
    case Kind::kView:
      return static_cast<int64_t>(value.view().dict->size());
    case Kind::kRange:
      return value.range().size();
    case Kind::kLoop:
      return value.loop().length();
    default:
      return std::nullopt;
  }
}

int64_t length_of(const Value& value) {
  const auto length = length_if_sized(value);
  if (!length) type_error(cat("object of type '", type_name(value), "' has no len()"));
  return *length;
}

std::vector<Value> to_vector(const Value& value) {
  if (value.is(Kind::kList) || value.is(Kind::kTuple)) return value.items();
  std::vector<Value> items;
  Iterator iterator(value);
  while (auto item = iterator.next()) {
    items.push_back(std::move(*item));
    if (items.size() % 4096 == 0) {  // an endless generator must meet the budget before the list is made
      const Counted so_far(items.size() * sizeof(Value));
    }
  }
  return items;
}

Range slice_range(const Value& start, const Value& stop, const Value& step, int64_t length) {
  const int64_t by = slice_bound(step).value_or(1);
  if (by == 0) value_error("slice step cannot be zero");
  const auto clamp = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound) return otherwise;
    int64_t at = *bound < 0 ? (*bound < -length ? -1 : *bound + length) : *bound;
    if (*bound < 0 && at < 0) at = by < 0 ? -1 : 0;
    return by < 0 ? std::min(at, length - 1) : std::min(at, length);
  };
  return {clamp(slice_bound(start), by < 0 ? length - 1 : 0), clamp(slice_bound(stop), by < 0 ? -1 : length), by};
}

bool sliceable(const Value& value) {
  return value.is_string() || value.is(Kind::kList) || value.is(Kind::kTuple) || value.is(Kind::kRange) ||
         value.is_undefined();
}

Value slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
  switch (value.kind()) {
    case Kind::kUndefined:
      fail_undefined(value);
    case Kind::kString: {
      const auto characters = decode(value.str());
      const Range range = slice_range(start, stop, step, static_cast<int64_t>(characters.size()));
      std::u32string taken;
      for (int64_t i = 0; i < range.size(); ++i) taken += characters[static_cast<size_t>(range.at(i))];
      return Value::string(encode(taken), value.text().markup);
    }
    case Kind::kList:
    case Kind::kTuple: {
      const auto& items = value.items();
      const Range range = slice_range(start, stop, step, static_cast<int64_t>(items.size()));
      std::vector<Value> taken;
      for (int64_t i = 0; i < range.size(); ++i) taken.push_back(items[static_cast<size_t>(range.at(i))]);
      return value.is(Kind::kList) ? Value::list(std::move(taken)) : Value::tuple(std::move(taken));
    }
    case Kind::kRange: {
      const Range& from = value.range();
      const Range at = slice_range(start, stop, step, from.size());
      return Value::range({from.at(at.start), from.at(at.stop), from.step * at.step});
    }
    case Kind::kDict:
      type_error("unhashable type: 'slice'");
    default:
      type_error(cat("'", type_name(value), "' object is not subscriptable"));
  }
}

}  // namespace hotswap::jinja
