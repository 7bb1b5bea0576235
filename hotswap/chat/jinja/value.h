// A value of a template, with the types and the rules of Python. Values are immutable, but for Namespace, Loop and what
// iterates; copies share their contents.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "hotswap/chat/jinja/limits.h"

namespace hotswap::jinja {

class Value;
class Interpreter;
class Loop;

enum class Kind : uint8_t {
  kMissing,  // a variable that was never set; no expression has this value
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kBigInt,  // an integer of the context beyond 64 bits: it can be printed and compared for equality
  kString,
  kList,
  kTuple,
  kDict,
  kView,
  kRange,
  kGenerator,
  kNamespace,
  kLoop,
  kCallable,
};

struct Undefined {
  std::string message;
  bool unsafe = false;  // refused by the sandbox: using it is a security error
};

struct Text {
  Text(std::string text, bool is_markup) : bytes(std::move(text)), markup(is_markup), counted(bytes.size() + 64) {}
  std::string bytes;  // UTF-8
  bool markup;        // markupsafe.Markup: what is added to it is escaped
  Counted counted;
};

struct Sequence {
  explicit Sequence(std::vector<Value> values, bool is_group = false);
  std::vector<Value> items;
  int depth;
  bool group;  // a tuple of groupby, with the attributes grouper and list
  Counted counted;
};

struct Dict;
using DictPtr = std::shared_ptr<const Dict>;

// keys(), values() or items() of a dict.
struct View {
  enum class Which : uint8_t { kKeys, kValues, kItems } which;
  DictPtr dict;
};

struct Range {
  int64_t start, stop, step;
  int64_t size() const;
  int64_t at(int64_t i) const { return start + i * step; }
};

// A one-pass iterator: what Python calls a generator.
struct Generator {
  std::function<std::optional<Value>()> next;
  const char* name;  // in its repr
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Callable {
  std::function<Value(Interpreter&, Arguments&)> call;
  std::string name;  // in its repr
  bool unsafe = false;
  std::function<std::optional<Value>(std::string_view)> attribute = nullptr;  // of macros, cyclers, joiners
};

class Value {
 public:
  Value() = default;  // kMissing
  static Value undefined(std::string message, bool unsafe = false);
  static Value none() { return Value(Data(std::in_place_index<2>)); }
  static Value boolean(bool value) { return Value(Data(std::in_place_index<3>, value)); }
  static Value integer(int64_t value) { return Value(Data(std::in_place_index<4>, value)); }
  static Value real(double value) { return Value(Data(std::in_place_index<5>, value)); }
  static Value big_integer(std::string digits);
  static Value string(std::string bytes, bool markup = false);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items, bool group = false);
  static Value dict(Dict dict);
  static Value view(View view);
  static Value range(Range range);
  static Value generator(const char* name, std::function<std::optional<Value>()> next);
  static Value new_namespace(Dict attributes);
  static Value loop(std::shared_ptr<Loop> loop);
  static Value callable(Callable callable);
  // Objects become dicts, arrays lists.
  static Value from_json(const nlohmann::ordered_json& json);

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool missing() const { return is(Kind::kMissing); }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_string() const { return is(Kind::kString); }
  bool is_integer() const { return is(Kind::kInt) || is(Kind::kBool); }  // bool is an int, as in Python
  bool is_number() const { return is_integer() || is(Kind::kFloat); }

  bool as_bool() const { return std::get<3>(data_); }
  int64_t as_int() const { return is(Kind::kBool) ? std::get<3>(data_) : std::get<4>(data_); }
  double as_float() const { return is(Kind::kFloat) ? std::get<5>(data_) : static_cast<double>(as_int()); }
  const std::string& digits() const { return *std::get<6>(data_); }
  const Text& text() const { return *std::get<7>(data_); }
  const std::string& str() const { return text().bytes; }
  const std::vector<Value>& items() const;  // of a list or a tuple
  const Sequence& sequence() const;         // likewise
  const DictPtr& dict() const { return std::get<10>(data_); }
  const View& view() const { return *std::get<11>(data_); }
  const Range& range() const { return *std::get<12>(data_); }
  Generator& generator() const { return *std::get<13>(data_); }
  Dict& attributes() const { return *std::get<14>(data_); }  // of a namespace
  Loop& loop() const { return *std::get<15>(data_); }
  const Callable& callable() const { return *std::get<16>(data_); }
  const Undefined& undefined_info() const { return *std::get<1>(data_); }
  const void* identity() const;  // the object's address; null for what has none

  int depth() const;  // 0 for what holds no other values

 private:
  using Data = std::variant<std::monostate, std::shared_ptr<const Undefined>, std::nullptr_t, bool, int64_t, double,
                            std::shared_ptr<const std::string>, std::shared_ptr<const Text>,
                            std::shared_ptr<const Sequence>, std::shared_ptr<const Sequence>, DictPtr,
                            std::shared_ptr<const View>, std::shared_ptr<const Range>, std::shared_ptr<Generator>,
                            std::shared_ptr<Dict>, std::shared_ptr<Loop>, std::shared_ptr<const Callable>>;
  explicit Value(Data data) : data_(std::move(data)) {}
  Data data_;
};

// The variable `loop` of a for statement (loop.h). Iterating it gives the loop's next items.
class Loop {
 public:
  virtual ~Loop() = default;
  virtual std::optional<Value> advance() = 0;  // the next item
  virtual int64_t length() = 0;                // of a generator: reads all of it
  virtual int64_t index0() const = 0;
  virtual std::optional<Value> attribute(std::string_view name) = 0;
  virtual Value call(const Value& items) = 0;  // of a recursive loop: its body over other items
};

// In order of insertion; a key that comes again keeps its place and takes the new value.
struct Dict {
  Dict() = default;
  explicit Dict(const std::vector<std::pair<Value, Value>>& pairs);
  void set(const Value& key, Value value);  // a type error where the key cannot be hashed
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  size_t size() const { return entries.size(); }

  std::vector<std::pair<Value, Value>> entries;
  int depth = 1;

 private:
  size_t position(const Value& key, size_t hash) const;  // size() where it is not there
  std::unordered_multimap<size_t, size_t> places_;       // hash -> position
  std::shared_ptr<Counted> counted_;
  size_t counted_entries_ = 0;
};

[[noreturn]] void fail_undefined(const Value& undefined);
int deeper(int depth);  // one more than the depth of what a value holds; a limit error beyond Limits::value_depth

}  // namespace hotswap::jinja
