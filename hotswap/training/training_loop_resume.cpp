// What a checkpoint has beside the model, and how a run goes on from it.
#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/base/log.h"
#include "hotswap/training/checkpoint/generators.h"
#include "hotswap/training/checkpoint/optimizer_file.h"
#include "hotswap/training/ranks/ranks.h"
#include "hotswap/training/resume.h"
#include "hotswap/training/training_loop.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

// Ours beside transformers' files: the exact position in the data, and sums that a log's next entry is made of.
constexpr const char* kProgress = "hotswap_state.json";

// As Trainer's: one file, or one for each of several ranks.
std::string generators_file(int64_t rank, int64_t ranks) {
  return ranks == 1 ? "rng_state.pth" : cat("rng_state_", rank, ".pth");
}

// Of how many ranks a checkpoint is, ours or Trainer's.
int64_t ranks_of(const fs::path& folder) {
  if (fs::exists(folder / kProgress)) return Json::read(folder / kProgress).get<int64_t>("ranks", 1);
  int64_t ranks = 0;
  while (fs::exists(folder / cat("rng_state_", ranks, ".pth"))) ++ranks;
  return std::max<int64_t>(1, ranks);
}

}  // namespace

double TrainingLoop::next_rate() const { return s_.arguments.learning_rate * schedule_.factor(s_.state.global_step); }

ParameterNames TrainingLoop::parameter_names() const {
  return {.names = names_of(s_.model, s_.parts.optimizer->parameters()), .order = order_of(s_.model)};
}

void TrainingLoop::save_progress(const fs::path& folder, const std::vector<std::string>& generators) {
  const AdamW& optimizer = *s_.parts.optimizer;
  const LearningRates rates{.peak = s_.arguments.learning_rate, .next = next_rate()};
  save_optimizer(folder / "optimizer.pt", optimizer, parameter_names(), rates,
                 s_.shards == nullptr ? FetchState() : s_.shards->fetch());
  save_scheduler(folder / "scheduler.pt", optimizer.group_sizes().size(), s_.state.global_step, rates);
  for (size_t rank = 0; rank < generators.size(); ++rank) {
    save_generators(folder / generators_file(static_cast<int64_t>(rank), ranks_), generators[rank], s_.arguments.seed);
  }
  const nlohmann::ordered_json progress = {{"version", 1},
                                           {"epoch", position_.epoch},
                                           {"batches", position_.batches},
                                           {"ranks", ranks_},
                                           {"examples_in_forward", examples_in_forward()},
                                           {"epoch_ended", position_.epoch_ended},
                                           {"last_logged", last_logged_},
                                           {"loss_since_log", loss_since_log_},
                                           {"total_loss", total_loss_},
                                           {"grad_norm", last_grad_norm_},
                                           {"learning_rate", last_rate_},
                                           {"examples", s_.train_dataset.size()},
                                           {"data", s_.train_dataset.fingerprint()}};
  write_file(folder / kProgress, progress.dump(2) + "\n");
}

void TrainingLoop::check_same_data(const fs::path& folder) const {
  const Json saved = Json::read(folder / kProgress);
  const auto hash = saved.at<std::string>("data"), own = s_.train_dataset.fingerprint();
  const auto examples = saved.at<int64_t>("examples");
  const bool same = examples == s_.train_dataset.size() && (hash.empty() || own.empty() || hash == own);
  if (same || s_.arguments.ignore_data_skip) return;
  throw Error(
      {.kind = ErrorKind::kInvalidArgument,
       .wanted = cat("the ", examples, " training examples that ", folder.string(), " was written with"),
       .got = examples == s_.train_dataset.size() ? std::string("as many others")
                                                  : cat(s_.train_dataset.size(), " examples"),
       .next = "give the same data, tokenizer and lengths; with ignore_data_skip the epoch starts again on others"});
}

// needed: the checkpoint is of as many ranks as this run.
void TrainingLoop::restore_generators(const fs::path& folder, bool needed) const {
  const fs::path file = folder / generators_file(s_.parts.ranks ? s_.parts.ranks->rank() : 0, ranks_);
  if (fs::exists(file)) return load_generators(file, s_.model.device());
  if (needed) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat(file.filename().string(), " in ", folder.string(), ", by which dropout goes on"),
                 .got = "no such file",
                 .next = "fetch it again, or resume from another checkpoint"});
  }
  log_warning(folder.string(), " has no ", file.filename().string(), ": dropout draws other masks from here on");
}

// Of another number of ranks: an update has as many examples there as here, a forward may have others.
void TrainingLoop::restore_progress(const fs::path& folder) {
  const Json progress = Json::read(folder / kProgress);
  const auto then = progress.get<int64_t>("examples_in_forward", examples_in_forward()), now = examples_in_forward();
  position_ = {.epoch = progress.at<int64_t>("epoch"),
               .batches = (progress.at<int64_t>("batches") * then + now - 1) / now,
               .epoch_ended = progress.at<bool>("epoch_ended")};
  last_logged_ = progress.at<int64_t>("last_logged");
  loss_since_log_ = progress.at<double>("loss_since_log");
  total_loss_ = progress.at<double>("total_loss");
  last_grad_norm_ = progress.at<double>("grad_norm");
  last_rate_ = progress.at<double>("learning_rate");
}

void TrainingLoop::restore() {
  const fs::path& folder = s_.resume;
  TrainerState saved = TrainerState::read(folder / "trainer_state.json");
  const int64_t saved_ranks = ranks_of(folder);
  check_resumed_arguments(folder, saved, s_.arguments, {.saved = saved_ranks, .own = ranks_});
  const bool own = fs::exists(folder / kProgress);
  if (own) check_same_data(folder);
  check_scheduler(folder / "scheduler.pt", saved.global_step);
  load_weights(s_.model, folder);
  load_optimizer(folder / "optimizer.pt", *s_.parts.optimizer, parameter_names(), s_.arguments.learning_rate);
  restore_generators(folder, own && saved_ranks == ranks_);

  saved.max_steps = s_.state.max_steps;
  saved.num_train_epochs = s_.state.num_train_epochs;
  saved.train_batch_size = s_.state.train_batch_size;
  saved.set_steps(s_.arguments);
  s_.state = std::move(saved);
  last_logged_ = s_.state.global_step;
  const int64_t in_epoch = s_.state.global_step % counts_.updates_in_epoch;
  position_ = {.epoch = s_.state.global_step / counts_.updates_in_epoch,
               .batches = in_epoch * s_.arguments.gradient_accumulation_steps};
  if (own) restore_progress(folder);
  if (s_.arguments.ignore_data_skip && !position_.epoch_ended) position_.batches = 0;
  log_info("resumed from ", folder.string(), ": epoch ", position_.epoch, ", batch ", position_.batches, ", update ",
           s_.state.global_step);
}

}  // namespace hotswap
