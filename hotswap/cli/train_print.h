// What `hotswap train` prints: the data, progress, and the result.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "hotswap/training/data/train_file.h"
#include "hotswap/training/memory_estimate.h"
#include "hotswap/training/trainer.h"

namespace hotswap {

void print_file(const std::string& name, const TrainFile& file);  // to stderr

// A line of stderr for each entry of the log, and one for the memory that the first update took.
class PrintProgress final : public TrainerCallback {
 public:
  void on_train_begin(const TrainerEvent& event) override;
  void on_step_end(const TrainerEvent& event) override;
  void on_log(const TrainerEvent& event, const nlohmann::json& entry) override;
  void on_save(const TrainerEvent& event) override;

 private:
  std::chrono::steady_clock::time_point start_;
  bool stepped_ = false;
};

// To stderr: the losses, and the gradients that differ most.
void print_step_check(const StepCheck& check);

struct TrainResult {
  std::filesystem::path output;
  const TrainOutput& result;
  const MemoryEstimate& estimate;
  std::optional<EvalMetrics> evaluated;
  const KernelReport& kernels;
  const std::optional<StepCheck>& step_check;
  bool json;
};
void print_result(const TrainResult& result);  // to stdout

}  // namespace hotswap
