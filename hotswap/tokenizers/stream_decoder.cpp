#include "hotswap/tokenizers/stream_decoder.h"

#include "hotswap/base/error.h"
#include "hotswap/tokenizers/tokenizer_impl.h"

namespace hotswap {
namespace {

// Decoding looks at its first token in a special way (a leading blank goes), so some tokens stay as a run-up.
constexpr size_t kRunUp = 8;
constexpr size_t kMaxHeldTokens = 32;

// The text without replacement characters at its end: they may be the beginning of a character.
size_t certain_size(std::string_view text) {
  constexpr std::string_view kReplacement = "\uFFFD";
  while (text.size() >= kReplacement.size() && text.substr(text.size() - kReplacement.size()) == kReplacement) {
    text.remove_suffix(kReplacement.size());
  }
  return text.size();
}

}  // namespace

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens, std::span<const int64_t> before)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {
  const auto& decoder = tokenizer_.parts_->decoder;
  byte_runs_ = decoder && decoder->byte_runs();
  trims_end_ = decoder && decoder->trims_end();
  for (const int64_t id : before) {
    if (tokenizer_.id_to_token(id) && !(skip_special_tokens_ && tokenizer_.is_special(id))) ids_.push_back(id);
  }
  if (ids_.size() > kRunUp) ids_.erase(ids_.begin(), ids_.end() - kRunUp);
  given_ = certain_size(tokenizer_.decode(ids_));
}

std::string StreamDecoder::push(int64_t id) {
  const auto token = tokenizer_.id_to_token(id);
  if (id >= 0 && (!token || (skip_special_tokens_ && tokenizer_.is_special(id)))) return "";
  ids_.push_back(id);
  if (trims_end_ || (byte_runs_ && token && tokenizers::byte_of_fallback_token(*token) >= 0)) return "";
  const std::string text = tokenizer_.decode(ids_);
  const size_t certain = certain_size(text);
  if (certain <= given_) return "";
  std::string out = text.substr(given_, certain - given_);
  given_ = certain;
  if (ids_.size() >= kMaxHeldTokens && certain == text.size()) {
    const std::vector<int64_t> kept(ids_.end() - kRunUp, ids_.end());
    const std::string run_up = tokenizer_.decode(kept);
    if (!run_up.empty()) {
      ids_ = kept;
      given_ = run_up.size();
    }
  }
  return out;
}

std::string StreamDecoder::finish() {
  const std::string text = tokenizer_.decode(ids_);
  std::string rest = text.size() > given_ ? text.substr(given_) : "";
  ids_.clear();
  given_ = 0;
  return rest;
}

}  // namespace hotswap
