#include "hotswap/cli/train_print.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <utility>

#include "hotswap/base/error.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/training/training_work.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

std::string four_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

}  // namespace

void print_file(const std::string& name, const TrainFile& file) {
  std::string line =
      cat(name, ": ", file.dataset->size(), " examples, ", file.tokens, " tokens, ", file.learned, " learned");
  if (file.packed > 0) line += cat("; packed from ", file.packed);
  if (file.cut > 0) line += cat("; ", file.cut, " cut at --max-length");
  if (file.dropped > 0) line += cat("; ", file.dropped, " dropped");
  std::fprintf(stderr, "%s\n", line.c_str());
}

void PrintProgress::on_train_begin(const TrainerEvent& event) {
  start_ = std::chrono::steady_clock::now();
  std::fprintf(stderr, "%lld updates, %lld epochs\n", static_cast<long long>(event.state.max_steps),
               static_cast<long long>(event.state.num_train_epochs));
}

void PrintProgress::on_log(const TrainerEvent& event, const nlohmann::json& entry) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::string line = cat(event.state.global_step, "/", event.state.max_steps);
  for (const char* key : {"loss", "grad_norm", "learning_rate", "eval_loss", "train_loss"}) {
    if (entry.contains(key)) line += cat("  ", key, " ", four_digits(entry[key].get<double>()));
  }
  const TrainingRates& rates = event.rates;
  if (entry.contains("loss")) {
    line += cat("  ", four_digits(rates.tokens_per_second), " tokens/s  ", four_digits(rates.flops_per_second / 1e12),
                " TFLOP/s");
    if (rates.mfu) line += cat("  MFU ", four_digits(100 * *rates.mfu), "%");
    line += cat("  peak ", four_digits(static_cast<double>(rates.peak_memory) / 1e9), " GB");
  }
  std::fprintf(stderr, "%s  %.1f s\n", line.c_str(), seconds);
}

void PrintProgress::on_step_end(const TrainerEvent& event) {
  if (std::exchange(stepped_, true)) return;
  std::fprintf(stderr, "memory: peak %s GB %s after the first update\n",
               four_digits(static_cast<double>(peak_device_memory(event.model.device())) / 1e9).c_str(),
               event.model.device().is_cuda() ? "of tensors" : "of the process");
}

void PrintProgress::on_save(const TrainerEvent& event) {
  std::fprintf(stderr, "%s/checkpoint-%lld written\n", event.arguments.output_dir.c_str(),
               static_cast<long long>(event.state.global_step));
}

void print_step_check(const StepCheck& check) {
  constexpr size_t kShown = 10;
  std::fprintf(stderr, "update %lld with kernels: loss %.9g; without: %.9g\n", static_cast<long long>(check.step),
               check.loss, check.stock_loss);
  std::fprintf(stderr, "gradients that differ most of %zu, |with - without| / |without|:\n", check.rows.size());
  for (size_t i = 0; i < std::min(kShown, check.rows.size()); ++i) {
    const StepCheck::Row& row = check.rows[i];
    std::fprintf(stderr, "  %-10s |%s|  %s\n", four_digits(row.difference).c_str(), four_digits(row.norm).c_str(),
                 row.name.c_str());
  }
}

void print_result(const TrainResult& r) {
  if (r.json) {
    OutJson out = {{"output_dir", r.output.string()},
                   {"metrics", r.result.metrics},
                   {"eval", r.evaluated ? OutJson(r.evaluated->to_json()) : OutJson(nullptr)},
                   {"tokens_per_second", r.result.train_tokens_per_second()},
                   {"flops_per_second", r.result.train_flops_per_second()},
                   {"mfu", r.result.device_flops ? OutJson(r.result.train_flops_per_second() / *r.result.device_flops)
                                                 : OutJson(nullptr)},
                   {"peak_memory", r.result.peak_memory},
                   {"optimizer_bytes", r.result.optimizer_bytes},
                   {"memory_estimate",
                    {{"weights", r.estimate.weights},
                     {"gradients", r.estimate.gradients},
                     {"optimizer", r.estimate.optimizer},
                     {"activations", r.estimate.activations},
                     {"loss", r.estimate.head},
                     {"libraries", r.estimate.libraries},
                     {"at_once", r.estimate.total()}}},
                   {"kernels", kernels_json(r.kernels)}};
    if (r.step_check) out["check_step"] = r.step_check->to_json();
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  if (!r.kernels.rows.empty()) std::cout << r.kernels << "\n";
  std::cout << r.output.string() << ": " << r.result.steps.size() << " updates";
  if (!r.result.steps.empty()) {
    std::cout << ", loss " << four_digits(r.result.steps.front().loss) << " -> "
              << four_digits(r.result.steps.back().loss);
  }
  if (r.evaluated) std::cout << ", held out " << four_digits(r.evaluated->eval_loss);
  std::cout << "; " << four_digits(r.result.train_tokens_per_second()) << " tokens/s, peak "
            << four_digits(static_cast<double>(r.result.peak_memory) / 1e9) << " GB";
  const auto& states = r.result.optimizer_bytes;  // of ranks
  if (states.size() > 1) {
    std::cout << ", AdamW's states";
    for (const int64_t bytes : states) std::cout << " " << four_digits(static_cast<double>(bytes) / 1e9);
    std::cout << " GB";
  }
  std::cout << std::endl;
}

}  // namespace hotswap
