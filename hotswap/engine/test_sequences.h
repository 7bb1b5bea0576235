// For tests of sequences in one batch: prompts of different length, and what each says in a batch of one.
#pragma once

#include <memory>
#include <vector>

#include "hotswap/engine/scheduler.h"
#include "hotswap/engine/test_families.h"
#include "hotswap/models/family.h"

namespace hotswap::test_support {

inline constexpr int64_t kNew = 12;
// Sums of another order differ by this much of the greatest logit: a product of several rows adds up as one of one row
// does not.
inline constexpr double kRounding = 1e-5;

// Windows and chunks of the tiny models are of 9 tokens: one prompt is longer, and all grow beyond it.
inline const std::vector<Ids>& prompts() {
  static const std::vector<Ids> all = {
      {5, 6, 7, 8, 9}, {11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22}, {30, 31}, {40}};
  return all;
}

// By the model's own growing cache, one prompt, a batch of one. In engine_test.cpp.
Steps single(CausalLM& model, const Ids& prompt, int64_t count = kNew);

inline std::shared_ptr<Sampler> greedy(const CausalLM& model) {
  return std::make_shared<Sampler>(GenerationConfig(), model.device());
}

inline Ids new_ids(const Sequence& sequence) {
  return {sequence.tokens.begin() + sequence.prompt_length, sequence.tokens.end()};
}

// The second leaves in the middle, the third and fourth join after that.
inline std::vector<Ids> batched(CausalLM& model, Scheduler& scheduler) {
  const auto sampler = greedy(model);
  const auto join = [&](const Ids& prompt) {
    return scheduler.join({.tokens = prompt, .sampler = sampler, .stop = {.max_new_tokens = kNew}});
  };
  std::vector<int64_t> ids{join(prompts()[0]), join(prompts()[1])};
  int64_t seen = 0;
  for (int64_t step = 0; !scheduler.idle(); ++step) {
    seen += static_cast<int64_t>(scheduler.step().size());
    if (step == 5) scheduler.leave(ids[1]);
    if (step == 3 || step == 6) ids.push_back(join(prompts()[ids.size()]));
  }
  std::vector<Ids> all;
  for (const int64_t id : ids) all.push_back(new_ids(scheduler.take(id)));
  int64_t kept = 0;
  for (const Ids& one : all) kept += static_cast<int64_t>(one.size());
  EXPECT_EQ(seen, kept);
  return all;
}

inline std::vector<Ids> batched(CausalLM& model, const SchedulerOptions& options) {
  Scheduler scheduler(model, options);
  return batched(model, scheduler);
}

// What a model runs: torch's operations, the bundled kernels but for attention, all of them.
inline const std::vector<std::string>& kinds() {
  static const std::vector<std::string> all = {"stock", "kernels", "kernels, attention too"};
  return all;
}

// In the order of kinds(). False where the model has nothing of that kind.
inline bool prepare(CausalLM& model, const std::string& kind) {
  if (kind == "stock") return true;
  model.kernelize(Mode::of_training(false));
  if (kind == "kernels") return true;
  bool attends = false;
  model.each_slot(
      [&](const std::string&, const SlotBase& slot) { attends = attends || slot.contract() == "attention/1"; });
  if (attends) model.set_attn_implementation("hotswap/attention");
  return attends;
}

// Whether layers of the family have recurrent states.
inline bool recurs(const Family& family) {
  const std::set<std::string> all = {"mamba",      "falcon_mamba",     "mamba2",           "jamba",
                                     "bamba",      "granitemoehybrid", "falcon_h1",        "nemotron_h",
                                     "qwen3_next", "qwen3_5_text",     "qwen3_5_moe_text", "lfm2"};
  return all.contains(family.model_type);
}

}  // namespace hotswap::test_support
