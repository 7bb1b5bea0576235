#include "hotswap/grammar/rules.h"

#include <algorithm>

#include "hotswap/base/error.h"

namespace hotswap::grammar {
namespace {

using Kind = Expr::Kind;

bool is_never(const ExprPtr& e) { return e->kind == Kind::kChoice && e->parts.empty(); }
bool is_empty(const ExprPtr& e) { return e->kind == Kind::kSequence && e->parts.empty(); }

ExprPtr make(Expr expr) { return std::make_shared<const Expr>(std::move(expr)); }

std::string hex(uint32_t value, int digits) {
  std::string out;
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) out += "0123456789abcdef"[value >> shift & 15];
  return out;
}

std::string escaped(char32_t c, std::string_view special) {
  if (c < 0x80 && special.find(static_cast<char>(c)) != std::string_view::npos)
    return std::string("\\") + static_cast<char>(c);
  if (c < 0x20 || c == 0x7F) return "\\x" + hex(c, 2);
  if (c < 0x7F) return std::string(1, static_cast<char>(c));
  return c <= 0xFFFF ? "\\u" + hex(c, 4) : "\\U" + hex(c, 8);
}

std::string printed_literal(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x80 ? escaped(byte, "\"\\") : std::string(1, c);
  }
  return out + "\"";
}

std::string printed_class(const CodePoints& ranges) {
  std::string out = "[";
  for (const auto& [first, last] : ranges) {
    out += escaped(first, "\\]^-[");
    if (last != first) out += "-" + escaped(last, "\\]^-[");
  }
  return out + "]";
}

// Without what cannot match; the rules' names stand for them.
class Printer {
 public:
  Printer(const std::vector<bool>& matchable, const std::vector<std::string>& names)
      : matchable_(matchable), names_(names) {}
  bool can_match(const ExprPtr& e) const {
    const auto can = [&](const ExprPtr& part) { return can_match(part); };
    switch (e->kind) {
      case Kind::kRule:
        return matchable_[e->rule];
      case Kind::kSequence:
        return std::all_of(e->parts.begin(), e->parts.end(), can);
      case Kind::kChoice:
        return std::any_of(e->parts.begin(), e->parts.end(), can);
      case Kind::kRepeat:
        return e->min == 0 || can_match(e->parts[0]);
      default:
        return true;
    }
  }
  std::string text(const ExprPtr& e, bool inside = false) const {
    switch (e->kind) {
      case Kind::kLiteral:
        return printed_literal(e->literal);
      case Kind::kClass:
        return printed_class(e->ranges);
      case Kind::kRule:
        return names_[e->rule];
      case Kind::kSequence:
        return joined(e, " ", inside);
      case Kind::kChoice:
        return joined(e, " | ", inside);
      case Kind::kRepeat:
        break;
    }
    if (!can_match(e->parts[0]) || e->max == 0) return "\"\"";
    const std::string count = e->max == kNoMax   ? e->min == 0   ? "*"
                                                   : e->min == 1 ? "+"
                                                                 : cat("{", e->min, ",}")
                                : e->max == e->min ? cat("{", e->min, "}")
                                                 : cat("{", e->min, ",", e->max, "}");
    return text(e->parts[0], true) + count;
  }

 private:
  std::string joined(const ExprPtr& e, const char* between, bool inside) const {
    std::vector<std::string> texts;
    for (const ExprPtr& part : e->parts) {
      if (e->kind == Kind::kSequence || can_match(part)) texts.push_back(text(part, true));
    }
    if (texts.empty()) return "\"\"";
    if (texts.size() == 1) return texts[0];
    return inside ? "(" + join(texts, between) + ")" : join(texts, between);
  }
  const std::vector<bool>& matchable_;
  const std::vector<std::string>& names_;
};

}  // namespace

ExprPtr literal(std::string_view utf8) {
  if (utf8.empty()) return sequence({});
  return make({.kind = Kind::kLiteral, .literal = std::string(utf8)});
}

ExprPtr one_of(CodePoints ranges) {
  CodePoints kept;
  for (const auto& [first, last] : merged(std::move(ranges))) {
    if (first < 0xD800) kept.emplace_back(first, std::min<char32_t>(last, 0xD7FF));
    if (last > 0xDFFF) kept.emplace_back(std::max<char32_t>(first, 0xE000), last);
  }
  return kept.empty() ? never() : make({.kind = Kind::kClass, .ranges = std::move(kept)});
}

ExprPtr rule(size_t index) { return make({.kind = Kind::kRule, .rule = index}); }

ExprPtr sequence(std::vector<ExprPtr> parts) {
  std::erase_if(parts, is_empty);
  if (std::any_of(parts.begin(), parts.end(), is_never)) return never();
  return parts.size() == 1 ? parts[0] : make({.kind = Kind::kSequence, .parts = std::move(parts)});
}

ExprPtr choice(std::vector<ExprPtr> parts) {
  std::erase_if(parts, is_never);
  return parts.size() == 1 ? parts[0] : make({.kind = Kind::kChoice, .parts = std::move(parts)});
}

ExprPtr repeat(ExprPtr part, int64_t min, int64_t max) {
  if (max != kNoMax && max < min) return never();
  if (is_never(part)) return min == 0 ? sequence({}) : never();
  if (max == 0 || is_empty(part)) return sequence({});
  if (min == 1 && max == 1) return part;
  return make({.kind = Kind::kRepeat, .parts = {std::move(part)}, .min = min, .max = max});
}

ExprPtr optional(ExprPtr part) { return repeat(std::move(part), 0, 1); }

ExprPtr never() { return make({.kind = Kind::kChoice}); }

CodePoints merged(CodePoints ranges) {
  std::sort(ranges.begin(), ranges.end());
  CodePoints out;
  for (const auto& [first, last] : ranges) {
    if (first > last) continue;
    if (!out.empty() && first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, last);
    } else {
      out.emplace_back(first, last);
    }
  }
  return out;
}

CodePoints complement(CodePoints ranges) {
  CodePoints out;
  char32_t next = 0;
  for (const auto& [first, last] : merged(std::move(ranges))) {
    if (first > next) out.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCodePoint) out.emplace_back(next, kLastCodePoint);
  return out;
}

size_t Rules::add(std::string name, ExprPtr expr) {
  rules_.push_back({cat(name, "_", rules_.size()), std::move(expr)});
  return rules_.size() - 1;
}

// Which rules some text matches: a fixed point from below.
std::vector<bool> Rules::matchable() const {
  std::vector<bool> known(rules_.size());
  const std::vector<std::string> no_names;
  for (bool grew = true; grew;) {
    grew = false;
    for (size_t i = rules_.size(); i-- > 0;) {  // a rule's parts follow it as a rule
      if (known[i] || !rules_[i].expr || !Printer(known, no_names).can_match(rules_[i].expr)) continue;
      known[i] = grew = true;
    }
  }
  return known;
}

std::string Rules::print(const ExprPtr& root) const {
  const std::vector<bool> known = matchable();
  std::vector<std::string> names;
  for (const Rule& one : rules_) names.push_back(one.name);
  const Printer printer(known, names);
  if (!printer.can_match(root)) return "";
  std::string out = "root ::= " + printer.text(root) + "\n";
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (known[i]) out += names[i] + " ::= " + printer.text(rules_[i].expr) + "\n";
  }
  return out;
}

}  // namespace hotswap::grammar
