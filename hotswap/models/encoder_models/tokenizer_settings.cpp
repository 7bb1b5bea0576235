#include "hotswap/models/encoder_models/tokenizer_settings.h"

#include <algorithm>

namespace hotswap {
namespace {

bool gives_token_types(const Json& config) {
  if (config.has("model_input_names")) {
    const auto names = config.at<std::vector<std::string>>("model_input_names");
    return std::find(names.begin(), names.end(), "token_type_ids") != names.end();
  }
  const auto name = config.get<std::string>("tokenizer_class", "BertTokenizer");
  constexpr const char* kWithTypes[] = {"BertTokenizer", "ElectraTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer"};
  return std::any_of(std::begin(kWithTypes), std::end(kWithTypes),
                     [&](const std::string& known) { return name == known || name == known + "Fast"; });
}

// Without a limit transformers writes 1e30.
int64_t max_length_of(const Json& config, int64_t positions) {
  const auto limit = config.find("model_max_length");
  if (!limit || !limit->is_number() || limit->as<double>() > 1e9 || limit->as<double>() < 1) return positions;
  const auto length = static_cast<int64_t>(limit->as<double>());
  return positions == 0 ? length : std::min(positions, length);
}

}  // namespace

TokenizerSettings read_tokenizer_settings(const std::filesystem::path& folder, int64_t positions) {
  const auto config = read_if_there(folder / "tokenizer_config.json");
  if (!config) return {.max_length = positions};
  return {.max_length = max_length_of(*config, positions), .token_types = gives_token_types(*config)};
}

std::optional<Json> read_if_there(const std::filesystem::path& file) {
  return std::filesystem::is_regular_file(file) ? std::optional(Json::read(file)) : std::nullopt;
}

}  // namespace hotswap
