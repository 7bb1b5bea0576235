#include "hotswap/models/text_part.h"

#include <algorithm>

#include "hotswap/base/log.h"
#include "hotswap/models/formats/tensor_rules.h"

namespace hotswap {
namespace {

struct SeeingModel {
  const char *model_type, *text_type, *text_class;
  const char* absent;  // what its class takes for keys of text_config that are not there: published ones leave them out
};

constexpr SeeingModel kSeeingModels[] = {
    {"gemma3", "gemma3_text", "Gemma3ForCausalLM",
     R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
         "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6})"},
    {"llama4", "llama4_text", "Llama4ForCausalLM", "{}"},
    {"mistral3", "mistral", "MistralForCausalLM", "{}"},
};

const SeeingModel* seeing_model(const Json& config) {
  if (!config.has("text_config") || !config.has("model_type")) return nullptr;
  const auto type = config.at<std::string>("model_type");
  const auto* found = std::find_if(std::begin(kSeeingModels), std::end(kSeeingModels),
                                   [&](const SeeingModel& known) { return type == known.model_type; });
  return found == std::end(kSeeingModels) ? nullptr : found;
}

// Beside text_config: these speak of the text, too, and count where text_config does not say them.
constexpr const char* kOfTheWhole[] = {"dtype",        "torch_dtype",  "bos_token_id",
                                       "eos_token_id", "pad_token_id", "quantization_config"};

// As published, and as transformers 5 calls them in its modules.
TensorRules text_names() {
  TensorRules rules = {TensorRule::rename("language_model.model", "model"),
                       TensorRule::rename("language_model.lm_head", "lm_head"),
                       TensorRule::rename("model.language_model", "model")};
  for (const char* part : {"vision_model", "vision_tower", "multi_modal_projector"}) {
    rules.push_back(TensorRule::leave_out(part));
    rules.push_back(TensorRule::leave_out(cat("model.", part)));
  }
  return rules;
}

}  // namespace

Json text_part(const Json& config) {
  const SeeingModel* known = seeing_model(config);
  if (known == nullptr) return config;
  const Json given = config.child("text_config");
  nlohmann::ordered_json text = nlohmann::ordered_json::parse(known->absent);
  text["model_type"] = known->text_type;
  text.update(given.raw());
  text["architectures"] = {known->text_class};
  for (const char* key : kOfTheWhole) {
    if (!given.has(key) && config.has(key)) text[key] = config.raw().at(key);
  }
  // Here the whole has the last word, as in transformers.
  if (config.has("tie_word_embeddings")) text["tie_word_embeddings"] = config.raw().at("tie_word_embeddings");
  return Json::parse(text.dump(), given.where());
}

std::unique_ptr<const Checkpoint> text_part(std::unique_ptr<const Checkpoint> checkpoint, const Json& config,
                                            Module& model) {
  if (seeing_model(config) == nullptr) return checkpoint;
  const size_t all = checkpoint->names().size();
  auto text = in_model_terms(std::move(checkpoint), text_names(), model);
  log_warning(all - text->names().size(), " tensors of ", text->where(),
              " belong to images and are skipped: only the text part of the model is loaded");
  return text;
}

}  // namespace hotswap
