#include "hotswap/cli/flags/served_texts_of.h"

#include "hotswap/base/error.h"
#include "hotswap/cli/flags/text_flags.h"
#include "hotswap/models/encoder_models/sentence_folder.h"
#include "hotswap/models/encoder_models/text_family.h"

namespace hotswap {

std::optional<serve::ServedTexts> served_texts_of(const ModelFlags& model, const KernelFlags& kernels,
                                                  const std::vector<std::string>& names) {
  if (gguf_path(model)) return std::nullopt;
  const std::filesystem::path folder = sentence_folder(model.model, model.revision);
  const bool has_modules = std::filesystem::is_regular_file(folder / "modules.json");
  if (!std::filesystem::is_regular_file(folder / "config.json") && !has_modules) return std::nullopt;
  serve::ServedTexts texts{.encoder = nullptr, .reranker = nullptr, .names = names};
  const auto options = [&] { return text_options_of(model, kernels); };
  if (has_modules) {
    texts.encoder = SentenceEncoder::from_pretrained(folder, options());
    return texts;
  }
  const Json config = Json::read(folder / "config.json");
  if (is_cross_encoder(config)) {
    texts.reranker = CrossEncoder::from_pretrained(folder, options());
  } else if (is_encoder(config)) {
    texts.encoder = SentenceEncoder::from_pretrained(folder, options());
  } else {
    return std::nullopt;
  }
  return texts;
}

}  // namespace hotswap
