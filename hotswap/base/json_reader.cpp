#include "hotswap/base/json_reader.h"

#include <cmath>
#include <unordered_map>
#include <utility>

#include "hotswap/base/error.h"
#include "hotswap/base/json_fault.h"

namespace hotswap {
namespace {

using Node = nlohmann::ordered_json;

class Builder : public nlohmann::json_sax<Node> {
 public:
  Builder(std::string_view text, const JsonLimits& limits, JsonDocument& out)
      : text_(text), limits_(limits), out_(out) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(int64_t value) override { return put(value); }
  bool number_unsigned(uint64_t value) override {
    const bool fits = value <= static_cast<uint64_t>(INT64_MAX) || !limits_.exact_values;
    return fits ? put(value) : fail(JsonFault::kNumber, "a number beyond 64 bits");
  }
  bool number_float(double value, const std::string& text) override {
    if (limits_.exact_values && text.find_first_of(".eE") == std::string::npos)
      return fail(JsonFault::kNumber, "a number beyond 64 bits");
    if (limits_.exact_values && !std::isfinite(value)) return fail(JsonFault::kNumber, "a number that is not finite");
    return put(value);
  }
  bool string(std::string& value) override { return put(std::move(value)); }
  bool binary(Node::binary_t& /*value*/) override { return false; }  // no text has one
  bool start_object(size_t /*size*/) override { return begin(Node::object()) && (keys_.emplace_back(), true); }
  bool end_object() override { return keys_.pop_back(), end(); }
  bool start_array(size_t /*size*/) override { return begin(Node::array()); }
  bool end_array() override { return end(); }
  bool key(std::string& value) override {
    const auto [found, is_new] = keys_.back().try_emplace(value, keys_.back().size());
    if (!is_new && !limits_.equal_keys) return fail(JsonFault::kEqualKeys, cat("key '", value, "' twice"));
    if (is_new) members_of(*open_.back()).emplace_back(std::move(value), nullptr);
    member_ = found->second;
    return true;
  }
  bool parse_error(size_t /*byte*/, const std::string& /*token*/, const nlohmann::detail::exception&) override {
    return fail(JsonFault::kSyntax, json_fault(text_));
  }

 private:
  bool fail(JsonFault fault, std::string what) {
    out_.fault = fault;
    out_.what = std::move(what);
    return false;
  }
  // Where the value is now; lists move theirs, but the open ones are the last of theirs.
  Node* add(Node value) {
    if (open_.empty()) return &(out_.root = std::move(value));
    Node& parent = *open_.back();
    if (parent.is_array()) return &parent.get_ref<Node::array_t&>().emplace_back(std::move(value));
    return &(members_of(parent)[member_].second = std::move(value));
  }
  bool put(Node value) { return add(std::move(value)), true; }
  // As a list: emplace() of an ordered object would look for the key.
  static Node::object_t::Container& members_of(Node& object) { return object.get_ref<Node::object_t&>(); }
  bool begin(Node container) {
    if (static_cast<int64_t>(open_.size()) >= limits_.nesting)
      return fail(JsonFault::kNesting, cat("JSON nested deeper than ", limits_.nesting));
    open_.push_back(add(std::move(container)));
    return true;
  }
  bool end() { return open_.pop_back(), true; }

  std::string_view text_;
  const JsonLimits& limits_;
  JsonDocument& out_;
  std::vector<Node*> open_;                                    // from the root to where values go
  std::vector<std::unordered_map<std::string, size_t>> keys_;  // of each open object, and where its value is
  size_t member_ = 0;                                          // of the innermost one that is open: the next value's
};

}  // namespace

JsonDocument read_json(std::string_view text, const JsonLimits& limits) {
  JsonDocument document;
  Builder builder(text, limits, document);
  if (!Node::sax_parse(text, &builder) && document.fault == JsonFault::kNone) document.fault = JsonFault::kSyntax;
  return document;
}

}  // namespace hotswap
