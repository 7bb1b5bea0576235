#include "hotswap/serve/call_scanner.h"

#include <algorithm>

#include "hotswap/serve/message_part.h"
#include "hotswap/serve/request_body.h"

namespace hotswap::serve {
namespace {

constexpr size_t kLongestKey = 64;    // of a call's object: "name", "arguments", "id"
constexpr size_t kLongestHead = 256;  // before the arguments of a named call

// get_weather of "get_weather[CALL_ID]abc[ARGS]", for example.
std::string name_in(std::string_view head, const ToolFormat& format) {
  std::string_view text = trimmed(head);
  if (text.starts_with(format.before)) text.remove_prefix(std::string_view(format.before).size());
  const std::string_view between = trimmed(format.between);
  if (!between.empty()) text = text.substr(0, text.find(between));
  return std::string(trimmed(text.substr(0, text.find('['))));
}

}  // namespace

CallScanner::State CallScanner::push(char c) {
  if (form_ == Form::kUnknown) {
    if (is_blank(c)) return state_;
    if (c == '[' && (format_->list || format_->python) && !in_list_) {
      in_list_ = true;
      return state_;
    }
    choose_form(c);
  }
  if (state_ == State::kFailed) return state_;
  if (form_ == Form::kObject) object(c);
  if (form_ == Form::kNamed) named(c);
  if (form_ == Form::kParameters) parameters(c);
  if (form_ == Form::kKeys) keys(c);
  if (form_ == Form::kPython) python(c);
  return state_;
}

void CallScanner::choose_form(char c) {
  if (c == '{') {
    form_ = Form::kObject;
  } else if (c == '<' && format_->style == ToolFormat::Style::kParameters) {
    form_ = Form::kParameters;
  } else if (format_->style == ToolFormat::Style::kKeys && c != '<') {
    form_ = Form::kKeys;
  } else if (format_->python && (std::isalpha(static_cast<unsigned char>(c)) || c == '_')) {
    form_ = Form::kPython;
  } else if (format_->style == ToolFormat::Style::kNamed && !in_list_) {
    form_ = Form::kNamed;
  } else {
    fail();
  }
}

void CallScanner::named(char c) {
  if (!has_name_) {
    if (c != '{') {
      head_ += c;
      if (head_.size() > kLongestHead) fail();
      return;
    }
    name_ = name_in(head_, *format_);
    has_name_ = true;
    key_ = "arguments";
  }
  value(c);
  if (has_arguments_ && state_ == State::kGoing) state_ = State::kDone;
}

void CallScanner::object(char c) {
  switch (step_) {
    case Step::kOpen:
      if (is_blank(c)) return;
      if (c != '{') return void(fail());
      step_ = Step::kKey;
      return;
    case Step::kKey:
      if (is_blank(c)) return;
      if (c != '"') return void(fail());
      key_.clear();
      step_ = Step::kInKey;
      return;
    case Step::kInKey:
      if (c == '"') {
        step_ = Step::kColon;
      } else {
        key_ += c;
      }
      if (key_.size() > kLongestKey) fail();
      return;
    case Step::kColon:
      if (is_blank(c)) return;
      if (c != ':') return void(fail());
      step_ = Step::kValue;
      return;
    case Step::kValue:
      if (is_blank(c)) return;
      raw_.clear();
      depth_ = 0;
      in_text_ = escaped_ = false;
      step_ = Step::kInValue;
      [[fallthrough]];
    case Step::kInValue:
      value(c);
      return;
    case Step::kAfterValue:
      if (is_blank(c)) return;
      if (c == ',') {
        step_ = Step::kKey;
      } else if (c != '}') {
        fail();
      } else {
        state_ = has_name_ && (has_arguments_ || arguments_.empty()) ? State::kDone : State::kFailed;
        if (arguments_.empty()) arguments_ = "{}";
      }
      return;
  }
}

void CallScanner::value(char c) {
  const bool is_arguments = key_ == "arguments" || key_ == "parameters";
  const bool ends_scalar = !in_text_ && depth_ == 0 && !raw_.empty() && (c == ',' || c == '}' || is_blank(c));
  if (ends_scalar) {
    end_value();
    if (state_ == State::kGoing) object(c);
    return;
  }
  raw_ += c;
  if (is_arguments && raw_.size() == 1) {
    if (has_arguments_) return void(fail());
    quoted_ = c == '"';
    if (c != '"' && c != '{') return void(fail());
  }
  if (is_arguments && !quoted_) arguments_ += c;
  if (in_text_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_text_ = false;
    }
  } else if (c == '"') {
    in_text_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    --depth_;
  }
  const bool compound = raw_[0] == '{' || raw_[0] == '[' || raw_[0] == '"';
  if (!compound || in_text_ || depth_ != 0) return;
  end_value();
  if (state_ == State::kFailed && is_arguments && !quoted_) arguments_.pop_back();  // not reported
}

void CallScanner::end_value() {
  step_ = Step::kAfterValue;
  const bool is_arguments = key_ == "arguments" || key_ == "parameters";
  if (!is_arguments && key_ != "name") return;
  const JsonDocument document = read_json_text(raw_);
  if (document.fault != JsonFault::kNone) return void(fail());
  const nlohmann::ordered_json& parsed = document.root;
  if (key_ == "name") {
    if (!parsed.is_string() || has_name_) return void(fail());
    name_ = parsed.get<std::string>();
    has_name_ = true;
    return;
  }
  has_arguments_ = true;
  if (!quoted_) return;
  const auto inside = parsed.get<std::string>();
  if (!json_problem(inside).empty()) return void(fail());
  arguments_ = inside;
  quoted_ = false;
}

}  // namespace hotswap::serve
