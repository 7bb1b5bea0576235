#include "hotswap/models/generation_config.h"

#include "hotswap/base/error.h"
#include "hotswap/models/config.h"

namespace hotswap {

GenerationConfig read_generation_config(const Json& json) {
  if (json.get<int64_t>("num_beams", 1) != 1) {
    throw Error({.wanted = "num_beams = 1: greedy or sampled generation",
                 .got = cat(json.at<int64_t>("num_beams"), " in ", json.where()),
                 .next = "remove num_beams"});
  }
  GenerationConfig c;
  c.max_new_tokens = json.get<int64_t>("max_new_tokens", c.max_new_tokens);
  if (json.has("do_sample")) c.do_sample = json.at<bool>("do_sample");
  if (json.has("temperature")) c.temperature = json.at<double>("temperature");
  if (json.has("top_k")) c.top_k = json.at<int64_t>("top_k");
  if (json.has("top_p")) c.top_p = json.at<double>("top_p");
  if (json.has("repetition_penalty")) c.repetition_penalty = json.at<double>("repetition_penalty");
  if (json.has("eos_token_id")) c.eos_token_id = read_ids(json, "eos_token_id");
  if (json.has("pad_token_id")) c.pad_token_id = json.at<int64_t>("pad_token_id");
  return c;
}

GenerationConfig merged(const GenerationConfig& over, const GenerationConfig& under) {
  GenerationConfig c = over;
  const auto fill = [](auto& mine, const auto& theirs) {
    if (!mine) mine = theirs;
  };
  fill(c.do_sample, under.do_sample);
  fill(c.temperature, under.temperature);
  fill(c.top_k, under.top_k);
  fill(c.top_p, under.top_p);
  fill(c.repetition_penalty, under.repetition_penalty);
  fill(c.seed, under.seed);
  fill(c.eos_token_id, under.eos_token_id);
  fill(c.pad_token_id, under.pad_token_id);
  fill(c.cache_implementation, under.cache_implementation);
  return c;
}

}  // namespace hotswap
