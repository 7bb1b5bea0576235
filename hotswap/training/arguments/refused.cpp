// The names of transformers' TrainingArguments that a run here does not read.
#include "hotswap/training/arguments/refused.h"

namespace hotswap {
namespace {

using Value = nlohmann::ordered_json;

struct UnusedArguments {
  const char* why;
  std::vector<std::pair<const char*, Value>> names;  // with the defaults
};

const std::vector<UnusedArguments>& without_effect() {
  static const std::vector<UnusedArguments> groups = {
      {"a loss that is not finite ends the run with an error", {{"logging_nan_inf_filter", true}}},
      {"no values are cached in training", {{"use_cache", false}}},
      {"the loss is all that an evaluation makes",
       {{"prediction_loss_only", false},
        {"eval_do_concat_batches", true},
        {"eval_use_gather_object", false},
        {"eval_accumulation_steps", nullptr},
        {"include_for_metrics", Value::array()},
        {"batch_eval_metrics", false}}},
      {"batches are made in this process, in the order of the sampler",
       {{"dataloader_num_workers", 0},
        {"dataloader_pin_memory", true},
        {"dataloader_persistent_workers", false},
        {"dataloader_prefetch_factor", nullptr},
        {"dataloader_multiprocessing_context", nullptr},
        {"dataloader_in_order", true},
        {"remove_unused_columns", true},
        {"length_column_name", "length"}}},
      {"of several ranks only the first one logs", {{"log_on_each_node", true}, {"log_level_replica", "warning"}}},
      {"gradients of ranks are reduced by Gloo on CPUs and by NCCL on GPUs, and no buffer changes in training",
       {{"ddp_backend", nullptr}, {"ddp_broadcast_buffers", nullptr}, {"ddp_static_graph", nullptr}}},
      {"of report_to or push_to_hub, which are refused",
       {{"run_name", nullptr},
        {"project", "huggingface"},
        {"trackio_space_id", nullptr},
        {"trackio_bucket_id", nullptr},
        {"trackio_static_space_id", nullptr},
        {"hub_token", nullptr},
        {"hub_private_repo", nullptr},
        {"hub_model_id", nullptr},
        {"hub_strategy", "every_save"},
        {"hub_always_push", false},
        {"hub_revision", nullptr}}},
      {"HOTSWAP_LOG_LEVEL is the log's level", {{"log_level", "passive"}}},
      {"for scripts: Trainer reads them nowhere", {{"do_train", false}, {"do_eval", false}, {"do_predict", false}}},
  };
  return groups;
}

struct Refusal {
  const char* name;
  Value fallback;
  const char* why;
  std::vector<Value> passes = {};
};

const std::vector<Refusal>& refusals() {
  static const Value kAccelerator = {{"split_batches", false}, {"dispatch_batches", nullptr},
                                     {"even_batches", true},   {"use_seedable_sampler", true},
                                     {"non_blocking", false},  {"gradient_accumulation_kwargs", nullptr}};
  static const std::vector<Refusal> rows = {
      {"optim", "adamw_torch_fused", "AdamW is the only optimizer", {"adamw_torch"}},
      {"optim_args", nullptr, "AdamW's are arguments of their own", {""}},
      {"optim_target_modules", nullptr, "no optimizer here takes it"},
      {"label_smoothing_factor", 0, "the training loss has no smoothed labels"},
      {"fp16", false, "there is no scaler: train in bfloat16 or float32"},
      {"bf16_full_eval", false, "evaluation has the model's own dtype"},
      {"fp16_full_eval", false, "evaluation has the model's own dtype"},
      {"tf32", nullptr, "torch's setting is left as it is"},
      {"torch_compile", false, "a training step is not captured"},
      {"torch_compile_backend", nullptr, "a training step is not captured"},
      {"torch_compile_mode", nullptr, "a training step is not captured"},
      {"neftune_noise_alpha", nullptr, "embeddings get no noise"},
      {"torch_empty_cache_steps", nullptr, "memory is kept between steps"},
      {"auto_find_batch_size", false, "name a batch size that fits"},
      {"report_to", "none", "the log is trainer_state.json", {Value::array(), Value::array({"none"})}},
      {"enable_jit_checkpoint", false, "no signal makes a checkpoint"},
      {"push_to_hub", false, "upload the folder by `hf upload`"},
      {"restore_callback_states_from_checkpoint", false, "callbacks keep no states"},
      {"full_determinism", false, "kernels on a CPU repeat to the bit, those on a GPU as docs/determinism.md has it"},
      {"accelerator_config", nullptr, "there is no accelerate", {kAccelerator}},
      {"parallelism_config", nullptr, "each rank has the model as a whole"},
      {"save_on_each_node", false, "only rank 0 writes"},
      {"label_names", nullptr, "labels are the only ones", {Value::array({"labels"})}},
      {"fsdp", nullptr, "each rank has the model as a whole", {"", Value::array(), false}},
      {"fsdp_config", nullptr, "each rank has the model as a whole"},
      {"deepspeed", nullptr, "each rank has the model as a whole; zero_stage 1 is ZeRO's stage 1"},
      {"debug", "", "there is no such mode", {Value::array()}},
      {"skip_memory_metrics", true, "the peak of memory is printed by itself"},
      {"local_rank", -1, "torchrun sets LOCAL_RANK", {0}},
  };
  return rows;
}

}  // namespace

std::vector<ArgumentRow> rows_not_read() {
  std::vector<ArgumentRow> rows;
  for (const UnusedArguments& group : without_effect()) {
    for (const auto& [name, fallback] : group.names) {
      rows.push_back({.name = name, .kind = ArgumentKind::kNoEffect, .why = group.why, .fallback = fallback});
    }
  }
  for (const Refusal& row : refusals()) {
    rows.push_back({.name = row.name,
                    .kind = ArgumentKind::kRefused,
                    .why = row.why,
                    .fallback = row.fallback,
                    .passes = row.passes});
  }
  return rows;
}

const std::map<std::string, std::string>& renamed_arguments() {
  static const std::map<std::string, std::string> names = {
      {"warmup_ratio", "warmup_steps, where a value below 1 is a share"},
      {"evaluation_strategy", "eval_strategy"},
      {"group_by_length", "train_sampling_strategy"},
      {"no_cuda", "use_cpu"},
      {"logging_dir", "output_dir: the log is in its trainer_state.json"},
      {"overwrite_output_dir", "an output_dir of its own for each run"},
      {"activation_checkpointing", "gradient_checkpointing"},
      {"activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"},
      {"include_tokens_per_second", "include_num_input_tokens_seen"},
  };
  return names;
}

}  // namespace hotswap
