#include "hotswap/grammar/token_bytes.h"

#include <algorithm>

#include "hotswap/tokenizers/byte_level.h"
#include "hotswap/tokenizers/decoder.h"

namespace hotswap::grammar {

TokenTexts::TokenTexts(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer),
      before_(tokenizer.ids("a", /*add_special_tokens=*/false)),
      run_up_(tokenizer.decode(before_)) {}

TokenText TokenTexts::of(int64_t id) const {
  std::vector<int64_t> both = before_;
  both.push_back(id);
  const std::string text = tokenizer_.decode(both);
  TokenText out;
  if (text.starts_with(run_up_)) out.text = text.substr(run_up_.size());
  out.bytes = out.text;
  if (out.text.find("\uFFFD") == std::string::npos) return out;
  const std::string token = tokenizer_.id_to_token(id).value_or("");
  const int byte = tokenizers::byte_of_fallback_token(token);
  if (byte >= 0) {
    out.bytes = std::string(1, static_cast<char>(byte));
  } else if (const auto bytes = tokenizers::bytes_of_token(token)) {
    out.bytes = *bytes;
  }
  return out;
}

TokenBytes token_bytes(const Tokenizer& tokenizer, int64_t vocab, std::vector<int64_t> ends,
                       const std::set<int64_t>& shown) {
  TokenBytes out{.bytes = std::vector<std::string>(static_cast<size_t>(vocab)), .ends = std::move(ends)};
  std::erase_if(out.ends, [&](int64_t id) { return id < 0 || id >= vocab; });
  const TokenTexts texts(tokenizer);
  for (int64_t id = 0; id < vocab; ++id) {
    const bool is_end = std::find(out.ends.begin(), out.ends.end(), id) != out.ends.end();
    if (is_end || !tokenizer.id_to_token(id) || (tokenizer.is_special(id) && !shown.contains(id))) continue;
    out.bytes[id] = texts.of(id).bytes;
  }
  return out;
}

}  // namespace hotswap::grammar
