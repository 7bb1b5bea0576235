#include "hotswap/chat/jinja/value.h"

#include <algorithm>

#include "hotswap/chat/jinja/template_error.h"

namespace hotswap::jinja {
int deeper(int depth) {
  const Budget* budget = Budget::current();
  const int limit = budget != nullptr ? budget->limits().value_depth : Limits{}.value_depth;
  if (depth + 1 > limit) fail(Fault::kLimit, cat("values nested more than ", limit, " deep"));
  return depth + 1;
}

namespace {

int depth_around(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return deeper(depth);
}

}  // namespace

Sequence::Sequence(std::vector<Value> values, bool is_group)
    : items(std::move(values)),
      depth(depth_around(items)),
      group(is_group),
      counted(items.size() * sizeof(Value) + sizeof(Sequence)) {}

int64_t Range::size() const {
  const auto count = [](int64_t low, int64_t high, uint64_t step) -> int64_t {
    if (low >= high) return 0;
    const uint64_t span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) - 1;
    return static_cast<int64_t>(std::min<uint64_t>(span / step, INT64_MAX - 1)) + 1;
  };
  return step > 0 ? count(start, stop, static_cast<uint64_t>(step)) : count(stop, start, -static_cast<uint64_t>(step));
}

Value Value::undefined(std::string message, bool unsafe) {
  return Value(Data(std::make_shared<const Undefined>(Undefined{std::move(message), unsafe})));
}

Value Value::big_integer(std::string digits) {
  return Value(Data(std::in_place_index<6>, std::make_shared<const std::string>(std::move(digits))));
}

Value Value::string(std::string bytes, bool markup) {
  if (const Budget* budget = Budget::current()) budget->check_string(bytes.size());
  return Value(Data(std::in_place_index<7>, std::make_shared<const Text>(std::move(bytes), markup)));
}

Value Value::list(std::vector<Value> items) {
  return Value(Data(std::in_place_index<8>, std::make_shared<const Sequence>(std::move(items))));
}

Value Value::tuple(std::vector<Value> items, bool group) {
  return Value(Data(std::in_place_index<9>, std::make_shared<const Sequence>(std::move(items), group)));
}

Value Value::dict(Dict dict) {
  return Value(Data(std::in_place_index<10>, std::make_shared<const Dict>(std::move(dict))));
}

Value Value::view(View view) {
  return Value(Data(std::in_place_index<11>, std::make_shared<const View>(std::move(view))));
}

Value Value::range(Range range) { return Value(Data(std::in_place_index<12>, std::make_shared<const Range>(range))); }

Value Value::generator(const char* name, std::function<std::optional<Value>()> next) {
  return Value(Data(std::in_place_index<13>, std::make_shared<Generator>(Generator{std::move(next), name})));
}

Value Value::new_namespace(Dict attributes) {
  return Value(Data(std::in_place_index<14>, std::make_shared<Dict>(std::move(attributes))));
}

Value Value::loop(std::shared_ptr<Loop> loop) { return Value(Data(std::in_place_index<15>, std::move(loop))); }

Value Value::callable(Callable callable) {
  return Value(Data(std::in_place_index<16>, std::make_shared<const Callable>(std::move(callable))));
}

Value Value::from_json(const nlohmann::ordered_json& json) {
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::null:
      return none();
    case Type::boolean:
      return boolean(json.get<bool>());
    case Type::number_integer:
      return integer(json.get<int64_t>());
    case Type::number_unsigned: {
      const auto number = json.get<uint64_t>();
      return number > INT64_MAX ? big_integer(std::to_string(number)) : integer(static_cast<int64_t>(number));
    }
    case Type::number_float:
      return real(json.get<double>());
    case Type::string:
      return string(json.get_ref<const std::string&>());
    case Type::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(item));
      return list(std::move(items));
    }
    case Type::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) dict.set(string(key), from_json(item));
      return Value::dict(std::move(dict));
    }
    default:
      type_error("a value that JSON does not have");
  }
}

const Sequence& Value::sequence() const { return is(Kind::kList) ? *std::get<8>(data_) : *std::get<9>(data_); }
const std::vector<Value>& Value::items() const { return sequence().items; }

const void* Value::identity() const {
  return std::visit(
      [](const auto& held) -> const void* {
        if constexpr (requires { held.get(); }) {
          return held.get();
        } else {
          return nullptr;
        }
      },
      data_);
}

int Value::depth() const {
  if (is(Kind::kList) || is(Kind::kTuple)) return sequence().depth;
  if (is(Kind::kDict)) return dict()->depth;
  if (is(Kind::kView)) return view().dict->depth + 1;
  return 0;
}

void fail_undefined(const Value& undefined) {
  const Undefined& info = undefined.undefined_info();
  fail(info.unsafe ? Fault::kSecurity : Fault::kUndefined, info.message);
}

}  // namespace hotswap::jinja
