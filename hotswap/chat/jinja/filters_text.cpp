// Filters that make texts.
#include <algorithm>

#include "hotswap/chat/jinja/arithmetic.h"
#include "hotswap/chat/jinja/attributes.h"
#include "hotswap/chat/jinja/builtins.h"
#include "hotswap/chat/jinja/compare.h"
#include "hotswap/chat/jinja/format.h"
#include "hotswap/chat/jinja/interpreter.h"
#include "hotswap/chat/jinja/iterate.h"
#include "hotswap/chat/jinja/parameters.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"
#include "hotswap/chat/jinja/text.h"
#include "hotswap/chat/jinja/word_wrap.h"

namespace hotswap::jinja {
namespace {

// A str as it is, a Markup too; all else printed.
Value soft_string(const Value& value) { return value.is_string() ? value : Value::string(str(value)); }

Value call_method(Interpreter& interpreter, const Value& text, const char* name, Arguments arguments) {
  return string_method(text, name)->callable().call(interpreter, arguments);
}

Value string(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("string", arguments, {});
  return soft_string(input);
}

template <char method>
Value mapped_input(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters none("filter", arguments, {});
  return call_method(interpreter, soft_string(input),
                     method == 'u'   ? "upper"
                     : method == 'l' ? "lower"
                                     : "capitalize",
                     {});
}

Value title_text(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("title", arguments, {});
  const std::u32string text = decode(str(input));
  const auto separator = [](char32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
  };
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    if (separator(text[at])) {
      out += text[at++];
      continue;
    }
    size_t end = at;
    while (end < text.size() && !separator(text[end])) ++end;
    out += jinja::upper(std::u32string_view(text).substr(at, 1));
    out += jinja::lower(std::u32string_view(text).substr(at + 1, end - at - 1));
    at = end;
  }
  return Value::string(encode(out));
}

Value trim(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters p("trim", arguments, {"chars"});
  return call_method(interpreter, soft_string(input), "strip", {{p.get(0, Value::none())}, {}});
}

Value replace_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters p("replace", arguments, {"old", "new", "count"}, 2);
  const int64_t count = p.optional(2) ? p.integer(2, -1) : -1;
  return Value::string(replace_all(str(input), str(p.at(0)), str(p.at(1)), count));
}

Value indent(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters p("indent", arguments, {"width", "first", "blank"});
  if (input.is_undefined()) fail_undefined(input);
  if (!input.is_string()) type_error(cat("indent takes a str, not ", type_name(input)));
  const std::string by = p.given(0) && p.at(0).is_string()
                             ? p.at(0).str()
                             : apply(Operator::kMultiply, Value::string(" "), Value::integer(p.integer(0, 4))).str();
  const std::vector<std::string> lines = split_lines(input.str() + "\n");
  std::string out = p.truth(1, false) ? by : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += lines[i].empty() && !p.truth(2, false) ? "\n" : "\n" + by;
    out += lines[i];
    if (const Budget* budget = Budget::current()) budget->check_string(out.size());
  }
  return Value::string(std::move(out), input.text().markup);
}

Value center(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters p("center", arguments, {"width"});
  return call_method(interpreter, soft_string(input), "center", {{Value::integer(p.integer(0, 80))}, {}});
}

Value format(Interpreter&, const Value& input, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    type_error("can't handle positional and keyword arguments at the same time");
  }
  if (arguments.named.empty()) return percent_format(soft_string(input), Value::tuple(arguments.positional));
  Dict named;
  for (const auto& [name, value] : arguments.named) named.set(Value::string(name), value);
  return percent_format(soft_string(input), Value::dict(std::move(named)));
}

Value truncate(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters p("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const int64_t size = p.integer(0, 255), leeway = p.optional(3) ? p.integer(3, 5) : 5;
  const std::u32string end = decode(p.text(2, "..."));
  const auto end_size = static_cast<int64_t>(end.size());
  if (size < end_size) value_error(cat("expected length >= ", end_size, ", got ", size));
  if (leeway < 0) value_error(cat("expected leeway >= 0, got ", leeway));
  if (input.is_undefined()) return input;
  if (!input.is_string()) {  // jinja2 looks at the length before it slices
    if (length_of(input) <= size + leeway) return input;
    type_error(cat("truncate takes a str, not ", type_name(input)));
  }
  const std::u32string text = decode(input.str());
  if (static_cast<int64_t>(text.size()) <= size + leeway) return input;
  std::u32string kept = text.substr(0, static_cast<size_t>(size - end_size));
  if (!p.truth(1, false)) {
    const size_t blank = kept.rfind(U' ');
    if (blank != std::u32string::npos) kept.resize(blank);
  }
  return Value::string(encode(kept + end), input.text().markup);
}

Value wordcount(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("wordcount", arguments, {});
  int64_t words = 0;
  bool in_word = false;
  for (const char32_t c : decode(str(input))) {
    const bool word = c == '_' || is_letter(c) || is_numeric(c);
    words += word && !in_word;
    in_word = word;
  }
  return Value::integer(words);
}

Value escaped(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("escape", arguments, {});
  return escape(input);
}

Value force_escape(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("forceescape", arguments, {});
  return Value::string(escape_html(str(input)), true);
}

Value safe(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("safe", arguments, {});
  return Value::string(str(input), true);
}

Value strip_tags(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters none("striptags", arguments, {});
  std::string text = str(input);
  const auto remove = [&](std::string_view begin, std::string_view end) {
    for (size_t at = 0; (at = text.find(begin, at)) != std::string::npos;) {
      const size_t stop = text.find(end, at);
      if (stop == std::string::npos) break;
      text.erase(at, stop + end.size() - at);
    }
  };
  remove("<!--", "-->");
  remove("<", ">");
  const Value words = call_method(interpreter, Value::string(text), "split", {});
  const Value joined = call_method(interpreter, Value::string(" ", true), "join", {{words}, {}});
  return call_method(interpreter, Value::string(replace_all(joined.str(), "&amp;", "&"), true), "unescape", {});
}

std::string quoted(const Value& value, bool in_query) {
  constexpr std::string_view kPlain = "_.-~";
  std::string out;
  for (const char c : str(value)) {
    const auto byte = static_cast<uint8_t>(c);
    if (std::isalnum(byte) && byte < 0x80) {
      out += c;
    } else if (kPlain.find(c) != std::string_view::npos || (c == '/' && !in_query)) {
      out += c;
    } else if (c == ' ' && in_query) {
      out += '+';
    } else {
      constexpr char kHex[] = "0123456789ABCDEF";
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

Value urlencode(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("urlencode", arguments, {});
  if (input.is_string() || !iterable(input)) return Value::string(quoted(input, false));
  const Value pairs = input.is(Kind::kDict) ? Value::view({View::Which::kItems, input.dict()}) : input;
  std::string out;
  Iterator iterator(pairs);
  while (const auto pair = iterator.next()) {
    const std::vector<Value> two = to_vector(*pair);
    if (two.size() != 2) value_error("urlencode takes pairs of key and value");
    out += (out.empty() ? "" : "&") + quoted(two[0], true) + "=" + quoted(two[1], true);
  }
  return Value::string(std::move(out));
}

Value xmlattr(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const Parameters p("xmlattr", arguments, {"autospace"});
  if (!input.is(Kind::kDict)) type_error(cat("'", type_name(input), "' object has no attribute 'items'"));
  std::string out;
  for (const auto& [key, value] : input.dict()->entries) {
    if (value.is(Kind::kNone) || value.is_undefined()) continue;
    if (!key.is_string()) type_error("names of attributes are texts");
    if (key.str().find_first_of(" \t\n\r\f\v/>=") != std::string::npos) {
      value_error(cat("Invalid character in attribute name: ", repr(key)));
    }
    out += (out.empty() ? "" : " ") + escape(key).str() + "=\"" + escape(value).str() + "\"";
  }
  if (p.truth(0, true) && !out.empty()) out.insert(0, " ");
  return Value::string(std::move(out), interpreter.autoescape());
}

Value tojson(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters p("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ensure_ascii = p.truth(0, false), .sort_keys = p.truth(3, false)};
  if (const auto by = p.optional(1)) {
    style.indent = by->is_string()
                       ? by->str()
                       : apply(Operator::kMultiply, Value::string(" "), Value::integer(p.integer(1, 0))).str();
    style.item_separator = ",";
  }
  if (const auto separators = p.optional(2)) {
    const std::vector<Value> two = to_vector(*separators);
    if (two.size() != 2) value_error("separators are two texts");
    if (!two[0].is_string() || !two[1].is_string()) type_error("separators are two texts");
    style.item_separator = two[0].str();
    style.key_separator = two[1].str();
  }
  return Value::string(dump_json(input, style));
}

Value pprint(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters none("pprint", arguments, {});
  std::string text = repr(input);
  if (count_characters(text) > 80 || input.is(Kind::kDict)) {
    fail(Fault::kUnsupported, "the filter pprint of what fills more than a line, or of a dict");
  }
  return Value::string(std::move(text));
}

Value wordwrap(Interpreter&, const Value& input, const Arguments& arguments) {
  const Parameters p("wordwrap", arguments, {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  const int64_t width = p.integer(0, 79);
  const std::string between = p.optional(2) ? p.text(2) : "\n";
  if (!input.is_string()) type_error(cat("wordwrap takes a str, not ", type_name(input)));
  const WrapStyle style{.width = static_cast<size_t>(std::max<int64_t>(width, 1)),
                        .break_long_words = p.truth(1, true),
                        .break_on_hyphens = p.truth(3, true)};
  std::vector<std::string> lines;
  for (const std::string& line : split_lines(input.str())) {
    if (width <= 0) value_error(cat("invalid width ", width, " (must be > 0)"));
    const auto parts = wrapped(decode(line), style);
    for (const std::u32string& part : parts) lines.push_back(encode(part));
    if (parts.empty()) lines.emplace_back();
  }
  size_t bytes = lines.size() * between.size();
  for (const std::string& line : lines) bytes += line.size();
  if (Budget* budget = Budget::current()) budget->check_string(bytes);
  std::string text;
  for (const std::string& line : lines) text += (&line == lines.data() ? "" : between) + line;
  return Value::string(std::move(text));
}

Value urlize(Interpreter&, const Value&, const Arguments&) { fail(Fault::kUnsupported, "the filter urlize"); }

}  // namespace

const Filters& text_filters() {
  static const Filters all = {{"capitalize", mapped_input<'c'>},
                              {"center", center},
                              {"e", escaped},
                              {"escape", escaped},
                              {"forceescape", force_escape},
                              {"format", format},
                              {"indent", indent},
                              {"lower", mapped_input<'l'>},
                              {"pprint", pprint},
                              {"replace", replace_filter},
                              {"safe", safe},
                              {"string", string},
                              {"striptags", strip_tags},
                              {"title", title_text},
                              {"tojson", tojson},
                              {"trim", trim},
                              {"truncate", truncate},
                              {"upper", mapped_input<'u'>},
                              {"urlencode", urlencode},
                              {"urlize", urlize},
                              {"wordcount", wordcount},
                              {"wordwrap", wordwrap},
                              {"xmlattr", xmlattr}};
  return all;
}

}  // namespace hotswap::jinja
