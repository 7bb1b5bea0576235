#include "hotswap/base/toml.h"

#include <limits>
#include <map>
#include <sstream>
#include <toml.hpp>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

using Node = nlohmann::ordered_json;
constexpr size_t kMaxBytes = 1 << 20;

[[noreturn]] void refuse(const std::string& where, const std::string& got) {
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("valid TOML in ", where),
               .got = got,
               .next = "correct the line that the message names"});
}

// Where the string that opens at text[at] ends, or the end of the text.
size_t after_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool lines = text.substr(at, 3) == three;
  for (size_t i = at + (lines ? 3 : 1); i < text.size(); ++i) {
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (lines ? text.substr(i, 3) == three : text[i] == quote || text[i] == '\n') {
      return i + (lines ? 3 : 1);
    }
  }
  return text.size();
}

// The library recurses once per bracket and once per part of a dotted key, without a bound of its own.
void check_nesting(std::string_view text, const std::string& where) {
  int brackets = 0, dots = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      i = after_string(text, i);
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (c == '[' || c == '{') ++brackets;
    if (c == ']' || c == '}') --brackets;
    dots = c == '.' ? dots + 1 : c == '\n' || c == '=' || c == ',' ? 0 : dots;
    if (brackets > kMaxNesting || dots > kMaxNesting) refuse(where, cat("nesting deeper than ", kMaxNesting));
    ++i;
  }
}

Node tree_of(const toml::value& value, const std::string& where) {
  if (value.is_table()) {
    std::map<std::string, Node> sorted;  // the library's own order is that of a hash
    for (const auto& [key, member] : value.as_table()) sorted.emplace(key, tree_of(member, where));
    Node object = Node::object();
    for (auto& [key, member] : sorted) object[key] = std::move(member);
    return object;
  }
  if (value.is_array()) {
    Node list = Node::array();
    for (const auto& element : value.as_array()) list.push_back(tree_of(element, where));
    return list;
  }
  if (value.is_string()) return toml::get<std::string>(value);
  if (value.is_integer()) {  // what does not fit, the library turns into the nearest number that does
    const int64_t number = value.as_integer();
    using Limits = std::numeric_limits<int64_t>;
    if (number == Limits::max() || number == Limits::min()) refuse(where, "an integer beyond 64 bits");
    return number;
  }
  if (value.is_floating()) return value.as_floating();
  if (value.is_boolean()) return value.as_boolean();
  std::ostringstream text;  // a date or a time
  text << value;
  return text.str();
}

// The library's messages are pictures of several lines: what is wrong stands in the first, where in the one with a '|'.
std::string message_of(const std::string& what) {
  std::istringstream lines(what);
  std::string first, line;
  std::getline(lines, first);
  if (first.rfind("[error] ", 0) == 0) first.erase(0, 8);
  while (std::getline(lines, line)) {
    const size_t bar = line.find(" | ");
    const size_t digit = line.find_first_of("0123456789");
    if (bar != line.npos && digit < bar) {
      return cat(first, " at line ", line.substr(digit, line.find_first_not_of("0123456789", digit) - digit));
    }
  }
  return first;
}

}  // namespace

Node parse_toml(std::string_view text, const std::string& where) {
  if (text.size() > kMaxBytes) refuse(where, cat(text.size(), " bytes; at most ", kMaxBytes, " are read"));
  check_nesting(text, where);
  try {
    (void)Node(text).dump();  // throws where the text is not UTF-8, which TOML must be
    std::istringstream stream{std::string(text)};
    return tree_of(toml::parse(stream, where), where);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {  // whatever of its own or the standard library's it throws at bad text
    refuse(where, message_of(e.what()));
  }
}

}  // namespace hotswap
