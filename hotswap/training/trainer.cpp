#include "hotswap/training/trainer.h"

#include <ATen/Context.h>

#include <mutex>
#include <regex>

#include "hotswap/base/error.h"
#include "hotswap/models/liger.h"
#include "hotswap/training/data/order.h"
#include "hotswap/training/evaluation.h"
#include "hotswap/training/output_lock.h"
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
                                              .float32_master = arguments.float32_master});
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
  if (!parts_.optimizer) parts_.optimizer = make_optimizer(*model_, arguments_);
  if (parts_.optimizer->parameters().empty()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a model with parameters that require gradients",
                 .got = "none",
                 .next = "call model->requires_grad(true), or add an adapter (add_adapter)"});
  }
  TrainingLoop::schedule_of(arguments_, *train_dataset_);  // Error before anything runs
  if (arguments_.use_liger_kernel) apply_liger_kernel(*model_, arguments_.liger_kernel_config);
  seed_dropout(arguments_.seed);
}

TrainOutput Trainer::train(const std::string& resume_from_checkpoint) {
  const std::string& from = resume_from_checkpoint.empty() ? arguments_.resume_from_checkpoint : resume_from_checkpoint;
  std::shared_ptr<const OutputLock> lock = parts_.lock;
  if (!lock && !arguments_.output_dir.empty()) lock = OutputLock::take(arguments_.output_dir);
  const fs::path resume = from.empty() ? fs::path() : checkpoint_to_resume(from, arguments_.output_dir);
  TrainingLoop loop({.model = *model_,
                     .arguments = arguments_,
                     .train_dataset = *train_dataset_,
                     .parts = parts_,
                     .state = state_,
                     .control = control_,
                     .resume = resume});
  return loop.run();
}

EvalMetrics Trainer::evaluate() {
  if (!parts_.eval_dataset) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "an eval_dataset",
                 .got = "none",
                 .next = "give one to the Trainer"});
  }
  const EvalMetrics metrics = evaluate_model(*model_, *parts_.eval_dataset, arguments_.per_device_eval_batch_size);
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

void Trainer::save_model(const fs::path& folder) { model_->save_pretrained(folder_or_output(folder)); }

void Trainer::save_state(const fs::path& folder) {
  const fs::path target = folder_or_output(folder);
  fs::create_directories(target);
  state_.save(target / "trainer_state.json", control_);
}

}  // namespace hotswap
