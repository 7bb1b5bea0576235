// ChatTemplate::from_pretrained, where the Hub and GGUF files are known.
#include "hotswap/chat/chat_template.h"

#include "hotswap/models/formats/gguf_model.h"
#include "hotswap/models/formats/no_model.h"
#include "hotswap/models/model_folder.h"

namespace hotswap {
namespace {

std::optional<ChatTemplate> find_in_gguf(const std::filesystem::path& path) {
  const GgufFile file(path);
  const auto source = chat_template_from_gguf(file);
  if (!source) return std::nullopt;
  const GgufVocabulary vocabulary = vocabulary_from_gguf(file);
  const Tokenizer tokenizer = Tokenizer::from_vocabulary(vocabulary);
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  const SpecialIds& special = tokenizer.special_ids();
  const std::pair<const char*, std::optional<int64_t>> roles[] = {
      {"bos_token", special.bos}, {"eos_token", special.eos}, {"unk_token", special.unk}, {"pad_token", special.pad}};
  for (const auto& [name, id] : roles) {
    if (id) variables[name] = tokenizer.id_to_token(*id).value_or("");
  }
  return ChatTemplate({{"default", *source}}, std::move(variables));
}

}  // namespace

std::optional<ChatTemplate> ChatTemplate::find_pretrained(const std::filesystem::path& name,
                                                          const TokenizerOptions& options) {
  const std::filesystem::path place = tokenizer_folder(name, options.revision, options.gguf_file);
  if (std::filesystem::is_regular_file(place)) return find_in_gguf(place);
  const bool in_gguf = options.gguf_file && !std::filesystem::is_regular_file(place / "tokenizer.json");
  return in_gguf ? find_in_gguf(place / *options.gguf_file) : find_in_folder(place);
}

ChatTemplate ChatTemplate::from_pretrained(const std::filesystem::path& name, const TokenizerOptions& options) {
  auto found = find_pretrained(name, options);
  if (!found && !options.gguf_file) refuse_no_model(tokenizer_folder(name, options.revision));
  return required(std::move(found), name);
}

}  // namespace hotswap
