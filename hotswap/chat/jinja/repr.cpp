#include "hotswap/chat/jinja/repr.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "hotswap/chat/jinja/template_error.h"
#include "hotswap/chat/jinja/text.h"

namespace hotswap::jinja {
namespace {

constexpr int kReprDepth = 600;                         // a namespace may hold itself
constexpr const char* kAddress = " at 0x7f0000000000";  // CPython's differ from run to run in digits only

class Writer {
 public:
  void write(const Value& value) {
    if (++depth_ > kReprDepth) fail(Fault::kLimit, "a value that holds itself cannot be printed");
    write_one(value);
    --depth_;
    if (const Budget* budget = Budget::current()) budget->check_string(out_.size());
  }
  std::string take() { return std::move(out_); }

 private:
  void write_one(const Value& value);
  void write_all(const std::vector<Value>& items) {
    const char* before = "";
    for (const Value& item : items) {
      out_ += before;
      write(item);
      before = ", ";
    }
  }
  void write_tuple(const std::vector<Value>& items) {
    out_ += '(';
    write_all(items);
    out_ += items.size() == 1 ? ",)" : ")";
  }
  void write_dict(const Dict& dict) {
    out_ += '{';
    const char* before = "";
    for (const auto& [key, value] : dict.entries) {
      out_ += before;
      write(key);
      out_ += ": ";
      write(value);
      before = ", ";
    }
    out_ += '}';
  }
  void write_view(const View& view);
  void write_generator(std::string_view name);

  std::string out_;
  int depth_ = 0;
};

void Writer::write_generator(std::string_view name) {
  out_ += cat(name == "list_reverseiterator" ? "<" : "<generator object ", name);
  out_ += cat(name == "list_reverseiterator" ? " object" : "", kAddress, ">");
}

void Writer::write_view(const View& view) {
  const bool keys = view.which == View::Which::kKeys;
  out_ += keys ? "dict_keys([" : view.which == View::Which::kValues ? "dict_values([" : "dict_items([";
  const char* before = "";
  for (const auto& [key, value] : view.dict->entries) {
    out_ += before;
    before = ", ";
    if (view.which == View::Which::kItems) {
      write_tuple({key, value});
    } else {
      write(keys ? key : value);
    }
  }
  out_ += "])";
}

void Writer::write_one(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      out_ += "Undefined";
      break;
    case Kind::kNone:
      out_ += "None";
      break;
    case Kind::kBool:
      out_ += value.as_bool() ? "True" : "False";
      break;
    case Kind::kInt:
      out_ += std::to_string(value.as_int());
      break;
    case Kind::kFloat:
      out_ += float_repr(value.as_float());
      break;
    case Kind::kBigInt:
      out_ += value.digits();
      break;
    case Kind::kString:
      out_ += value.text().markup ? cat("Markup(", repr_of_text(value.str()), ")") : repr_of_text(value.str());
      break;
    case Kind::kList:
      out_ += '[';
      write_all(value.items());
      out_ += ']';
      break;
    case Kind::kTuple:
      write_tuple(value.items());
      break;
    case Kind::kDict:
      write_dict(*value.dict());
      break;
    case Kind::kView:
      write_view(value.view());
      break;
    case Kind::kRange: {
      const Range& range = value.range();
      out_ += cat("range(", range.start, ", ", range.stop, range.step == 1 ? "" : cat(", ", range.step), ")");
      break;
    }
    case Kind::kGenerator:
      write_generator(value.generator().name);
      break;
    case Kind::kNamespace:
      out_ += "<Namespace ";
      write_dict(value.attributes());
      out_ += '>';
      break;
    case Kind::kLoop:
      out_ += cat("<LoopContext ", value.loop().index0() + 1, "/", value.loop().length(), ">");
      break;
    case Kind::kCallable:
      out_ += cat("<", value.callable().name, value.callable().name.starts_with("built-in") ? kAddress : "", ">");
      break;
  }
}

}  // namespace

std::string repr(const Value& value) {
  Writer writer;
  writer.write(value);
  return writer.take();
}

std::string str(const Value& value) {
  if (value.is_string()) return value.str();
  if (value.is_undefined() || value.missing()) return "";
  return repr(value);
}

std::string repr_of_text(std::string_view utf8) {
  const bool has_single = utf8.find('\'') != std::string_view::npos;
  const char quote = has_single && utf8.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < utf8.size();) {
    const auto [c, size] = tokenizers::code_point_at(utf8, at);
    char buffer[16];
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += {'\\', static_cast<char>(c)};
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += {'\\', c == '\n' ? 'n' : c == '\r' ? 'r' : 't'};
    } else if (c >= ' ' && c < 0x7F) {
      out += static_cast<char>(c);
    } else if (is_printable(c)) {
      out += utf8.substr(at, size);
    } else {
      std::snprintf(buffer, sizeof(buffer),
                    c < 0x100     ? "\\x%02x"
                    : c < 0x10000 ? "\\u%04x"
                                  : "\\U%08x",
                    static_cast<unsigned>(c));
      out += buffer;
    }
    at += size;
  }
  return out += quote;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string scientific(buffer, end);
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  if (exponent >= -4 && exponent < 16) {
    const auto fixed_end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed).ptr;
    const std::string fixed(buffer, fixed_end);
    return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
  }
  std::snprintf(buffer, sizeof(buffer), "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
  return scientific.substr(0, e) + buffer;
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.text().markup ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kView:
      return value.view().which == View::Which::kKeys     ? "dict_keys"
             : value.view().which == View::Which::kValues ? "dict_values"
                                                          : "dict_items";
    case Kind::kRange:
      return "range";
    case Kind::kGenerator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCallable:
      return "function";
  }
  return "object";
}

}  // namespace hotswap::jinja
