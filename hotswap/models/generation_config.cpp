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
  visit("prompt_lookup_num_tokens", c.prompt_lookup_num_tokens);
  visit("max_matching_ngram_size", c.max_matching_ngram_size);
  visit("num_assistant_tokens", c.num_assistant_tokens);
  visit("num_assistant_tokens_schedule", c.num_assistant_tokens_schedule);
  visit("assistant_confidence_threshold", c.assistant_confidence_threshold);
  visit("num_beams", c.num_beams);
  visit("num_return_sequences", c.num_return_sequences);
  visit("length_penalty", c.length_penalty);
  visit("suppress_tokens", c.suppress_tokens);
  visit("begin_suppress_tokens", c.begin_suppress_tokens);
  visit("forced_bos_token_id", c.forced_bos_token_id);
  visit("encoder_repetition_penalty", c.encoder_repetition_penalty);
  visit("encoder_no_repeat_ngram_size", c.encoder_no_repeat_ngram_size);
  visit("remove_invalid_values", c.remove_invalid_values);
  visit("renormalize_logits", c.renormalize_logits);
  visit("typical_p", c.typical_p);
  visit("epsilon_cutoff", c.epsilon_cutoff);
  visit("eta_cutoff", c.eta_cutoff);
  visit("top_h", c.top_h);
}

// What transformers has besides and what changes a text, with the values that change nothing. Null never does.
struct Missing {
  const char* name;
  OutJson off;
};
const std::vector<Missing>& missing() {
  static const std::vector<Missing> all = {
      {"penalty_alpha", 0},  {"dola_layers", nullptr},         {"max_time", nullptr},    {"token_healing", false},
      {"guidance_scale", 1}, {"watermarking_config", nullptr}, {"constraints", nullptr}, {"force_words_ids", nullptr},
  };
  return all;
}

// One text or several.
std::vector<std::string> read_texts(const Json& json) {
  return json.is_string() ? std::vector{json.as<std::string>()} : json.as<std::vector<std::string>>();
}

std::vector<std::vector<int64_t>> read_runs(const Json& json) {
  std::vector<std::vector<int64_t>> runs;
  for (const Json& run : json.elements()) runs.push_back(run.as<std::vector<int64_t>>());
  return runs;
}

[[noreturn]] void refuse_value(const Json& json, const char* wanted) {
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(json.where(), ": ", wanted),
               .got = json.raw().dump(),
               .next = "correct the file"});
}

// [[[ids], number], ...]
std::vector<std::pair<std::vector<int64_t>, double>> read_biases(const Json& json) {
  std::vector<std::pair<std::vector<int64_t>, double>> biases;
  for (const Json& pair : json.elements()) {
    const auto parts = pair.elements();
    if (parts.size() != 2) refuse_value(pair, "a list of ids and the number that is added to their score");
    biases.emplace_back(parts[0].as<std::vector<int64_t>>(), parts[1].as<double>());
  }
  return biases;
}

std::pair<int64_t, double> read_decay(const Json& json) {
  const auto parts = json.elements();
  if (parts.size() != 2) refuse_value(json, "the token from which on an end becomes likelier, and the factor");
  return {parts[0].as<int64_t>(), parts[1].as<double>()};
}

EarlyStopping read_early_stopping(const Json& json) {
  if (json.is_bool()) return json.as<bool>() ? EarlyStopping::kTrue : EarlyStopping::kFalse;
  if (!json.is_string() || json.as<std::string>() != "never") refuse_value(json, "true, false or \"never\"");
  return EarlyStopping::kNever;
}

OutJson early_stopping_json(EarlyStopping stops) {
  return stops == EarlyStopping::kNever ? OutJson("never") : OutJson(stops == EarlyStopping::kTrue);
}

}  // namespace

GenerationConfig read_generation_config(const Json& json) {
  GenerationConfig c;
  each_setting(c, [&]<class T>(const char* name, std::optional<T>& value) {
    if (json.has(name)) value = json.at<T>(name);
  });
  if (json.has("eos_token_id")) c.eos_token_id = read_ids(json, "eos_token_id");
  if (json.has("forced_eos_token_id")) c.forced_eos_token_id = read_ids(json, "forced_eos_token_id");
  const auto read = [&]<class T>(const char* name, std::optional<T>& value, T (*parse)(const Json&)) {
    if (json.has(name)) value = parse(json.child(name));
  };
  read("bad_words_ids", c.bad_words_ids, read_runs);
  read("sequence_bias", c.sequence_bias, read_biases);
  read("exponential_decay_length_penalty", c.exponential_decay_length_penalty, read_decay);
  read("early_stopping", c.early_stopping, read_early_stopping);
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
  put("forced_eos_token_id", config.forced_eos_token_id);
  put("bad_words_ids", config.bad_words_ids);
  put("sequence_bias", config.sequence_bias);
  put("exponential_decay_length_penalty", config.exponential_decay_length_penalty);
  if (config.early_stopping) json["early_stopping"] = early_stopping_json(*config.early_stopping);
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
  fill(c.prompt_lookup_num_tokens, under.prompt_lookup_num_tokens);
  fill(c.max_matching_ngram_size, under.max_matching_ngram_size);
  fill(c.num_assistant_tokens, under.num_assistant_tokens);
  fill(c.num_assistant_tokens_schedule, under.num_assistant_tokens_schedule);
  fill(c.assistant_confidence_threshold, under.assistant_confidence_threshold);
  fill(c.num_beams, under.num_beams);
  fill(c.num_return_sequences, under.num_return_sequences);
  fill(c.length_penalty, under.length_penalty);
  fill(c.early_stopping, under.early_stopping);
  fill(c.bad_words_ids, under.bad_words_ids);
  fill(c.sequence_bias, under.sequence_bias);
  fill(c.suppress_tokens, under.suppress_tokens);
  fill(c.begin_suppress_tokens, under.begin_suppress_tokens);
  fill(c.forced_bos_token_id, under.forced_bos_token_id);
  fill(c.forced_eos_token_id, under.forced_eos_token_id);
  fill(c.exponential_decay_length_penalty, under.exponential_decay_length_penalty);
  fill(c.encoder_repetition_penalty, under.encoder_repetition_penalty);
  fill(c.encoder_no_repeat_ngram_size, under.encoder_no_repeat_ngram_size);
  fill(c.remove_invalid_values, under.remove_invalid_values);
  fill(c.renormalize_logits, under.renormalize_logits);
  fill(c.typical_p, under.typical_p);
  fill(c.epsilon_cutoff, under.epsilon_cutoff);
  fill(c.eta_cutoff, under.eta_cutoff);
  fill(c.top_h, under.top_h);
  for (const auto& [name, value] : under.not_implemented.items()) {
    if (!c.not_implemented.contains(name)) c.not_implemented[name] = value;
  }
  return c;
}

void require_implemented(const GenerationConfig& config) {
  std::vector<std::string> asked;
  for (const auto& [name, value] : config.not_implemented.items()) {
    asked.push_back(cat(name, " = ", value.dump()));
  }
  if (asked.empty()) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "generation settings that are implemented",
               .got = cat(join(asked), " in the model's generation_config.json"),
               .next = "take them out of it, or give the model other settings by set_generation_config()"});
}

}  // namespace hotswap
