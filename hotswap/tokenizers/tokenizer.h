// Text to ids and back, exactly as Hugging Face's tokenizers library does it for the same tokenizer.json.
//
//   const Tokenizer tokenizer = Tokenizer::from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct");
//   const std::vector<int64_t> ids = tokenizer.ids("Hello world");
//   const std::string text = tokenizer.decode(ids, /*skip_special_tokens=*/true);
//
// Models of the types BPE, WordPiece, WordLevel and Unigram. Whatever a file has and is not implemented is an Error
// when the file is read. The file's own "truncation" and "padding" are not applied unless they are passed, as in
// transformers:
//
//   tokenizer.encode_batch(texts, {.truncation = tokenizer.truncation(), .padding = tokenizer.padding()});
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hotswap/tokenizers/encode_options.h"
#include "hotswap/tokenizers/encoding.h"

namespace hotswap {

// The ids of the tokens with a role; none where the tokenizer has no such token.
struct SpecialIds {
  std::optional<int64_t> bos, eos, pad, unk;
};

struct GgufVocabulary;  // gguf_vocabulary.h

struct TokenizerOptions {
  std::optional<std::string> gguf_file = std::nullopt;  // of the folder, where that has no tokenizer.json
  std::string revision = "main";                        // branch, tag or commit of a model of the Hub
};

class Tokenizer {
 public:
  // A tokenizer.json alone: it does not say which tokens begin and end a text, so special_ids() is empty. Or Mistral's
  // tekken.json.
  static Tokenizer from_file(const std::filesystem::path& tokenizer_json);
  // Tokens and ranks of tiktoken. The file has neither the regular expression that cuts a text into words nor the
  // special tokens, whose ids follow the last rank.
  static Tokenizer from_tiktoken(const std::filesystem::path& file, const std::string& pattern,
                                 const std::vector<std::string>& special_tokens = {});
  // A model's folder: tokenizer.json, else tekken.json, and tokenizer_config.json or special_tokens_map.json for
  // special_ids().
  static Tokenizer from_folder(const std::filesystem::path& folder);
  // What AutoModelForCausalLM::from_pretrained takes: a folder, a .gguf file, or org/name on the Hub, of which the
  // tokenizer's files alone are fetched. Defined in models/tokenizer.cpp: this room knows neither the Hub nor GGUF
  // files.
  static Tokenizer from_pretrained(const std::filesystem::path& name, const TokenizerOptions& options = {});
  // The text of a tokenizer.json; `where` is what errors call it.
  static Tokenizer from_json(std::string_view text, const std::string& where);
  // The vocabulary of a GGUF file.
  static Tokenizer from_vocabulary(const GgufVocabulary& vocabulary);

  // The text must be UTF-8. Special tokens that stand in it are recognised; add_special_tokens: the post-processor
  // adds its own. May be called from many threads at once.
  Encoding encode(std::string_view text, bool add_special_tokens = true) const;
  Encoding encode_pair(std::string_view first, std::string_view second, bool add_special_tokens = true) const;
  std::vector<int64_t> ids(std::string_view text, bool add_special_tokens = true) const;  // faster than encode()

  Encoding encode(std::string_view text, const EncodeOptions& options) const;
  Encoding encode_pair(std::string_view first, std::string_view second, const EncodeOptions& options) const;
  // Many texts, or pairs of texts, on several threads; the results are in the order of the texts. The first error of a
  // text ends the batch.
  using TextPair = std::pair<std::string_view, std::string_view>;
  std::vector<Encoding> encode_batch(std::span<const std::string_view> texts, const EncodeOptions& options = {}) const;
  std::vector<Encoding> encode_batch(std::span<const TextPair> pairs, const EncodeOptions& options = {}) const;

  // Ids that are no token, but may be rows of a padded embedding, are left out, as in the library; negative ones are
  // an Error.
  std::string decode(std::span<const int64_t> ids, bool skip_special_tokens = false) const;

  std::optional<int64_t> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(int64_t id) const;
  bool is_special(int64_t id) const;  // left out by decode(ids, true)
  size_t vocab_size() const;          // added tokens included
  const SpecialIds& special_ids() const;
  // Of the file; none where it has none.
  const std::optional<Truncation>& truncation() const;
  const std::optional<Padding>& padding() const;

  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

 private:
  friend class StreamDecoder;
  using Texts = std::span<const std::string_view>;  // one or two
  class Scratch;                                    // of one thread
  Encoding encode_text(std::string_view text, bool ids_only, const Scratch& scratch) const;
  Encoding encode_unpadded(Texts texts, const EncodeOptions& options, const Scratch& scratch) const;
  Encoding encode_padded(Texts texts, const EncodeOptions& options) const;
  using EncodeOne = std::function<Encoding(size_t, const Scratch&)>;
  std::vector<Encoding> encode_many(size_t count, const EncodeOne& encode_one, const EncodeOptions& options) const;

  std::shared_ptr<const Parts> parts_;
};

}  // namespace hotswap
