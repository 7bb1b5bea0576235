#include "hotswap/tokenizers/model.h"

#include "hotswap/base/error.h"

namespace hotswap::tokenizers {

int32_t Model::id_of_unknown(const std::string& unknown_token, const std::string& where) const {
  const int32_t id = vocabulary_.find(unknown_token);
  if (id < 0) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("a vocabulary that has its own unk_token at ", where),
                 .got = cat("'", unknown_token, "', which is not a token, and a text with an unknown word"),
                 .next = "add the unk_token to the vocabulary, or set unk_token to one that is there"});
  }
  return id;
}

}  // namespace hotswap::tokenizers
