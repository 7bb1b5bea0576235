#include "hotswap/grammar/json_rules.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hotswap/grammar/number_rules.h"
#include "hotswap/grammar/schema.h"
#include "hotswap/tokenizers/unicode.h"

namespace hotswap::grammar {
namespace {

constexpr int64_t kMaxOtherName = 100;  // characters of a name that the schema does not know
constexpr size_t kMaxKnownName = 200;   // where other names must differ from it
constexpr size_t kMaxJsonRules = 4000;
constexpr int64_t kMaxCounted = 1000;  // rules of one object whose members are counted

// Written as they are: all but " \ and controls.
const CodePoints& plain() {
  static const CodePoints set = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7E}, {0xA0, kLastCodePoint}};
  return set;
}

CodePoints intersection(const CodePoints& a, const CodePoints& b) {
  CodePoints outside = complement(a);
  const CodePoints other = complement(b);
  outside.insert(outside.end(), other.begin(), other.end());
  return complement(std::move(outside));
}

std::u32string code_points(const std::string& text) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    const auto [value, size] = tokenizers::code_point_at(text, at);
    out += value;
    at += size;
  }
  return out;
}

}  // namespace

std::string json_text(std::string_view utf8) { return SchemaJson(utf8).dump(); }

ExprPtr JsonRules::named(const char* name, const std::function<ExprPtr()>& make) {
  auto found = named_.find(name);
  if (found == named_.end()) {
    const size_t index = rules_.add(name);
    found = named_.emplace(name, rule(index)).first;
    rules_.set(index, make());
  }
  return found->second;
}

ExprPtr JsonRules::space() {
  return named("space", [] { return repeat(one_of({{' ', ' '}, {'\n', '\n'}, {'\t', '\t'}}), 0, 2); });
}

ExprPtr JsonRules::separator() {
  return named("comma", [&] { return sequence({space(), literal(","), space()}); });
}

ExprPtr JsonRules::character(const CodePoints& set) {
  std::vector<ExprPtr> parts = {one_of(intersection(set, plain()))};
  constexpr std::pair<char, const char*> kEscapes[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"}, {'\f', "\\f"},
                                                       {'\n', "\\n"}, {'\r', "\\r"},  {'\t', "\\t"}};
  const CodePoints all = merged(set);
  for (const auto& [c, escape] : kEscapes) {
    const auto code = static_cast<char32_t>(c);
    const bool in =
        std::any_of(all.begin(), all.end(), [&](const auto& r) { return r.first <= code && code <= r.second; });
    if (in) parts.push_back(literal(escape));
  }
  return choice(std::move(parts));
}

// Any code point, of which each may be written as an escape, too; a surrogate pair as an escape is left out: it is two.
ExprPtr JsonRules::any_character() {
  return named("character", [] {
    const CodePoints hex = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    const CodePoints not_d = {{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}};
    const ExprPtr code =
        choice({sequence({one_of(not_d), repeat(one_of(hex), 3, 3)}),
                sequence({one_of({{'D', 'D'}, {'d', 'd'}}), one_of({{'0', '7'}}), repeat(one_of(hex), 2, 2)})});
    CodePoints letters;
    for (const char c : std::string_view("\"\\/bfnrt")) letters.emplace_back(c, c);
    return choice(
        {one_of(plain()), sequence({literal("\\"), choice({one_of(letters), sequence({literal("u"), code})})})});
  });
}

ExprPtr JsonRules::string(int64_t min, int64_t max) {
  return sequence({literal("\""), repeat(any_character(), min, max), literal("\"")});
}

ExprPtr JsonRules::any_value(int depth) {
  const std::string name = "any" + std::to_string(depth);
  return named(name.c_str(), [&] {
    std::vector<ExprPtr> parts = {string(), number_expr({}), literal("true"), literal("false"), literal("null")};
    if (depth > 0) {
      parts.push_back(object({.others = any_value(depth - 1)}));
      parts.push_back(array({.others = any_value(depth - 1)}));
    }
    return choice(std::move(parts));
  });
}

ExprPtr JsonRules::member(const Member& one) {
  return sequence({literal(json_text(one.name)), space(), literal(":"), space(), one.value});
}

// Of what is left of the known names from `at` on: a name that is none of them. It has no escapes.
ExprPtr JsonRules::other_name(std::vector<std::u32string> names, size_t at) {
  std::map<char32_t, std::vector<std::u32string>> next;
  bool ends_here = false;
  for (std::u32string& name : names) {
    if (name.size() == at) {
      ends_here = true;
    } else {
      next[name[at]].push_back(std::move(name));
    }
  }
  CodePoints others = complement(plain());
  std::vector<ExprPtr> parts;
  for (auto& [c, rest] : next) {
    others.emplace_back(c, c);
    const CodePoints allowed = intersection({{c, c}}, plain());
    if (!allowed.empty()) parts.push_back(sequence({one_of(allowed), other_name(std::move(rest), at + 1)}));
  }
  parts.push_back(sequence({one_of(complement(std::move(others))), repeat(one_of(plain()), 0, kMaxOtherName)}));
  if (!ends_here) parts.push_back(sequence({}));
  return choice(std::move(parts));
}

ExprPtr JsonRules::other_member(const ObjectShape& shape) {
  std::vector<std::u32string> names;
  for (const Member& known : shape.members) {
    if (known.name.size() > kMaxKnownName) refuse_schema("additionalProperties", "a name beside it is too long");
    names.push_back(code_points(known.name));
  }
  const size_t index = rules_.add("member");
  rules_.set(index, sequence({literal("\""), other_name(std::move(names), 0), literal("\""), space(), literal(":"),
                              space(), shape.others}));
  return rule(index);
}

// Without a count: once a member is there, each further one brings its comma.
ExprPtr JsonRules::open_members(const ObjectShape& shape) {
  const size_t count = shape.members.size();
  ExprPtr rest = sequence({});
  std::vector<ExprPtr> starts;  // a text that begins with this member, from the last on
  if (shape.others) {
    const ExprPtr other = other_member(shape);
    rest = repeat(sequence({separator(), other}), 0, kNoMax);
    starts.push_back(sequence({other, rest}));
  }
  size_t required = count;  // the first one that must be there
  for (size_t i = count; i-- > 0;) {
    if (shape.members[i].required) required = i;
  }
  for (size_t i = count; i-- > 0;) {
    const Member& one = shape.members[i];
    const ExprPtr text = member(one);
    if (i <= required) starts.push_back(sequence({text, rest}));
    if (i == 0) break;
    const ExprPtr more = sequence({separator(), text});
    const size_t index = rules_.add("rest");
    rules_.set(index, sequence({one.required ? more : optional(more), rest}));
    rest = rule(index);
  }
  if (required < count) {
    // Those that begin before it or with it; what follows it begins with none.
    starts.erase(starts.begin(), starts.end() - static_cast<ptrdiff_t>(required) - 1);
  } else {
    starts.push_back(sequence({}));
  }
  return choice(std::move(starts));
}

// With a count: a rule for each member and count of those before it. Members of unknown names may repeat one name, so
// that they count as one at least.
ExprPtr JsonRules::counted_members(const ObjectShape& shape) {
  const auto count = static_cast<int64_t>(shape.members.size());
  const int64_t top = std::max(shape.min, shape.max == kNoMax ? 0 : std::min(shape.max, count + 1));
  if ((top + 1) * (count + 1) > kMaxCounted) refuse_schema("minProperties", "too many combinations");
  const bool by_others = shape.others != nullptr && shape.min > count + 1;
  if (by_others) refuse_schema("minProperties", "unknown names may repeat, so only known ones count, and one more");
  const ExprPtr other = shape.others ? other_member(shape) : never();
  std::vector<ExprPtr> after(top + 2,
                             never());  // by the count so far; `top` stands for all above where there is no max
  for (int64_t c = 0; c <= top; ++c) {
    std::vector<ExprPtr> parts;
    if (c >= shape.min) parts.push_back(sequence({}));
    const int64_t left = shape.max == kNoMax ? kNoMax : shape.max - c;
    if (left != 0 && c + 1 >= shape.min) {
      const ExprPtr more = repeat(sequence({separator(), other}), 0, left == kNoMax ? kNoMax : left - 1);
      parts.push_back(sequence({c > 0 ? separator() : sequence({}), other, more}));
    }
    after[c] = choice(std::move(parts));
  }
  for (int64_t i = count; i-- > 0;) {
    const Member& one = shape.members[i];
    std::vector<ExprPtr> here(top + 2, never());
    for (int64_t c = 0; c <= std::min(top, i); ++c) {
      std::vector<ExprPtr> parts;
      const bool may = shape.max == kNoMax || c < shape.max;
      const int64_t next = std::min(c + 1, top);
      if (may) parts.push_back(sequence({c > 0 ? separator() : sequence({}), member(one), after[next]}));
      if (!one.required) parts.push_back(after[c]);
      const size_t index = rules_.add("members", choice(std::move(parts)));
      here[c] = rule(index);
    }
    after = std::move(here);
  }
  return after[0];
}

ExprPtr JsonRules::object(const ObjectShape& shape) {
  const bool counted = shape.min > 0 || shape.max != kNoMax;
  if (rules_.size() > kMaxJsonRules) refuse_schema("schema", "too large once its parts are merged");
  const ExprPtr members = counted ? counted_members(shape) : open_members(shape);
  return sequence({literal("{"), space(), members, space(), literal("}")});
}

ExprPtr JsonRules::array(const ArrayShape& shape) {
  if (rules_.size() > kMaxJsonRules) refuse_schema("schema", "too large once its parts are merged");
  const auto first = static_cast<int64_t>(shape.first.size());
  const ExprPtr other = shape.others ? shape.others : never();
  if (shape.max != kNoMax && shape.max < shape.min) return never();
  // What follows `i` elements, from the end on.
  const auto left = [&](int64_t i) { return shape.max == kNoMax ? kNoMax : std::max<int64_t>(shape.max - i, 0); };
  const auto needed = [&](int64_t i) { return std::max<int64_t>(shape.min - i, 0); };
  ExprPtr rest;
  if (first == 0) {
    const int64_t max = left(1);
    const ExprPtr some = sequence({other, repeat(sequence({separator(), other}), needed(1), max)});
    rest = shape.max == 0 ? sequence({}) : shape.min == 0 ? optional(some) : some;
  } else {
    rest = repeat(sequence({separator(), other}), needed(first), left(first));
    for (int64_t i = first; i-- > 0;) {
      if (left(i) == 0) {
        rest = sequence({});
        continue;
      }
      const ExprPtr some = sequence({i > 0 ? separator() : sequence({}), shape.first[i], rest});
      rest = needed(i) > 0 ? some : optional(some);
    }
  }
  return sequence({literal("["), space(), rest, space(), literal("]")});
}

}  // namespace hotswap::grammar
