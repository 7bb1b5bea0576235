#include "hotswap/base/json.h"

#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/json_reader.h"
#include "hotswap/base/toml.h"

namespace hotswap {
namespace {

using Node = nlohmann::ordered_json;

const char* type_of(const Node& node) {
  if (node.is_number_integer()) return "an integer";
  if (node.is_number()) return "a number";
  if (node.is_null()) return "null";
  if (node.is_object()) return "an object";
  if (node.is_array()) return "an array";
  return node.is_string() ? "a string" : "a boolean";
}

std::string shown(const Node& node) {
  std::string text = node.dump(-1, ' ', false, Node::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return cat(type_of(node), " (", text, ")");
}

[[noreturn]] void wrong_type(const char* expected, const Node& node, const std::string& where) {
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(expected, " at ", where),
               .got = shown(node),
               .next = cat("change the value at ", where, " to ", expected)});
}

}  // namespace

Json Json::parse(std::string_view text, std::string where) {
  JsonDocument document = read_json(text, {.nesting = kMaxNesting});
  switch (document.fault) {
    case JsonFault::kNone:
      return of(std::move(document.root), std::move(where));
    case JsonFault::kNesting:
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("JSON nested at most ", kMaxNesting, " deep in ", where),
                   .got = "deeper nesting",
                   .next = "make the file flatter; no file of a model or a kernel is nested so deep"});
    case JsonFault::kEqualKeys:
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("each key once in ", where),
                   .got = document.what,
                   .next = "keep one of the two: readers differ in which they take"});
    default:
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("valid JSON in ", where),
                   .got = document.what,
                   .next = "correct the text there, or fetch the file again"});
  }
}

Json Json::of(Node document, std::string where) {
  auto root = std::make_shared<const Node>(std::move(document));
  const Node* node = root.get();
  return Json(std::move(root), node, std::move(where));
}

Json Json::read(const std::filesystem::path& file) { return parse(read_file(file), file.string()); }

Json Json::read_toml(const std::filesystem::path& file) {
  return of(parse_toml(read_file(file), file.string()), file.string());
}

Json Json::step(const Node& node, std::string_view name) const {
  // The root's `where` is the document's name, everything below is "document: a.b.c"; of flags, "the flag --a.b.c".
  const bool is_flag = node_ == root_.get() && where_.ends_with("--");
  std::string where = where_ + (is_flag ? "" : node_ == root_.get() ? ": " : ".");
  return Json(root_, &node, where.append(name));
}

std::optional<Json> Json::find(std::string_view key) const {
  if (!node_->is_object()) wrong_type("an object", *node_, where_);
  const auto found = node_->find(std::string(key));
  if (found == node_->end() || found->is_null()) return std::nullopt;
  return step(*found, key);
}

bool Json::has(std::string_view key) const { return find(key).has_value(); }

Json Json::child(std::string_view key) const {
  auto found = find(key);
  if (found) return *found;
  std::vector<std::string> present;
  for (const auto& entry : node_->items()) {
    if (present.size() == 12) {
      present.emplace_back("...");
      break;
    }
    present.push_back(entry.key());
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("key '", key, "' in ", where_),
               .got = cat("keys: ", join(present)),
               .next = "add the key"});
}

std::vector<std::pair<std::string, Json>> Json::items() const {
  if (!node_->is_object()) wrong_type("an object", *node_, where_);
  std::vector<std::pair<std::string, Json>> result;
  for (const auto& entry : node_->items()) result.emplace_back(entry.key(), step(entry.value(), entry.key()));
  return result;
}

std::vector<Json> Json::elements() const {
  if (!node_->is_array()) wrong_type("an array", *node_, where_);
  std::vector<Json> result;
  result.reserve(node_->size());
  for (size_t i = 0; i < node_->size(); ++i) result.push_back(step((*node_)[i], std::to_string(i)));
  return result;
}

void Json::only(std::initializer_list<std::string_view> keys) const {
  if (!node_->is_object()) wrong_type("an object", *node_, where_);
  for (const auto& entry : node_->items()) {
    if (std::find(keys.begin(), keys.end(), entry.key()) == keys.end()) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("only the keys ", join(keys), " in ", where_),
                   .got = cat("key '", entry.key(), "'"),
                   .next = "remove it or correct its name"});
    }
  }
}

template <>
bool Json::as<bool>() const {
  if (!node_->is_boolean()) wrong_type("a boolean", *node_, where_);
  return node_->get<bool>();
}

template <>
int64_t Json::as<int64_t>() const {
  if (node_->is_number_unsigned() && node_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    wrong_type("an integer below 2^63", *node_, where_);
  }
  if (node_->is_number_integer()) return node_->get<int64_t>();
  // Python writes whole numbers as 1e4 or 10000.0 in some configs; those are integers all the same.
  if (node_->is_number_float()) {
    const double value = node_->get<double>();
    if (std::trunc(value) == value && std::abs(value) < 9e15) return static_cast<int64_t>(value);
  }
  wrong_type("an integer", *node_, where_);
}

template <>
double Json::as<double>() const {
  if (!node_->is_number()) wrong_type("a number", *node_, where_);
  return node_->get<double>();
}

template <>
std::string Json::as<std::string>() const {
  if (!node_->is_string()) wrong_type("a string", *node_, where_);
  return node_->get<std::string>();
}

namespace {
template <typename T>
std::vector<T> list_of(const Json& json) {
  std::vector<T> result;
  for (const auto& element : json.elements()) result.push_back(element.as<T>());
  return result;
}
}  // namespace

template <>
std::vector<bool> Json::as<std::vector<bool>>() const {
  return list_of<bool>(*this);
}
// A prompt is thousands of them: only what is no plain integer is looked at as an element with a name.
template <>
std::vector<int64_t> Json::as<std::vector<int64_t>>() const {
  if (!node_->is_array()) wrong_type("an array", *node_, where_);
  std::vector<int64_t> result;
  result.reserve(node_->size());
  for (size_t i = 0; i < node_->size(); ++i) {
    const Node& node = (*node_)[i];
    const bool is_plain = node.is_number_integer() && !node.is_number_unsigned();
    const bool is_small = node.is_number_unsigned() && node.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
    result.push_back(is_plain || is_small ? node.get<int64_t>() : step(node, std::to_string(i)).as<int64_t>());
  }
  return result;
}
template <>
std::vector<double> Json::as<std::vector<double>>() const {
  return list_of<double>(*this);
}
template <>
std::vector<std::string> Json::as<std::vector<std::string>>() const {
  return list_of<std::string>(*this);
}

}  // namespace hotswap
