// The methods of Python's str. Those that give a text give a Markup for a Markup.
#include <algorithm>
#include <map>

#include "hotswap/chat/jinja/arithmetic.h"
#include "hotswap/chat/jinja/attributes.h"
#include "hotswap/chat/jinja/format.h"
#include "hotswap/chat/jinja/iterate.h"
#include "hotswap/chat/jinja/parameters.h"
#include "hotswap/chat/jinja/repr.h"
#include "hotswap/chat/jinja/template_error.h"
#include "hotswap/chat/jinja/text.h"

namespace hotswap::jinja {
namespace {

using Call = Value (*)(Interpreter&, const Value& self, const Arguments& arguments);
using Mapping = std::u32string (*)(std::u32string_view);
using Property = bool (*)(char32_t);

Value like(const Value& self, std::string text) { return Value::string(std::move(text), self.text().markup); }

template <Mapping mapping>
Value mapped_self(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters none("str's method", arguments, {});
  return like(self, encode(mapping(decode(self.str()))));
}

template <Property property>
Value all_are(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters none("str's method", arguments, {});
  const auto characters = decode(self.str());
  return Value::boolean(!characters.empty() && std::all_of(characters.begin(), characters.end(), property));
}

bool is_alnum(char32_t c) { return is_letter(c) || is_numeric(c); }

// There is a cased character, and none of the other cases.
template <bool upper>
Value change_case(Interpreter&, const Value& self, const Arguments&) {
  bool found = false;
  for (const char32_t c : decode(self.str())) {
    if (is_title(c) || (upper ? is_lower(c) : is_upper(c))) return Value::boolean(false);
    found = found || (upper ? is_upper(c) : is_lower(c));
  }
  return Value::boolean(found);
}

Value istitle(Interpreter&, const Value& self, const Arguments&) {
  bool found = false, in_word = false;
  for (const char32_t c : decode(self.str())) {
    if (is_upper(c) || is_title(c)) {
      if (in_word) return Value::boolean(false);
      found = in_word = true;
    } else if (is_lower(c)) {
      if (!in_word) return Value::boolean(false);
    } else {
      in_word = false;
    }
  }
  return Value::boolean(found);
}

Value isascii(Interpreter&, const Value& self, const Arguments&) {
  return Value::boolean(std::all_of(self.str().begin(), self.str().end(), [](char c) { return (c & 0x80) == 0; }));
}

Value isprintable(Interpreter&, const Value& self, const Arguments&) {
  const auto characters = decode(self.str());
  return Value::boolean(std::all_of(characters.begin(), characters.end(), is_printable));
}

Value isidentifier(Interpreter&, const Value& self, const Arguments&) {
  return Value::boolean(is_identifier(self.str()));
}

template <bool left, bool right>
Value strip(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters p("strip", arguments, {"chars"});
  const auto chars = p.optional(0);
  if (chars && !chars->is_string()) type_error("strip arg must be None or str");
  const std::u32string set = chars ? decode(chars->str()) : U"";
  std::string_view text = self.str();
  if (left) text = strip_left(text, chars ? &set : nullptr);
  if (right) text = strip_right(text, chars ? &set : nullptr);
  return like(self, std::string(text));
}

Value pieces(const Value& self, std::vector<std::string> texts) {
  std::vector<Value> out;
  out.reserve(texts.size());
  for (std::string& text : texts) out.push_back(like(self, std::move(text)));
  return Value::list(std::move(out));
}

std::vector<std::string> split_space(std::string_view text, int64_t most) {
  std::vector<std::string> out;
  for (text = strip_left(text); !text.empty(); text = strip_left(text)) {
    if (most >= 0 && static_cast<int64_t>(out.size()) == most) {
      out.emplace_back(strip_right(text));
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      const auto [c, size] = tokenizers::code_point_at(text, end);
      if (is_space(c)) break;
      end += size;
    }
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return out;
}

std::vector<std::string> split_space_right(std::string_view text, int64_t most) {
  std::vector<std::string> out;
  for (text = strip_right(text); !text.empty(); text = strip_right(text)) {
    if (most >= 0 && static_cast<int64_t>(out.size()) == most) {
      out.emplace_back(strip_left(text));
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      size_t before = begin - 1;
      while (tokenizers::is_continuation(text[before])) --before;
      if (is_space(tokenizers::code_point_at(text, before).value)) break;
      begin = before;
    }
    out.emplace_back(text.substr(begin));
    text = text.substr(0, begin);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string> split_at(std::string_view text, std::string_view separator, int64_t most, bool right) {
  std::vector<std::string> out;
  while (most < 0 || static_cast<int64_t>(out.size()) < most) {
    const size_t at = right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    out.emplace_back(right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  out.emplace_back(text);
  if (right) std::reverse(out.begin(), out.end());
  return out;
}

template <bool right>
Value split(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters p("split", arguments, {"sep", "maxsplit"});
  const int64_t most = p.integer(1, -1);
  const auto separator = p.optional(0);
  if (!separator) return pieces(self, right ? split_space_right(self.str(), most) : split_space(self.str(), most));
  const std::string& at = p.text(0);
  if (at.empty()) value_error("empty separator");
  return pieces(self, split_at(self.str(), at, most, right));
}

Value splitlines(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters p("splitlines", arguments, {"keepends"});
  return pieces(self, split_lines(self.str(), p.truth(0, false)));
}

template <bool right>
Value partition(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters p("partition", arguments, {"sep"}, 1);
  const std::string &text = self.str(), &separator = p.text(0);
  if (separator.empty()) value_error("empty separator");
  const size_t at = right ? text.rfind(separator) : text.find(separator);
  std::vector<Value> parts;
  if (at == std::string::npos) {
    parts = {self, like(self, ""), like(self, "")};
    if (right) std::swap(parts[0], parts[2]);
  } else {
    parts = {like(self, text.substr(0, at)), like(self, separator), like(self, text.substr(at + separator.size()))};
  }
  return Value::tuple(std::move(parts));
}

Value replace_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters p("replace", arguments, {"old", "new", "count"}, 2);
  const std::string with = self.text().markup ? escape(p.at(1)).str() : p.text(1);
  return like(self, replace_all(self.str(), p.text(0), with, p.integer(2, -1)));
}

Value join_method(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters p("join", arguments, {"iterable"}, 1);
  if (!iterable(p.at(0))) type_error("can only join an iterable");
  std::string out;
  Iterator items(p.at(0));
  for (int64_t i = 0; auto item = items.next(); ++i) {
    if (!self.text().markup && !item->is_string()) {
      type_error(cat("sequence item ", i, ": expected str instance, ", type_name(*item), " found"));
    }
    if (i > 0) out += self.str();
    out += self.text().markup ? escape(*item).str() : item->str();
    if (const Budget* budget = Budget::current()) budget->check_string(out.size());
  }
  return like(self, std::move(out));
}

// The part of the text that start and stop name, and where it begins in characters.
std::u32string_view part(const std::u32string& text, const Parameters& p, int64_t* begin, bool* reachable) {
  const auto length = static_cast<int64_t>(text.size());
  const Range range = slice_range(p.get(1, Value::none()), p.get(2, Value::none()), Value::none(), length);
  const auto start = p.optional(1);
  *begin = range.start;
  *reachable = !(start && start->as_int() > length) && range.start <= range.stop;
  return std::u32string_view(text).substr(static_cast<size_t>(range.start),
                                          static_cast<size_t>(std::max<int64_t>(0, range.stop - range.start)));
}

int64_t find_in(const Value& self, const Arguments& arguments, bool right) {
  const Parameters p("find", arguments, {"sub", "start", "end"}, 1);
  const std::u32string text = decode(self.str()), wanted = decode(p.text(0));
  int64_t begin = 0;
  bool reachable = false;
  const auto where = part(text, p, &begin, &reachable);
  const size_t at = right ? where.rfind(wanted) : where.find(wanted);
  return !reachable || at == std::u32string_view::npos ? -1 : begin + static_cast<int64_t>(at);
}

template <bool right, bool must>
Value find(Interpreter&, const Value& self, const Arguments& arguments) {
  const int64_t at = find_in(self, arguments, right);
  if (must && at < 0) value_error("substring not found");
  return Value::integer(at);
}

Value count(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters p("count", arguments, {"sub", "start", "end"}, 1);
  const std::u32string text = decode(self.str()), wanted = decode(p.text(0));
  int64_t begin = 0, found = 0;
  bool reachable = false;
  const auto where = part(text, p, &begin, &reachable);
  if (!reachable) return Value::integer(0);
  if (wanted.empty()) return Value::integer(static_cast<int64_t>(where.size()) + 1);
  for (size_t at = 0; (at = where.find(wanted, at)) != std::u32string_view::npos; at += wanted.size()) ++found;
  return Value::integer(found);
}

template <bool end>
Value begins(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters p(end ? "endswith" : "startswith", arguments, {"prefix", "start", "end"}, 1);
  const std::u32string text = decode(self.str());
  int64_t begin = 0;
  bool reachable = false;
  const auto where = part(text, p, &begin, &reachable);
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string()) {
      type_error(
          cat(end ? "endswith" : "startswith", " first arg must be str or a tuple of str, not ", type_name(affix)));
    }
    const std::u32string characters = decode(affix.str());
    return reachable && (end ? where.ends_with(characters) : where.starts_with(characters));
  };
  if (!p.at(0).is(Kind::kTuple)) return Value::boolean(matches(p.at(0)));
  const auto& affixes = p.at(0).items();
  return Value::boolean(std::any_of(affixes.begin(), affixes.end(), matches));
}

template <bool end>
Value remove(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters p("removeprefix", arguments, {"prefix"}, 1);
  const std::string &text = self.str(), &affix = p.text(0);
  if (affix.empty() || !(end ? text.ends_with(affix) : text.starts_with(affix))) return self;
  return like(self, end ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size()));
}

enum class StripSide { kLeft, kRight, kCenter };

template <StripSide side>
Value justify(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters p("justify", arguments, {"width", "fillchar"}, 1);
  const std::string fill = p.text(1, " ");
  if (count_characters(fill) != 1) type_error("The fill character must be exactly one character long");
  const int64_t width = p.integer(0, 0), gap = width - static_cast<int64_t>(count_characters(self.str()));
  if (gap <= 0) return self;
  int64_t before = side == StripSide::kRight ? gap : 0;
  if (side == StripSide::kCenter) before = gap / 2 + (gap & width & 1);
  const auto filling = [&](int64_t n) {
    return apply(Operator::kMultiply, Value::string(fill), Value::integer(n)).str();
  };
  return like(self, filling(before) + self.str() + filling(gap - before));
}

Value zfill(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters p("zfill", arguments, {"width"}, 1);
  const int64_t gap = p.integer(0, 0) - static_cast<int64_t>(count_characters(self.str()));
  if (gap <= 0) return self;
  const bool sign = !self.str().empty() && (self.str()[0] == '+' || self.str()[0] == '-');
  const std::string zeros = apply(Operator::kMultiply, Value::string("0"), Value::integer(gap)).str();
  return like(self, self.str().substr(0, sign ? 1 : 0) + zeros + self.str().substr(sign ? 1 : 0));
}

Value expandtabs(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters p("expandtabs", arguments, {"tabsize"});
  const int64_t size = p.integer(0, 8);
  std::string out;
  int64_t column = 0;
  for (const char32_t c : decode(self.str())) {
    if (c == '\t') {
      const int64_t gap = size > 0 ? size - column % size : 0;
      out += apply(Operator::kMultiply, Value::string(" "), Value::integer(gap)).str();
      column += gap;
    } else {
      tokenizers::append_utf8(out, c);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return like(self, std::move(out));
}

Value format_map(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters p("format_map", arguments, {"mapping"}, 1);
  if (!p.at(0).is(Kind::kDict)) type_error("format_map() argument must be a dict");
  Arguments named;
  for (const auto& [key, value] : p.at(0).dict()->entries) {
    if (key.is_string()) named.named.emplace_back(key.str(), value);
  }
  return brace_format(interpreter, self, named);
}

Value unescape(Interpreter&, const Value& self, const Arguments&) {
  std::string text = self.str();
  constexpr std::pair<const char*, const char*> kNames[] = {{"&lt;", "<"},    {"&gt;", ">"},  {"&#34;", "\""},
                                                            {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}};
  for (const auto& [name, character] : kNames) text = replace_all(text, name, character);
  return Value::string(std::move(text));
}

Value no_bytes(Interpreter&, const Value&, const Arguments&) { fail(Fault::kUnsupported, "values of type bytes"); }
Value no_translation(Interpreter&, const Value&, const Arguments&) {
  fail(Fault::kUnsupported, "str.translate and str.maketrans");
}

const std::map<std::string, Call>& methods() {
  static const std::map<std::string, Call> all = {{"capitalize", mapped_self<capitalize>},
                                                  {"casefold", mapped_self<case_fold>},
                                                  {"center", justify<StripSide::kCenter>},
                                                  {"count", count},
                                                  {"encode", no_bytes},
                                                  {"endswith", begins<true>},
                                                  {"expandtabs", expandtabs},
                                                  {"find", find<false, false>},
                                                  {"format", brace_format},
                                                  {"format_map", format_map},
                                                  {"index", find<false, true>},
                                                  {"isalnum", all_are<is_alnum>},
                                                  {"isalpha", all_are<is_letter>},
                                                  {"isascii", isascii},
                                                  {"isdecimal", all_are<is_decimal>},
                                                  {"isdigit", all_are<is_digit>},
                                                  {"isidentifier", isidentifier},
                                                  {"islower", change_case<false>},
                                                  {"isnumeric", all_are<is_numeric>},
                                                  {"isprintable", isprintable},
                                                  {"isspace", all_are<is_space>},
                                                  {"istitle", istitle},
                                                  {"isupper", change_case<true>},
                                                  {"join", join_method},
                                                  {"ljust", justify<StripSide::kLeft>},
                                                  {"lower", mapped_self<lower>},
                                                  {"lstrip", strip<true, false>},
                                                  {"maketrans", no_translation},
                                                  {"partition", partition<false>},
                                                  {"removeprefix", remove<false>},
                                                  {"removesuffix", remove<true>},
                                                  {"replace", replace_method},
                                                  {"rfind", find<true, false>},
                                                  {"rindex", find<true, true>},
                                                  {"rjust", justify<StripSide::kRight>},
                                                  {"rpartition", partition<true>},
                                                  {"rsplit", split<true>},
                                                  {"rstrip", strip<false, true>},
                                                  {"split", split<false>},
                                                  {"splitlines", splitlines},
                                                  {"startswith", begins<false>},
                                                  {"strip", strip<true, true>},
                                                  {"swapcase", mapped_self<swap_case>},
                                                  {"title", mapped_self<title>},
                                                  {"translate", no_translation},
                                                  {"upper", mapped_self<upper>},
                                                  {"zfill", zfill}};
  return all;
}

}  // namespace

std::optional<Value> string_method(const Value& text, const std::string& name) {
  const auto found = methods().find(name);
  Call call = found == methods().end() ? nullptr : found->second;
  if (call == nullptr && text.text().markup && name == "unescape") call = unescape;
  if (call == nullptr) return std::nullopt;
  return Value::callable({.call = [text, call](Interpreter& interpreter, Arguments& arguments) -> Value {
                            return call(interpreter, text, arguments);
                          },
                          .name = cat("built-in method ", name, " of str object")});
}

}  // namespace hotswap::jinja
