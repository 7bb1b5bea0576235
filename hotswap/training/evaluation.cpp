#include "hotswap/training/evaluation.h"

#include <ATen/core/grad_mode.h>

#include <chrono>
#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/training/data/order.h"
#include "hotswap/training/ranks/ranks.h"

namespace hotswap {
namespace {

using Clock = std::chrono::steady_clock;

// Copies from pinned memory do not hold the host up.
Tensor moved(const Tensor& tensor, at::Device device) {
  if (!tensor.defined() || device.is_cpu()) return tensor;
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

struct BatchLoss {
  Tensor loss;  // [] on the model's device: read when all are launched
  int64_t examples, labels;
};

}  // namespace

double rounded(double value, int digits) {
  const double scale = std::pow(10.0, digits);
  return std::round(value * scale) / scale;
}

ForwardArguments forward_arguments(const TrainingBatch& batch, at::Device device) {
  return {.input_ids = moved(batch.input_ids, device),
          .attention_mask = moved(batch.attention_mask, device),
          .position_ids = moved(batch.position_ids, device),
          .cu_seqlens = moved(batch.cu_seqlens, device),
          .max_seqlen = batch.max_seqlen,
          .labels = moved(batch.labels, device),
          .need_logits = false};
}

EvalMetrics evaluate_model(CausalLM& model, const Dataset& dataset, int64_t batch_size, Ranks* ranks) {
  const at::NoGradGuard no_grad;
  const auto start = Clock::now();
  const bool was_training = model.training();
  model.eval();
  EvalMetrics metrics;
  std::vector<BatchLoss> losses;
  const auto batches = batches_of(epoch_order(dataset.size(), SamplingStrategy::kSequential, 0, 0), batch_size);
  metrics.examples = dataset.size();
  const size_t first = ranks == nullptr ? 0 : static_cast<size_t>(ranks->rank()),
               apart = ranks == nullptr ? 1 : static_cast<size_t>(ranks->size());
  metrics.batches = static_cast<int64_t>((batches.size() + apart - 1) / apart);
  for (size_t at = first; at < batches.size(); at += apart) {
    const auto& examples = batches[at];
    const TrainingBatch batch = dataset.batch(examples);
    const int64_t labels = label_count(batch);
    if (labels == 0) continue;  // its mean is over nothing
    const Tensor loss = model(forward_arguments(batch, model.device())).loss;
    losses.push_back({loss, static_cast<int64_t>(examples.size()), labels});
  }
  model.train(was_training);
  double by_example = 0, by_label = 0, examples = 0, labels = 0;
  for (const BatchLoss& one : losses) {
    const auto loss = one.loss.item<double>();
    by_example += loss * static_cast<double>(one.examples);
    by_label += loss * static_cast<double>(one.labels);
    examples += static_cast<double>(one.examples);
    labels += static_cast<double>(one.labels);
  }
  if (ranks != nullptr) {
    const auto sums = ranks->sum({by_example, by_label, examples, labels});
    by_example = sums[0], by_label = sums[1], examples = sums[2], labels = sums[3];
  }
  if (examples == 0) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "an eval_dataset with labels",
                 .got = cat(metrics.examples, " examples without any"),
                 .next = "give examples of which something is learned"});
  }
  metrics.eval_loss = by_example / examples;
  metrics.eval_loss_per_token = by_label / labels;
  metrics.runtime = std::chrono::duration<double>(Clock::now() - start).count();
  return metrics;
}

nlohmann::json EvalMetrics::to_json() const {
  nlohmann::json json = {
      {"eval_loss", eval_loss}, {"eval_loss_per_token", eval_loss_per_token}, {"eval_runtime", rounded(runtime, 4)}};
  if (runtime <= 0) return json;
  json["eval_samples_per_second"] = rounded(static_cast<double>(examples) / runtime, 3);
  json["eval_steps_per_second"] = rounded(static_cast<double>(batches) / runtime, 3);
  return json;
}

}  // namespace hotswap
