// Python's json.dumps.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "hotswap/chat/jinja/builtins.h"
#include "hotswap/chat/jinja/compare.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"
#include "hotswap/chat/jinja/text.h"

namespace hotswap::jinja {
namespace {

class Dumper {
 public:
  explicit Dumper(const JsonStyle& style) : style_(style) {}

  void write(const Value& value) {
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        break;
      case Kind::kBool:
        out_ += value.as_bool() ? "true" : "false";
        break;
      case Kind::kInt:
      case Kind::kBigInt:
        out_ += repr(value);
        break;
      case Kind::kFloat:
        out_ += number(value.as_float());
        break;
      case Kind::kString:
        string(value.str());
        break;
      case Kind::kList:
      case Kind::kTuple:
        between('[', ']', value.items(), [&](const Value& item) { write(item); });
        break;
      case Kind::kDict:
        object(*value.dict());
        break;
      default:
        type_error(cat("Object of type ", type_name(value), " is not JSON serializable"));
    }
    if (const Budget* budget = Budget::current()) budget->check_string(out_.size());
  }
  std::string take() { return std::move(out_); }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  static std::string key(const Value& value) {
    if (value.is_string()) return value.str();
    if (value.is(Kind::kFloat)) return number(value.as_float());
    if (value.is(Kind::kBool)) return value.as_bool() ? "true" : "false";
    if (value.is(Kind::kNone)) return "null";
    if (value.is(Kind::kInt) || value.is(Kind::kBigInt)) return repr(value);
    type_error(cat("keys must be str, int, float, bool or None, not ", type_name(value)));
  }

  void new_line() {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += *style_.indent;
  }

  template <typename Items, typename Write>
  void between(char open, char close, const Items& items, Write write_one) {
    out_ += open;
    if (!items.empty()) {
      ++level_;
      bool first = true;
      for (const auto& item : items) {
        if (!first) out_ += style_.item_separator;
        first = false;
        new_line();
        write_one(item);
      }
      --level_;
      new_line();
    }
    out_ += close;
  }

  void object(const Dict& dict) {
    std::vector<std::pair<Value, Value>> entries = dict.entries;
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return less(a.first, b.first); });
    }
    between('{', '}', entries, [&](const auto& entry) {
      string(key(entry.first));
      out_ += style_.key_separator;
      write(entry.second);
    });
  }

  void escape_unit(unsigned unit) {
    char buffer[16];
    std::snprintf(buffer, sizeof(buffer), "\\u%04x", unit);
    out_ += buffer;
  }

  void string(const std::string& text) {
    out_ += '"';
    for (size_t at = 0; at < text.size();) {
      const auto [c, size] = tokenizers::code_point_at(text, at);
      constexpr std::string_view kNamed = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
      const size_t named = c < 0x80 ? kNamed.find(static_cast<char>(c)) : std::string_view::npos;
      if (named != std::string_view::npos) {
        out_ += {'\\', kLetters[named]};
      } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F && c < 0x10000)) {
        escape_unit(c);
      } else if (style_.ensure_ascii && c >= 0x10000) {
        escape_unit(0xD800 + ((c - 0x10000) >> 10));
        escape_unit(0xDC00 + ((c - 0x10000) & 0x3FF));
      } else {
        out_ += text.substr(at, size);
      }
      at += size;
    }
    out_ += '"';
  }

  const JsonStyle& style_;
  std::string out_;
  int level_ = 0;
};

}  // namespace

std::string dump_json(const Value& value, const JsonStyle& style) {
  Dumper dumper(style);
  dumper.write(value);
  return dumper.take();
}

}  // namespace hotswap::jinja
