#include "hotswap/kernelize/package/capabilities.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/text.h"

namespace hotswap {
namespace {

// The positive number that all of the text is; 0: it is none.
int64_t number_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0 ? value : 0;
}

}  // namespace

void Numbers::add(const Json& entry) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr std::string_view kMultiple = "multiple of ";
  const std::string text = entry.is_string() ? entry.as<std::string>() : std::to_string(entry.as<int64_t>());
  entries_.push_back(text);
  const auto sides = [&](char between) {
    const size_t at = std::min(text.find(between), text.size() - 1);
    return std::pair(number_of(std::string_view(text).substr(0, at)), number_of(std::string_view(text).substr(at + 1)));
  };
  if (const int64_t one = number_of(text); one > 0) {
    ranges_.push_back({one, one, 1});
  } else if (const int64_t step = text.starts_with(kMultiple) ? number_of(text.substr(kMultiple.size())) : 0;
             step > 0) {
    ranges_.push_back({step, kMax, step});
  } else if (const auto [first, last] = sides('-'); first > 0 && first <= last) {
    ranges_.push_back({first, last, 1});
  } else if (const auto pair = sides('/'); pair.first > 0 && pair.second > 0) {
    pairs_.insert(pair);
  } else {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("64, \"80-128\", \"multiple of 16\" or the pair \"192/128\" at ", entry.where()),
                 .got = "'" + shown(text) + "'",
                 .next = "rebuild the package"});
  }
}

bool Numbers::has(const std::vector<int64_t>& wanted) const {
  if (wanted.size() == 2 && wanted[0] != wanted[1]) return pairs_.contains({wanted[0], wanted[1]});
  return !wanted.empty() && std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
    return range.first <= wanted[0] && wanted[0] <= range.last && (wanted[0] - range.first) % range.step == 0;
  });
}

}  // namespace hotswap
