// Tokenizer::from_pretrained, where the Hub and GGUF files are known.
#include "hotswap/tokenizers/tokenizer.h"

#include "hotswap/base/error.h"
#include "hotswap/models/formats/gguf_model.h"
#include "hotswap/models/model_folder.h"

namespace hotswap {

Tokenizer Tokenizer::from_pretrained(const std::filesystem::path& name, const TokenizerOptions& options) {
  const std::filesystem::path place = tokenizer_folder(name, options.revision, options.gguf_file);
  if (std::filesystem::is_regular_file(place / "tokenizer.json")) return from_folder(place);
  const bool is_file = std::filesystem::is_regular_file(place);
  if (is_file || options.gguf_file) {
    return from_vocabulary(vocabulary_from_gguf(GgufFile(is_file ? place : place / *options.gguf_file)));
  }
  if (std::filesystem::is_directory(place)) return from_folder(place);  // names what is there instead
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = cat("a folder with tokenizer.json, a .gguf file or org/name on the Hub as ", name.string()),
               .got = "no such folder or file",
               .next = "check the path; with weights in a GGUF file of that folder, name it as gguf_file"});
}

}  // namespace hotswap
