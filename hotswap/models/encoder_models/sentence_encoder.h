// Sentence embeddings: a folder of sentence-transformers, of which modules.json names the parts.
//
//   const auto encoder = SentenceEncoder::from_pretrained("models/all-MiniLM-L6-v2", {.use_kernels = true});
//   const Tensor vectors = encoder->encode({"A cat sleeps.", "A dog barks."});   // [2, 384] float32
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/models/encoder_models/text_model.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {

struct EncodeArguments {
  std::optional<std::string> prompt_name = std::nullopt;  // one of prompts(); unset: the model's default, if it has one
  std::optional<std::string> prompt = std::nullopt;       // instead, as it is
  std::optional<int64_t> dimensions = std::nullopt;       // the first elements of each vector, this many
  bool normalize_embeddings = false;                      // to length 1, after that
  bool truncate = true;                                   // false: Error for a text that is too long
};

class SentenceEncoder {
 public:
  // `name`: a folder, or org/name on the Hub. Without modules.json the vectors are means of the tokens', as
  // sentence-transformers has it.
  static std::shared_ptr<SentenceEncoder> from_pretrained(const std::filesystem::path& name,
                                                          const TextOptions& options = {});
  SentenceEncoder(std::shared_ptr<TextModel> model, Tokenizer tokenizer, const std::filesystem::path& folder);
  ~SentenceEncoder();

  // [texts, dimensions] float32 on the CPU. Texts that are too long are cut, as in sentence-transformers. Batches are
  // packed without padding, in the order of their lengths; on a CPU each of torch's threads runs one of its own. The
  // vector of a text may differ in its last bits with the texts beside it.
  Tensor encode(const std::vector<std::string>& texts, const EncodeArguments& arguments = {}) const;
  Tensor encode_ids(const std::vector<std::vector<int64_t>>& ids, const EncodeArguments& arguments = {}) const;
  // As encode() makes them: with the prompt, cut to max_seq_length().
  std::vector<std::vector<int64_t>> ids(const std::vector<std::string>& texts, const EncodeArguments& arguments) const;

  int64_t dimensions() const;      // of a vector
  bool normalizes() const;         // its vectors have length 1
  int64_t max_seq_length() const;  // tokens of a text, special ones included
  const std::map<std::string, std::string>& prompts() const { return prompts_; }
  std::string prompt_of(const EncodeArguments& arguments) const;  // Error where it names none of prompts()
  TextModel& model() const { return *model_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  struct Stages;  // what follows the model: pooling, dense layers, normalisation
  void check_lengths_of(const std::vector<std::vector<int64_t>>& ids) const;
  int64_t prompt_tokens(const std::string& prompt) const;
  std::shared_ptr<TextModel> model_;
  Tokenizer tokenizer_;
  std::unique_ptr<Stages> stages_;
  std::map<std::string, std::string> prompts_;
  std::optional<std::string> default_prompt_;
  int64_t max_seq_length_ = 0;
  bool lower_case_ = false;
};

}  // namespace hotswap
