#include "hotswap/training/trainer.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>

#include <mutex>
#include <regex>

#include "hotswap/base/error.h"
#include "hotswap/models/liger.h"
#include "hotswap/training/checkpoint/folder.h"
#include "hotswap/training/data/order.h"
#include "hotswap/training/evaluation.h"
#include "hotswap/training/output_lock.h"
#include "hotswap/training/ranks/ranks.h"
#include "hotswap/training/resume.h"
#include "hotswap/training/schedules/schedule.h"
#include "hotswap/training/trainer_state.h"
#include "hotswap/training/training_loop.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

// What the arguments say of a model that is there already.
void check_model(const CausalLM& model, const TrainingArguments& a) {
  const auto refuse = [](const std::string& expected, const std::string& got, const std::string& next) {
    throw Error({.kind = ErrorKind::kInvalidArgument, .wanted = expected, .got = got, .next = next});
  };
  if (a.bf16 && model.dtype() != at::kBFloat16) {
    refuse("a model in bfloat16 for bf16: products are not cast on the way", cat("one in ", toString(model.dtype())),
           "load it with dtype bfloat16, or leave bf16 out");
  }
  if (a.use_cpu && !model.device().is_cpu()) {
    refuse("a model on the CPU for use_cpu", cat("one on ", model.device().str()), "load it on the CPU");
  }
  if (a.use_liger_kernel && !model.kernel_report().rows.empty()) {
    refuse("a model without kernels for use_liger_kernel", "one whose layers are bound already",
           "leave use_liger_kernel out, or load the model without kernels");
  }
}

// Of the model's mapping only the rows of this layer.
KernelReport bind_update(AdamW& optimizer, KernelOptions options) {
  std::erase_if(options.config.kernel_mapping, [](const auto& row) { return row.first != kUpdateLayer; });
  KernelReport report = kernelize(optimizer.update(), Mode::INFERENCE, options);
  for (KernelRow& row : report.rows) row.name = "optimizer";
  return report;
}

// Of torch's own arguments only those pass that say what is done here anyway.
void enable_checkpointing(CausalLM& model, const TrainingArguments& arguments) {
  const auto& given = arguments.gradient_checkpointing_kwargs;
  const Json kwargs = Json::parse(given.is_null() ? "{}" : given.dump(), "gradient_checkpointing_kwargs");
  for (const auto& [name, value] : kwargs.items()) {
    if (name == "every_n_layers" || name == "offload" || name == "use_reentrant") continue;
    if ((name == "preserve_rng_state" && value.as<bool>()) || (name == "debug" && !value.as<bool>())) continue;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "every_n_layers, offload or use_reentrant in gradient_checkpointing_kwargs",
                 .got = cat(name, " = ", value.raw().dump()),
                 .next = "leave it out"});
  }
  if (!arguments.gradient_checkpointing) return;
  model.gradient_checkpointing_enable(kwargs.get<int64_t>("every_n_layers", 1), kwargs.get<bool>("offload", false));
}

// As Trainer's set_seed: what an adapter's dropout draws its seeds of.
void seed_dropout(int64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(static_cast<uint64_t>(seed));
}

}  // namespace

// A second, over all steps but the first where there are others.
template <typename Amount>
static double rate_of(const std::vector<TrainingStep>& steps, const Amount& amount) {
  double seconds = 0, sum = 0;
  for (size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i) {
    seconds += steps[i].seconds;
    sum += static_cast<double>(amount(steps[i]));
  }
  return seconds > 0 ? sum / seconds : 0;
}

double TrainOutput::train_tokens_per_second() const {
  return rate_of(steps, [](const TrainingStep& step) { return step.num_input_tokens; });
}

double TrainOutput::train_flops_per_second() const {
  return rate_of(steps, [](const TrainingStep& step) { return step.flops; });
}

std::shared_ptr<AdamW> make_optimizer(CausalLM& model, const TrainingArguments& arguments) {
  // The names that transformers leaves out.
  static const std::regex kNoDecay(R"(bias|layernorm|rmsnorm|(^|\.)norm($|\.)|_norm($|\.))", std::regex::icase);
  ParameterGroup decayed{.weight_decay = arguments.weight_decay}, others{.weight_decay = 0};
  model.each_trained([&](const std::string& name, Tensor& tensor) {
    (std::regex_search(name, kNoDecay) ? others : decayed).parameters.push_back(tensor);
  });
  return std::make_shared<AdamW>(std::vector{decayed, others},
                                 AdamWOptions{.learning_rate = arguments.learning_rate,
                                              .beta1 = arguments.adam_beta1,
                                              .beta2 = arguments.adam_beta2,
                                              .eps = arguments.adam_epsilon,
                                              .states = optimizer_states_from(arguments.optimizer_states),
                                              .seed = arguments.seed});
}

Trainer::Trainer(std::shared_ptr<CausalLM> model, TrainingArguments arguments,
                 std::shared_ptr<const Dataset> train_dataset, TrainerParts parts)
    : model_(std::move(model)),
      arguments_(std::move(arguments)),
      train_dataset_(std::move(train_dataset)),
      parts_(std::move(parts)) {
  check(arguments_);
  sampling_strategy_from(arguments_.train_sampling_strategy);
  best_metric_of(arguments_);
  if (arguments_.eval_strategy != "no" && !parts_.eval_dataset) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("an eval_dataset for eval_strategy ", arguments_.eval_strategy),
                 .got = "none",
                 .next = "give one to the Trainer, or leave eval_strategy out"});
  }
  check_model(*model_, arguments_);
  join_ranks();
  if (!parts_.optimizer) parts_.optimizer = make_optimizer(*model_, arguments_);
  if (parts_.optimizer->parameters().empty()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a model with parameters that require gradients",
                 .got = "none",
                 .next = "call model->requires_grad(true), or add an adapter (add_adapter)"});
  }
  share_optimizer();
  TrainingLoop::schedule_of(arguments_, *train_dataset_, rank_count(parts_));  // Error before anything runs
  if (arguments_.use_liger_kernel) apply_liger_kernel(*model_, arguments_.liger_kernel_config);
  enable_checkpointing(*model_, arguments_);
  seed_dropout(arguments_.seed);
}

// Ranks that begin with other weights than rank 0 would stay apart for good.
void Trainer::join_ranks() {
  const auto environment = rank_environment();
  if (!parts_.ranks && environment && environment->size > 1) {
    parts_.ranks = std::make_shared<Ranks>(
        *environment, RanksOptions{.device = model_->device(), .timeout = static_cast<double>(arguments_.ddp_timeout)});
  }
  if (!parts_.ranks) return;
  watched([&] {
    std::vector<Tensor> tensors;
    model_->each_tensor([&](const std::string&, Tensor& tensor) { tensors.push_back(tensor); });
    if (model_->trains_adapter()) {
      model_->each_trained([&](const std::string&, Tensor& tensor) { tensors.push_back(tensor); });
    }
    parts_.ranks->broadcast(tensors);
  });
}

void Trainer::share_optimizer() {
  AdamW& optimizer = *parts_.optimizer;
  if (arguments_.zero_stage == 1 && parts_.ranks) {
    shards_ = std::make_shared<OptimizerShards>(optimizer, *parts_.ranks);
  } else if (optimizer.is_share()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "an optimizer with the states of all parameters",
                 .got = "one that keeps a rank's share, of a Trainer with zero_stage 1",
                 .next = "make a new optimizer (make_optimizer), or set zero_stage"});
  }
}

void Trainer::watched(const std::function<void()>& work) {
  const c10::DeviceGuard current(model_->device());  // pinned memory is of the current GPU, which is each rank's own
  parts_.ranks ? parts_.ranks->watched(work) : work();
}

bool Trainer::is_world_process_zero() const { return !parts_.ranks || parts_.ranks->is_first(); }

// Ranks that torchrun started again go on from where they were. Which checkpoint is whole the first rank decides.
fs::path Trainer::resume_from(const std::string& named) const {
  std::string from = named.empty() ? arguments_.resume_from_checkpoint : named;
  const auto environment = rank_environment();
  const bool again = from.empty() && environment && environment->restarts > 0;
  const auto find = [&]() -> fs::path {
    if (again && !checkpoint_steps(arguments_.output_dir).empty()) from = "true";
    return from.empty() ? fs::path() : checkpoint_to_resume(from, arguments_.output_dir);
  };
  if (!parts_.ranks) return find();
  return parts_.ranks->from_first(parts_.ranks->is_first() ? find().string() : std::string());
}

TrainOutput Trainer::train(const std::string& resume_from_checkpoint) {
  if (const auto options = model_->kernel_options()) {
    update_report_ = bind_update(*parts_.optimizer, *options);
  } else if (!update_report_.rows.empty()) {
    unkernelize(parts_.optimizer->update());
    update_report_ = {};
  }
  // Of ranks the first one writes, and has the folder.
  std::shared_ptr<const OutputLock> lock = parts_.lock;
  if (!lock && is_world_process_zero() && !arguments_.output_dir.empty()) {
    lock = OutputLock::take(arguments_.output_dir);
  }
  TrainOutput out;
  watched([&] {
    TrainingLoop loop({.model = *model_,
                       .arguments = arguments_,
                       .train_dataset = *train_dataset_,
                       .parts = parts_,
                       .state = state_,
                       .control = control_,
                       .resume = resume_from(resume_from_checkpoint),
                       .shards = shards_.get()});
    out = loop.run();
  });
  return out;
}

KernelReport Trainer::kernel_report() const {
  KernelReport report = model_->kernel_report();
  report.rows.insert(report.rows.end(), update_report_.rows.begin(), update_report_.rows.end());
  return report;
}

EvalMetrics Trainer::evaluate() {
  if (!parts_.eval_dataset) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "an eval_dataset",
                 .got = "none",
                 .next = "give one to the Trainer"});
  }
  EvalMetrics metrics;
  watched([&] {
    metrics = evaluate_model(*model_, *parts_.eval_dataset, arguments_.per_device_eval_batch_size, parts_.ranks.get());
  });
  nlohmann::json entry = metrics.to_json();
  entry["epoch"] = state_.epoch;
  entry["step"] = state_.global_step;
  state_.log_history.push_back(std::move(entry));
  return metrics;
}

fs::path Trainer::folder_or_output(const fs::path& folder) const {
  if (!folder.empty()) return folder;
  if (!arguments_.output_dir.empty()) return arguments_.output_dir;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a folder to write, or an output_dir among the arguments",
               .got = "neither",
               .next = "name one"});
}

void Trainer::save_model(const fs::path& folder) {
  if (is_world_process_zero()) model_->save_pretrained(folder_or_output(folder));
}

void Trainer::save_state(const fs::path& folder) {
  if (!is_world_process_zero()) return;
  const fs::path target = folder_or_output(folder);
  fs::create_directories(target);
  state_.save(target / "trainer_state.json", control_);
}

}  // namespace hotswap
