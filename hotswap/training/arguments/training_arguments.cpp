#include "hotswap/training/arguments/training_arguments.h"

#include <algorithm>
#include <functional>

#include "hotswap/base/error.h"
#include "hotswap/base/nearest_name.h"
#include "hotswap/training/arguments/argument_row.h"
#include "hotswap/training/arguments/refused.h"

namespace hotswap {
namespace {

using Value = nlohmann::ordered_json;
using Args = TrainingArguments;

// An argument that a run reads: from JSON and back.
struct Honoured {
  const char* name;
  const char* help;
  std::function<void(Args&, const Json&)> set;
  std::function<Value(const Args&)> get;
  bool is_switch = false;  // true, false, or nothing
};

template <typename T>
void assign(T& to, const Json& json) {
  to = json.as<T>();
}
template <typename T>
void assign(std::optional<T>& to, const Json& json) {
  to = json.as<T>();
}
void assign(std::map<std::string, bool>& to, const Json& json) {
  to.clear();
  for (const auto& [name, value] : json.items()) to[name] = value.as<bool>();
}
void assign(Value& to, const Json& json) {
  json.items();  // Error unless it is an object
  to = json.raw();
}

template <typename T>
Value value_of(const T& value) {
  return value;
}
template <typename T>
Value value_of(const std::optional<T>& value) {
  return value ? Value(*value) : Value(nullptr);
}
Value value_of(const std::map<std::string, bool>& options) { return options.empty() ? Value(nullptr) : Value(options); }

template <typename T>
Honoured honoured(const char* name, T Args::*member, const char* help) {
  return {name, help, [member](Args& a, const Json& json) { assign(a.*member, json); },
          [member](const Args& a) { return value_of(a.*member); },
          std::is_same_v<T, bool> || std::is_same_v<T, std::optional<bool>>};
}

// Steps are written as integers where they are whole, as Python has them.
Honoured steps(const char* name, double Args::*member, const char* help) {
  Honoured row = honoured(name, member, help);
  row.get = [member](const Args& a) {
    const auto whole = static_cast<int64_t>(a.*member);
    return static_cast<double>(whole) == a.*member ? Value(whole) : Value(a.*member);
  };
  return row;
}

Honoured tokens_seen() {
  Honoured row = honoured("include_num_input_tokens_seen", &Args::include_num_input_tokens_seen,
                          "Log how many token ids were read: no, all, non_padding");
  row.set = [](Args& a, const Json& json) {
    a.include_num_input_tokens_seen = !json.is_bool() ? json.as<std::string>() : json.as<bool>() ? "all" : "no";
  };
  return row;
}

Honoured resume_from() {
  Honoured row = honoured("resume_from_checkpoint", &Args::resume_from_checkpoint,
                          "A checkpoint's folder to go on from; true: the last whole one of output_dir");
  row.set = [](Args& a, const Json& json) {
    a.resume_from_checkpoint = !json.is_bool() ? json.as<std::string>() : json.as<bool>() ? "true" : "";
    if (a.resume_from_checkpoint == "True") a.resume_from_checkpoint = "true";
  };
  row.get = [](const Args& a) {
    if (a.resume_from_checkpoint.empty()) return Value(nullptr);
    return a.resume_from_checkpoint == "true" ? Value(true) : Value(a.resume_from_checkpoint);
  };
  row.is_switch = true;
  return row;
}

const std::vector<Honoured>& honoured_rows() {
  static const std::vector<Honoured> rows = {
      honoured("output_dir", &Args::output_dir, "Folder of checkpoints, the log and the trained model"),
      honoured("per_device_train_batch_size", &Args::per_device_train_batch_size, "Examples in one forward"),
      honoured("per_device_eval_batch_size", &Args::per_device_eval_batch_size, "The same in evaluation"),
      honoured("gradient_accumulation_steps", &Args::gradient_accumulation_steps, "Forwards for one update"),
      honoured("num_train_epochs", &Args::num_train_epochs, "Passes over the data"),
      honoured("max_steps", &Args::max_steps, "Updates; above 0: in place of num_train_epochs"),
      honoured("learning_rate", &Args::learning_rate, "Its peak"),
      honoured("lr_scheduler_type", &Args::lr_scheduler_type, "How the learning rate falls: linear, cosine, ..."),
      honoured("lr_scheduler_kwargs", &Args::lr_scheduler_kwargs, "JSON, such as {\"min_lr_rate\": 0.1}"),
      steps("warmup_steps", &Args::warmup_steps, "Updates of rising rate; below 1: a share of all"),
      honoured("weight_decay", &Args::weight_decay, "Of all but biases and the weights of norms"),
      honoured("adam_beta1", &Args::adam_beta1, "AdamW's beta1"),
      honoured("adam_beta2", &Args::adam_beta2, "AdamW's beta2"),
      honoured("adam_epsilon", &Args::adam_epsilon, "AdamW's epsilon"),
      honoured("max_grad_norm", &Args::max_grad_norm, "Gradients are clipped to it; 0: not at all"),
      honoured("train_sampling_strategy", &Args::train_sampling_strategy, "random or sequential"),
      honoured("dataloader_drop_last", &Args::dataloader_drop_last, "Drop an epoch's last batch where it is short"),
      honoured("seed", &Args::seed, "Of the order of the data"),
      honoured("data_seed", &Args::data_seed, "The same, before seed"),
      honoured("bf16", &Args::bf16, "Error unless the model is in bfloat16"),
      honoured("use_cpu", &Args::use_cpu, "Train on the CPU, whatever --device is"),
      honoured("gradient_checkpointing", &Args::gradient_checkpointing,
               "Keep of a layer only its input, and run its forward again in backward"),
      honoured("gradient_checkpointing_kwargs", &Args::gradient_checkpointing_kwargs, "JSON: every_n_layers, offload"),
      honoured("use_liger_kernel", &Args::use_liger_kernel, "Run the layers that Liger has kernels for by kernels"),
      honoured("liger_kernel_config", &Args::liger_kernel_config, "JSON of Liger's options, such as {\"rope\": false}"),
      honoured("ddp_timeout", &Args::ddp_timeout, "Of ranks: seconds in which one that is silent counts as lost"),
      honoured("average_tokens_across_devices", &Args::average_tokens_across_devices,
               "Of ranks: the loss is the mean over the labels of all"),
      honoured("ddp_find_unused_parameters", &Args::ddp_find_unused_parameters,
               "Of ranks: some parameters get no gradient in a step"),
      honoured("ddp_bucket_cap_mb", &Args::ddp_bucket_cap_mb, "Of ranks: MiB of gradients that are reduced at once"),
      honoured("logging_strategy", &Args::logging_strategy, "no, steps, epoch"),
      steps("logging_steps", &Args::logging_steps, "Updates from one entry of the log to the next"),
      honoured("logging_first_step", &Args::logging_first_step, "Log the first update, too"),
      tokens_seen(),
      honoured("disable_tqdm", &Args::disable_tqdm, "Show no progress"),
      honoured("eval_strategy", &Args::eval_strategy, "no, steps, epoch"),
      honoured("eval_steps", &Args::eval_steps, "Updates from one evaluation to the next; default: logging_steps"),
      steps("eval_delay", &Args::eval_delay, "No evaluation before this update, or epoch"),
      honoured("eval_on_start", &Args::eval_on_start, "Evaluate before the first update"),
      honoured("save_strategy", &Args::save_strategy, "no, steps, epoch, best"),
      steps("save_steps", &Args::save_steps, "Updates from one checkpoint to the next"),
      honoured("save_total_limit", &Args::save_total_limit, "Checkpoints that are kept"),
      honoured("save_only_model", &Args::save_only_model, "Checkpoints without what a resumed run needs"),
      honoured("load_best_model_at_end", &Args::load_best_model_at_end, "Go back to the best checkpoint at the end"),
      honoured("metric_for_best_model", &Args::metric_for_best_model, "eval_loss or eval_loss_per_token"),
      honoured("greater_is_better", &Args::greater_is_better, "Of that metric"),
      resume_from(),
      honoured("ignore_data_skip", &Args::ignore_data_skip, "A resumed run starts its epoch's data again"),
  };
  return rows;
}

// Names that transformers does not have: written only where they have not their default.
const std::vector<Honoured>& own_rows() {
  static const std::vector<Honoured> rows = {
      honoured("optimizer_states", &Args::optimizer_states, "What AdamW keeps"),
      honoured("zero_stage", &Args::zero_stage, "Of ranks: 1 shares AdamW's states out among them"),
  };
  return rows;
}

const Honoured* row_of(const std::vector<Honoured>& rows, const std::string& name) {
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const Honoured& h) { return name == h.name; });
  return row == rows.end() ? nullptr : &*row;
}

std::vector<ArgumentRow> all_rows() {
  std::vector<ArgumentRow> rows;
  for (const Honoured& row : honoured_rows()) {
    rows.push_back({.name = row.name,
                    .kind = ArgumentKind::kHonoured,
                    .fallback = row.get(TrainingArguments{}),
                    .help = row.help,
                    .is_switch = row.is_switch});
  }
  for (ArgumentRow& row : rows_not_read()) {
    row.is_switch = row.fallback.is_boolean();
    rows.push_back(std::move(row));
  }
  return rows;
}

[[noreturn]] void unknown(const std::string& name, const Json& json) {
  std::vector<std::string> names;
  for (const Honoured& row : own_rows()) names.emplace_back(row.name);
  for (const ArgumentRow& row : argument_rows()) names.push_back(row.name);
  const auto renamed = renamed_arguments().find(name);
  const auto nearest = nearest_name(name, names);
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("a name of transformers' TrainingArguments in ", json.where()),
               .got = cat("'", name, "'"),
               .next = renamed != renamed_arguments().end() ? cat("use ", renamed->second)
                       : nearest                            ? cat("did you mean ", *nearest, "?")
                                                            : "`hotswap train --help` lists them"});
}

const ArgumentRow& known_row(const std::string& name, const Json& json) {
  const auto& rows = argument_rows();
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const ArgumentRow& r) { return name == r.name; });
  if (row == rows.end()) unknown(name, json);
  return *row;
}

// Equal, with 0 and 0.0 the same.
bool same_value(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
  return a == b;
}

void refuse_unless_default(const ArgumentRow& row, const Json& json) {
  const Value& value = json.raw();
  const auto equal = [&](const Value& other) { return same_value(value, other); };
  if (equal(row.fallback) || std::any_of(row.passes.begin(), row.passes.end(), equal)) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat(row.name, " = ", row.fallback.dump(), ": ", row.why),
               .got = cat(json.where(), " = ", value.dump(-1, ' ', false, Value::error_handler_t::replace)),
               .next = "leave it out, or train in Python, where transformers' Trainer runs on the same kernels"});
}

}  // namespace

const std::vector<ArgumentRow>& argument_rows() {
  static const std::vector<ArgumentRow> rows = all_rows();
  return rows;
}

TrainingArguments training_arguments_from(const Json& json, TrainingArguments base, ArgumentsAre are) {
  for (const auto& [name, value] : json.items()) {
    if (value.is_null()) {
      if (row_of(own_rows(), name) == nullptr) known_row(name, json);
      continue;  // the default, whatever it is
    }
    const Honoured* own = row_of(own_rows(), name);
    if (const Honoured* row = own != nullptr ? own : row_of(honoured_rows(), name)) {
      row->set(base, value);
      continue;
    }
    const ArgumentRow& other = known_row(name, json);
    if (other.kind == ArgumentKind::kRefused) refuse_unless_default(other, value);
  }
  if (are == ArgumentsAre::kWhole) check(base);
  return base;
}

nlohmann::ordered_json to_json(const TrainingArguments& arguments) {
  Value json = Value::object();
  for (const Honoured& row : honoured_rows()) json[row.name] = row.get(arguments);
  for (const ArgumentRow& row : argument_rows()) {
    if (row.kind != ArgumentKind::kHonoured) json[row.name] = row.fallback;
  }
  for (const Honoured& row : own_rows()) {
    if (const Value value = row.get(arguments); value != row.get(TrainingArguments{})) json[row.name] = value;
  }
  return json;
}

}  // namespace hotswap
