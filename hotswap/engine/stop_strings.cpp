#include "hotswap/engine/stop_strings.h"

#include <algorithm>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

// A token has at least a byte of the text. So many more, so that what a decoder does to a text's first token is not
// done to a text that is looked for.
constexpr size_t kSpare = 8;

void keep_last(std::vector<int64_t>& ids, size_t count) {
  if (ids.size() > count) ids.erase(ids.begin(), ids.end() - static_cast<ptrdiff_t>(count));
}

}  // namespace

StopStrings::StopStrings(const Tokenizer& tokenizer, std::vector<std::string> texts,
                         std::vector<std::vector<int64_t>> rows)
    : tokenizer_(tokenizer), texts_(std::move(texts)), last_(std::move(rows)) {
  for (const std::string& text : texts_) {
    if (text.empty()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "stop_strings that are not empty",
                   .got = "an empty one",
                   .next = "remove it, or give the text that ends a sequence"});
    }
    enough_ = std::max(enough_, text.size() + kSpare);
  }
  for (auto& row : last_) keep_last(row, enough_);
}

bool StopStrings::end(size_t row, int64_t token) {
  std::vector<int64_t>& ids = last_[row];
  const std::string before = tokenizer_.decode(ids);
  ids.push_back(token);
  const std::string now = tokenizer_.decode(ids);
  keep_last(ids, enough_);
  // Bytes that the token completes may be another character than they were.
  const auto parting = std::mismatch(before.begin(), before.end(), now.begin(), now.end()).second - now.begin();
  const auto old = static_cast<size_t>(parting);
  return std::any_of(texts_.begin(), texts_.end(), [&](const std::string& text) {
    const size_t from = old + 1 > text.size() ? old + 1 - text.size() : 0;
    return now.find(text, from) != std::string::npos;
  });
}

}  // namespace hotswap
