#include "hotswap/hub/serve/request.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

int hex_value(char c) {
  return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1,
              low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
    if (high < 0 || low < 0) throw Refused{400, "", "a broken percent escape in the address"};
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

// In a query, unlike in a path, '+' is a blank.
std::string decoded_value(std::string_view text) {
  std::string blanks(text);
  std::replace(blanks.begin(), blanks.end(), '+', ' ');
  return decoded(blanks);
}

}  // namespace

std::string Target::value(const std::string& key) const {
  const auto found = query.find(key);
  return found == query.end() ? "" : found->second;
}

bool Target::flag(const std::string& key) const {
  const std::string given = value(key);
  return given == "true" || given == "True" || given == "1";
}

std::string Target::joined(size_t from) const {
  const auto start = parts.begin() + static_cast<ptrdiff_t>(std::min(from, parts.size()));
  return join(std::vector<std::string>(start, parts.end()), "/");
}

Query parse_query(std::string_view text) {
  Query query;
  for (const std::string& pair : split(text, '&')) {
    if (pair.empty()) continue;
    const size_t equals = std::min(pair.find('='), pair.size());
    query.emplace(decoded_value(std::string_view(pair).substr(0, equals)),
                  decoded_value(std::string_view(pair).substr(std::min(equals + 1, pair.size()))));
  }
  return query;
}

Target parse_target(std::string_view text) {
  Target target;
  const size_t mark = std::min(text.find('?'), text.size());
  for (const std::string& part : split(text.substr(0, mark), '/')) target.parts.push_back(decoded(part));
  target.parts.erase(target.parts.begin());  // before the first slash
  target.query = parse_query(text.substr(std::min(mark + 1, text.size())));
  return target;
}

std::optional<RepoType> type_named(const std::string& name) {
  for (const RepoType type : {RepoType::kModel, RepoType::kDataset, RepoType::kSpace, RepoType::kKernel}) {
    if (name == plural(type)) return type;
  }
  return std::nullopt;
}

ByteRange range_of(const std::string& header, int64_t size) {
  ByteRange whole{.first = 0, .last = size - 1};
  if (header.rfind("bytes=", 0) != 0 || header.find(',') != std::string::npos) return whole;
  const std::string_view spec = std::string_view(header).substr(6);
  const size_t dash = spec.find('-');
  if (dash == std::string_view::npos) return whole;
  const auto number = [](std::string_view digits, int64_t& value) {
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return !digits.empty() && code == std::errc() && end == digits.data() + digits.size() && value >= 0;
  };
  ByteRange some{.partial = true};
  if (dash == 0) {  // the last N bytes
    int64_t count = 0;
    if (!number(spec.substr(1), count)) return whole;
    some.first = std::max<int64_t>(0, size - count);
    some.last = size - 1;
    if (count == 0) some.first = size;
  } else {
    if (!number(spec.substr(0, dash), some.first)) return whole;
    some.last = size - 1;
    if (dash + 1 < spec.size() && !number(spec.substr(dash + 1), some.last)) return whole;
    some.last = std::min(some.last, size - 1);
  }
  if (some.first >= size || some.last < some.first) throw Refused{416, "", cat("bytes */", size)};
  return some;
}

bool names_etag(std::string_view list, const std::string& etag) {
  for (const std::string& item : split(list, ',')) {
    std::string_view tag = trim(item);
    if (tag == "*") return true;
    if (tag.rfind("W/", 0) == 0) tag.remove_prefix(2);
    if (tag == cat('"', etag, '"')) return true;
  }
  return false;
}

std::vector<std::string> asked_paths(const std::string& body, std::string_view content_type) {
  std::vector<std::string> paths;
  if (content_type.rfind("application/json", 0) != 0) {
    const Query form = parse_query(body);
    for (auto [at, end] = form.equal_range("paths"); at != end; ++at) paths.push_back(at->second);
    return paths;
  }
  const auto asked = nlohmann::json::parse(body, nullptr, false);
  if (!asked.is_object() || !asked.contains("paths")) throw Refused{400, "", "expected {\"paths\": [...]}"};
  const nlohmann::json& given = asked["paths"];
  for (const nlohmann::json& path : given.is_array() ? given : nlohmann::json::array({given})) {
    if (!path.is_string()) throw Refused{400, "", "expected {\"paths\": [...]} of strings"};
    paths.push_back(path.get<std::string>());
  }
  return paths;
}

}  // namespace hotswap
