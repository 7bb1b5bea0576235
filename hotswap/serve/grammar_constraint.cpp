#include "hotswap/serve/grammar_constraint.h"

#include <algorithm>
#include <string_view>

#include "hotswap/base/error.h"
#include "hotswap/serve/message_part.h"

namespace hotswap::serve {

void GrammarConstraint::allowed(std::span<int32_t> words) {
  if (!thinking_) return matcher_->allowed(words);
  std::fill(words.begin(), words.end(), -1);
  for (const int64_t id : ends_) {
    const auto word = static_cast<size_t>(id / 32);
    if (id >= 0 && word < words.size()) words[word] &= ~static_cast<int32_t>(1u << (id % 32));
  }
}

void GrammarConstraint::accept(int64_t id) {
  if (thinking_) {
    recent_ += thoughts_.push(id);
    thinking_ = recent_.find(kThinkClose) == std::string::npos;
    const size_t kept = std::string_view(kThinkClose).size();
    if (recent_.size() > kept) recent_.erase(0, recent_.size() - kept);
    return;
  }
  if (matcher_->accept(id)) return;
  throw Error({.kind = ErrorKind::kInternal,
               .wanted = "a token that the grammar allows",
               .got = cat("token ", id),
               .next = "this is a fault of hotswap: please report it, with the request"});
}

}  // namespace hotswap::serve
