// Tokenizer::from_pretrained, where the Hub and GGUF files are known.
#include "hotswap/tokenizers/tokenizer.h"

#include "hotswap/base/error.h"
#include "hotswap/models/formats/gguf_model.h"
#include "hotswap/models/formats/no_model.h"
#include "hotswap/models/model_folder.h"

namespace hotswap {

Tokenizer Tokenizer::from_pretrained(const std::filesystem::path& name, const TokenizerOptions& options) {
  const std::filesystem::path source = tokenizer_folder(name, options.revision, options.gguf_file);
  if (std::filesystem::is_regular_file(source / "tokenizer.json")) return from_folder(source);
  if (!options.gguf_file) refuse_no_model(source);
  const bool is_file = std::filesystem::is_regular_file(source);
  if (is_file || options.gguf_file) {
    return from_vocabulary(vocabulary_from_gguf(GgufFile(is_file ? source : source / *options.gguf_file)));
  }
  if (std::filesystem::is_directory(source)) return from_folder(source);  // names what is there instead
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = cat("a folder with tokenizer.json, a .gguf file or org/name on the Hub as ", name.string()),
               .got = "no such folder or file",
               .next = "check the path; with weights in a GGUF file of that folder, name it as gguf_file"});
}

}  // namespace hotswap
