#include "hotswap/models/tokenizer_files.h"

#include "hotswap/base/file.h"

namespace hotswap {

void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                           "vocab.json", "merges.txt", "chat_template.jinja", "tokenizer.model"}) {
    if (std::filesystem::is_regular_file(from / name)) write_file(to / name, read_file(from / name));
  }
}

}  // namespace hotswap
