#include "hotswap/tokenizers/word_level.h"

namespace hotswap::tokenizers {

WordLevel::WordLevel(std::vector<std::pair<std::string, int64_t>> vocabulary, std::string unknown_token,
                     std::string where)
    : Model(Vocabulary(std::move(vocabulary), where + ".vocab")),
      unknown_token_(std::move(unknown_token)),
      where_(std::move(where)) {}

void WordLevel::encode(std::string_view word, bool, Scratch&, std::vector<Symbol>& out) const {
  int32_t id = vocabulary().find(word);
  if (id < 0) id = id_of_unknown(unknown_token_, where_);
  out.push_back({id, static_cast<uint32_t>(word.size())});
}

}  // namespace hotswap::tokenizers
