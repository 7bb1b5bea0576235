#include "hotswap/models/generation_config.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/models/config.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

// Every setting that is a value of its own, by the name that files and members share.
template <class Config, class Visit>
void each_setting(Config& c, const Visit& visit) {
  visit("max_length", c.max_length);
  visit("max_new_tokens", c.max_new_tokens);
  visit("min_length", c.min_length);
  visit("min_new_tokens", c.min_new_tokens);
  visit("do_sample", c.do_sample);
  visit("temperature", c.temperature);
  visit("top_k", c.top_k);
  visit("top_p", c.top_p);
  visit("min_p", c.min_p);
  visit("repetition_penalty", c.repetition_penalty);
  visit("no_repeat_ngram_size", c.no_repeat_ngram_size);
  visit("pad_token_id", c.pad_token_id);
}

// What transformers has besides and what changes a text, with the values that change nothing. Null never does.
struct Missing {
  const char* name;
  OutJson off;
  bool samples = false;  // means something where do_sample is on alone
};
const std::vector<Missing>& missing() {
  static const std::vector<Missing> all = {
      {"penalty_alpha", 0},
      {"dola_layers", nullptr},
      {"max_time", nullptr},
      {"encoder_repetition_penalty", 1},
      {"encoder_no_repeat_ngram_size", 0},
      {"bad_words_ids", OutJson::array()},
      {"sequence_bias", OutJson::object()},
      {"forced_bos_token_id", nullptr},
      {"forced_eos_token_id", nullptr},
      {"remove_invalid_values", false},
      {"exponential_decay_length_penalty", nullptr},
      {"suppress_tokens", OutJson::array()},
      {"begin_suppress_tokens", OutJson::array()},
      {"token_healing", false},
      {"guidance_scale", 1},
      {"watermarking_config", nullptr},
      {"num_return_sequences", 1},
      {"constraints", nullptr},
      {"force_words_ids", nullptr},
      {"typical_p", 1, true},
      {"epsilon_cutoff", 0, true},
      {"eta_cutoff", 0, true},
      {"top_h", nullptr, true},
  };
  return all;
}

// One text or several.
std::vector<std::string> read_texts(const Json& json) {
  return json.is_string() ? std::vector{json.as<std::string>()} : json.as<std::vector<std::string>>();
}

}  // namespace

GenerationConfig read_generation_config(const Json& json) {
  if (json.get<int64_t>("num_beams", 1) != 1) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "num_beams = 1: greedy or sampled generation",
                 .got = cat(json.at<int64_t>("num_beams"), " in ", json.where()),
                 .next = "remove num_beams"});
  }
  GenerationConfig c;
  each_setting(c, [&]<class T>(const char* name, std::optional<T>& value) {
    if (json.has(name)) value = json.at<T>(name);
  });
  if (json.has("eos_token_id")) c.eos_token_id = read_ids(json, "eos_token_id");
  if (json.has("stop_strings")) c.stop_strings = read_texts(json.child("stop_strings"));
  // "hybrid" and its like are what layers with a window have anyhow.
  const auto cache = json.get<std::string>("cache_implementation", "");
  if (cache == "dynamic" || cache == "static") c.cache_implementation = cache;
  if (cache == "quantized") c.not_implemented["cache_implementation"] = cache;  // other numbers
  for (const Missing& one : missing()) {
    const auto value = json.find(one.name);
    if (value && value->raw() != one.off) c.not_implemented[one.name] = value->raw();
  }
  return c;
}

OutJson to_json(const GenerationConfig& config) {
  OutJson json = OutJson::object();
  const auto put = [&](const char* name, const auto& value) {
    if (value) json[name] = *value;
  };
  put("eos_token_id", config.eos_token_id);
  each_setting(config, put);
  put("stop_strings", config.stop_strings);
  put("cache_implementation", config.cache_implementation);
  json.update(config.not_implemented);
  return json;
}

GenerationConfig merged(const GenerationConfig& over, const GenerationConfig& under) {
  GenerationConfig c = over;
  const auto fill = [](auto& mine, const auto& theirs) {
    if (!mine) mine = theirs;
  };
  // The caller's limit of one kind is no reason to mind the model's of the other.
  if (!c.max_new_tokens && !c.max_length) c.max_new_tokens = under.max_new_tokens, c.max_length = under.max_length;
  if (!c.min_new_tokens && !c.min_length) c.min_new_tokens = under.min_new_tokens, c.min_length = under.min_length;
  fill(c.do_sample, under.do_sample);
  fill(c.temperature, under.temperature);
  fill(c.top_k, under.top_k);
  fill(c.top_p, under.top_p);
  fill(c.min_p, under.min_p);
  fill(c.repetition_penalty, under.repetition_penalty);
  fill(c.no_repeat_ngram_size, under.no_repeat_ngram_size);
  fill(c.seed, under.seed);
  fill(c.eos_token_id, under.eos_token_id);
  fill(c.pad_token_id, under.pad_token_id);
  fill(c.stop_strings, under.stop_strings);
  fill(c.cache_implementation, under.cache_implementation);
  for (const auto& [name, value] : under.not_implemented.items()) {
    if (!c.not_implemented.contains(name)) c.not_implemented[name] = value;
  }
  return c;
}

void require_implemented(const GenerationConfig& config) {
  std::vector<std::string> asked;
  for (const auto& [name, value] : config.not_implemented.items()) {
    const auto row = std::find_if(missing().begin(), missing().end(), [&](const auto& m) { return m.name == name; });
    if (row != missing().end() && row->samples && !config.do_sample.value_or(false)) continue;
    asked.push_back(cat(name, " = ", value.dump()));
  }
  if (asked.empty()) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "generation settings that are implemented",
               .got = cat(join(asked), " in the model's generation_config.json"),
               .next = "take them out of it, or give the model other settings by set_generation_config()"});
}

}  // namespace hotswap
