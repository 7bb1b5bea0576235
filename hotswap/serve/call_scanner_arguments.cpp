// The forms of CallScanner whose arguments come one whole argument after another: <parameter=key>, <arg_key>, and
// Python's f(key=value).
#include <cctype>

#include "hotswap/serve/call_scanner.h"
#include "hotswap/serve/message_part.h"
#include "hotswap/serve/python_literal.h"
#include "hotswap/serve/request_body.h"

namespace hotswap::serve {
namespace {

constexpr size_t kLongestName = 1024;  // of a function or a key, with the tags around it

// As a JSON string.
std::string json_string(std::string_view text) {
  using Json = nlohmann::ordered_json;
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongestName && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

}  // namespace

void CallScanner::add_argument(const std::string& json) {
  arguments_ += (has_arguments_ ? ", " : "{") + json_string(key_) + ": " + json;
  has_arguments_ = true;
  head_.clear();
}

void CallScanner::end_arguments() {
  arguments_ += has_arguments_ ? "}" : "{}";
  state_ = State::kDone;
}

// A value that is written without quotes: JSON where the parameter is no text, else a text.
std::string CallScanner::json_of(std::string_view text) const {
  const auto tool = typed_->find(name_);
  const bool typed = tool != typed_->end() && tool->second.contains(key_);
  std::string written(trimmed(text));
  return typed && json_problem(written).empty() ? written : json_string(text);
}

void CallScanner::parameters(char c) {
  constexpr std::string_view kFunction = "<function=", kParameter = "<parameter=", kEndOfValue = "</parameter>",
                             kEnd = "</function>";
  head_ += c;
  if (part_ == Part::kValue) {
    if (!head_.ends_with(kEndOfValue)) return;
    std::string_view text = std::string_view(head_).substr(0, head_.size() - kEndOfValue.size());
    if (text.starts_with('\n')) text.remove_prefix(1);  // templates write a value between two newlines
    if (text.ends_with('\n')) text.remove_suffix(1);
    add_argument(json_of(text));
    part_ = Part::kBetween;
    return;
  }
  if (part_ == Part::kBetween && is_blank(c) && head_.size() == 1) return head_.clear();
  const std::string_view open = part_ == Part::kFunction ? kFunction : kParameter;
  if (part_ == Part::kBetween && head_ == kEnd) return end_arguments();
  const bool begins = open.starts_with(head_) || (part_ == Part::kBetween && kEnd.starts_with(head_));
  if (head_.size() > kLongestName || !(begins || head_.starts_with(open))) return void(fail());
  if (c != '>' || begins) return;
  const std::string given(trimmed(std::string_view(head_).substr(open.size(), head_.size() - open.size() - 1)));
  head_.clear();
  if (part_ == Part::kFunction) {
    name_ = given;
    has_name_ = true;
    part_ = Part::kBetween;
  } else {
    key_ = given;
    part_ = Part::kValue;
  }
}

// The tag, after blanks, or with `or_end` what closes the call.
void CallScanner::expect(std::string_view tag, Part then, bool or_end) {
  const std::string_view end = or_end ? format_->after : "";
  if (head_.size() == 1 && is_blank(head_[0])) return head_.clear();
  if (or_end && head_ == end) return end_arguments();
  if (head_ == tag) {
    head_.clear();
    part_ = then;
  } else if (!tag.starts_with(head_) && !end.starts_with(head_)) {
    fail();
  }
}

// name <arg_key>key</arg_key> <arg_value>value</arg_value> ..., up to what closes the call
void CallScanner::keys(char c) {
  constexpr std::string_view kKey = "<arg_key>", kEndOfKey = "</arg_key>", kValue = "<arg_value>",
                             kEndOfValue = "</arg_value>";
  head_ += c;
  const std::string_view head = head_;
  switch (part_) {
    case Part::kFunction:
      if (head.size() > kLongestName) return void(fail());
      if (c != '\n' && c != '<') return;
      name_ = trimmed(head.substr(0, head.size() - 1));
      has_name_ = true;
      head_ = c == '<' ? "<" : "";
      part_ = Part::kBetween;
      return;
    case Part::kBetween:
      return expect(kKey, Part::kKey, /*or_end=*/true);
    case Part::kKey:
      if (head.size() > kLongestName) return void(fail());
      if (!head.ends_with(kEndOfKey)) return;
      key_ = trimmed(head.substr(0, head.size() - kEndOfKey.size()));
      head_.clear();
      part_ = Part::kBeforeValue;
      return;
    case Part::kBeforeValue:
      return expect(kValue, Part::kValue, /*or_end=*/false);
    case Part::kValue:
      if (!head.ends_with(kEndOfValue)) return;
      add_argument(json_of(head.substr(0, head.size() - kEndOfValue.size())));
      part_ = Part::kBetween;
      return;
  }
}

// name(key=value, ...); of Llama's own tools name.call(...)
void CallScanner::python(char c) {
  if (!has_name_) {
    if (c != '(') {
      head_ += c;
      if (!is_name(trimmed(head_))) fail();
      return;
    }
    std::string_view name = trimmed(head_);
    if (name.ends_with(".call")) name.remove_suffix(std::string_view(".call").size());
    name_ = name;
    has_name_ = true;
    head_.clear();
    return;
  }
  if (quote_ == 0 && depth_ == 0 && (c == ',' || c == ')')) return end_python_argument(c == ')');
  head_ += c;
  if (quote_ != 0) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == quote_) {
      quote_ = 0;
    }
  } else if (c == '\'' || c == '"') {
    quote_ = c;
  } else if (c == '[' || c == '{' || c == '(') {
    ++depth_;
  } else if ((c == ']' || c == '}' || c == ')') && --depth_ < 0) {
    fail();
  }
}

void CallScanner::end_python_argument(bool last) {
  const std::string argument(trimmed(head_));
  head_.clear();
  if (!argument.empty()) {
    const size_t equals = argument.find('=');
    const std::string_view text = argument;
    key_ = trimmed(text.substr(0, equals));
    const auto json = equals == std::string::npos ? std::nullopt : json_of_python(text.substr(equals + 1));
    if (!is_name(key_) || !json) return void(fail());
    add_argument(*json);
  } else if (!last) {
    return void(fail());
  }
  if (last) end_arguments();
}

}  // namespace hotswap::serve
