#include <algorithm>
#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/base/nearest_name.h"
#include "hotswap/training/arguments/training_arguments.h"

namespace hotswap {
namespace {

void positive(const char* name, double value) {
  if (value > 0 && std::isfinite(value)) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(name, " above 0"),
               .got = cat(value),
               .next = "leave it out to take its default"});
}

void not_negative(const char* name, double value) {
  if (value >= 0 && std::isfinite(value)) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(name, " of 0 or more"),
               .got = cat(value),
               .next = "leave it out to take its default"});
}

void one_of(const char* name, const std::string& value, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(name, " out of ", join(known)),
               .got = cat("'", value, "'"),
               .next = nearest_name_hint(value, known)});
}

// transformers' rule: the best model is known only where each checkpoint was evaluated.
void check_best_model(const TrainingArguments& a) {
  if (!a.load_best_model_at_end || a.save_strategy == "best") return;
  const auto refuse = [](const std::string& expected, const std::string& got) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = expected + " with load_best_model_at_end",
                 .got = got,
                 .next = "evaluate wherever a checkpoint is written, or set save_strategy best"});
  };
  if (a.eval_strategy != a.save_strategy) {
    refuse("one eval_strategy and save_strategy", cat(a.eval_strategy, " and ", a.save_strategy));
  }
  const double every = a.eval_steps.value_or(a.logging_steps);
  if (a.eval_strategy == "steps" && std::fmod(a.save_steps, every) != 0) {
    refuse("save_steps that are a multiple of eval_steps", cat(a.save_steps, " and ", every));
  }
}

// What shards more than AdamW's states.
void check_zero_stage(int64_t stage) {
  if (stage == 0 || stage == 1) return;
  const bool known = stage == 2 || stage == 3;
  throw Error({.kind = known ? ErrorKind::kUnsupported : ErrorKind::kInvalidArgument,
               .wanted = "zero_stage 0, or 1, which shares AdamW's states out among the ranks",
               .got = cat(stage, known ? ", which shards gradients, too: each rank has them as a whole here" : ""),
               .next = known ? "take 1, or train in Python by DeepSpeed or FSDP2 on the same kernels (docs/training.md)"
                             : "take 1, or leave it out"});
}

}  // namespace

void check(const TrainingArguments& a) {
  positive("per_device_train_batch_size", static_cast<double>(a.per_device_train_batch_size));
  positive("per_device_eval_batch_size", static_cast<double>(a.per_device_eval_batch_size));
  positive("gradient_accumulation_steps", static_cast<double>(a.gradient_accumulation_steps));
  if (a.max_steps <= 0) positive("max_steps or num_train_epochs", a.num_train_epochs);
  if (a.logging_strategy == "steps") positive("logging_steps", a.logging_steps);
  positive("ddp_timeout", static_cast<double>(a.ddp_timeout));
  if (a.ddp_bucket_cap_mb) positive("ddp_bucket_cap_mb", static_cast<double>(*a.ddp_bucket_cap_mb));
  if (a.eval_steps) positive("eval_steps", *a.eval_steps);
  if (a.save_strategy == "steps") positive("save_steps", a.save_steps);
  if (a.save_total_limit) positive("save_total_limit", static_cast<double>(*a.save_total_limit));
  not_negative("learning_rate", a.learning_rate);
  not_negative("weight_decay", a.weight_decay);
  not_negative("max_grad_norm", a.max_grad_norm);
  not_negative("warmup_steps", a.warmup_steps);
  not_negative("adam_epsilon", a.adam_epsilon);
  for (const double beta : {a.adam_beta1, a.adam_beta2}) not_negative("1 - beta of AdamW", 1 - beta);
  one_of("logging_strategy", a.logging_strategy, {"no", "steps", "epoch"});
  one_of("eval_strategy", a.eval_strategy, {"no", "steps", "epoch"});
  one_of("save_strategy", a.save_strategy, {"no", "steps", "epoch", "best"});
  one_of("include_num_input_tokens_seen", a.include_num_input_tokens_seen, {"no", "all", "non_padding"});
  one_of("optimizer_states", a.optimizer_states, {"parameter", "float32_master", "bfloat16_moments", "stochastic"});
  check_zero_stage(a.zero_stage);
  check_best_model(a);
}

}  // namespace hotswap
