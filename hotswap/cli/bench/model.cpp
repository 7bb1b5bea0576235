#include "hotswap/cli/bench/model.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>

#include "hotswap/base/memory.h"
#include "hotswap/cli/bench/timing.h"
#include "hotswap/cli/bench/trace.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/flags/value_checks.h"
#include "hotswap/generation/generate.h"
#include "hotswap/layers/cache.h"
#include "hotswap/models/config.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;
// As bench/peer_transformers.py has them: both measure the same work.
constexpr int64_t kPrompt = 32, kNewTokens = 64, kPrefill = 512, kRows = 2, kColumns = 256;
constexpr uint64_t kSeed = 38;   // of random lengths
constexpr int64_t kTraced = 24;  // tokens: enough for a GPU to capture its steps

struct ModelBenchFlags {
  ModelFlags model;
  KernelFlags kernels;
  std::string what = "decode";
  std::optional<std::string> cache;  // default: as generate() chooses
  std::string trace;
  int threads = 0, repeats = 3;
  std::optional<int64_t> rows, columns;  // default: those of the measurement
  std::optional<int64_t> shortest;       // of prompts of several lengths
  int64_t new_tokens = kNewTokens;
  bool sample = false;
};

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Tensor arbitrary_ids(int64_t rows, int64_t columns, const CausalLM& model) {
  Tensor ids = at::empty({rows, columns}, at::TensorOptions(at::kLong));
  for (int64_t i = 0; i < rows * columns; ++i) {
    ids.mutable_data_ptr<int64_t>()[i] = (i * 7919 + 104729) % model.config().vocab_size;
  }
  return ids.to(model.device());
}

void wait_for(at::Device device) {
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

std::vector<int64_t> values_of(const Tensor& ids) {
  const Tensor here = ids.to(at::kCPU).contiguous();
  return {here.const_data_ptr<int64_t>(), here.const_data_ptr<int64_t>() + here.numel()};
}

// What the GPU's memory holds, and held at most since the last reset.
struct DeviceMemory {
  explicit DeviceMemory(at::Device device) : device_(device) {}
  void reset() const {
    if (device_.is_cuda()) c10::getDeviceAllocator(at::kCUDA)->resetPeakStats(device_.index());
  }
  int64_t now() const { return stats().current; }
  int64_t peak() const { return stats().peak; }

 private:
  c10::CachingAllocator::Stat stats() const {
    if (!device_.is_cuda()) return {};
    return c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(device_.index()).allocated_bytes[0];
  }
  at::Device device_;
};

// Prompts of uniformly random length in [shortest, columns], padded on the left: [rows, columns] int64 on the CPU.
Tensor mask_of_lengths(int64_t shortest, int64_t rows, int64_t columns) {
  std::mt19937_64 random(kSeed);
  std::uniform_int_distribution<int64_t> length(std::min(shortest, columns), columns);
  const Tensor mask = at::zeros({rows, columns}, at::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t own = row == 0 ? columns : length(random);  // generate() wants no column that is padding in all rows
    mask.select(0, row).narrow(0, columns - own, own).fill_(1);
  }
  return mask;
}

OutJson decode(CausalLM& model, const ModelBenchFlags& flags) {
  const int64_t rows = flags.rows.value_or(1), columns = flags.columns.value_or(kPrompt);
  const Tensor prompt = arbitrary_ids(rows, columns, model);
  const Tensor mask = flags.shortest ? mask_of_lengths(*flags.shortest, rows, columns) : Tensor();
  GenerateResult out;
  const auto run = [&](int64_t count) {
    const auto start = Clock::now();
    out = generate(model, {.input_ids = prompt,
                           .config = {.max_new_tokens = count,
                                      .do_sample = flags.sample,
                                      .top_k = 0,
                                      .eos_token_id = std::vector<int64_t>(),
                                      .cache_implementation = flags.cache},
                           .attention_mask = mask});
    return seconds_since(start);
  };
  const double first_token = run(1);  // with whatever is done once in a process
  run(2);
  const DeviceMemory memory(model.device());
  memory.reset();
  std::vector<double> rates;
  for (int i = 0; i < flags.repeats; ++i) {  // the first token is the prompt's; the others' time is the decode's
    const double first = run(1), whole = run(flags.new_tokens);
    // Long prompts take longer than their few tokens: what varies in the one time would swamp the other.
    const double seconds = flags.shortest ? out.decode_ms / 1000 : whole - first;
    rates.push_back(static_cast<double>(rows * (flags.new_tokens - 1)) / seconds);
  }
  OutJson json{{"value", median_of(rates)},
               {"unit", "tokens/s"},
               {"first_token", first_token},
               {"check", values_of(out.ids[0].slice(0, columns))}};
  if (model.device().is_cuda()) {
    json["captured"] = out.captured ? "yes" : out.why_not_captured;
    json["device_memory"] = {{"peak", memory.peak()}};
  }
  if (!flags.trace.empty()) write_trace(flags.trace, [&] { run(kTraced); });
  return json;
}

OutJson prefill(CausalLM& model, const ModelBenchFlags& flags) {
  const at::NoGradGuard no_grad;
  const int64_t rows = flags.rows.value_or(1), columns = flags.columns.value_or(kPrefill);
  const Tensor prompt = arbitrary_ids(rows, columns, model);
  std::vector<double> times;
  Tensor logits;
  const auto run = [&] {
    const auto cache = model.make_cache(columns);
    const auto start = Clock::now();
    logits = model({.input_ids = prompt, .cache = cache.get(), .logits_to_keep = 1}).logits;
    wait_for(model.device());
    times.push_back(seconds_since(start));
  };
  for (int i = 0; i <= flags.repeats; ++i) run();
  times.erase(times.begin());
  const double rate = static_cast<double>(rows * columns) / median_of(times);
  if (!flags.trace.empty()) write_trace(flags.trace, run);
  return {{"value", rate}, {"unit", "tokens/s"}, {"check", values_of(at::argmax(logits, -1))}};
}

// The same batch in every step.
OutJson bench_train(const std::shared_ptr<CausalLM>& model, int repeats) {
  const std::vector<int64_t> ids = values_of(arbitrary_ids(kRows, kColumns, *model));
  Trainer trainer(model,
                  {.per_device_train_batch_size = kRows,
                   .max_steps = repeats + 1,
                   .learning_rate = 1e-5,
                   .lr_scheduler_type = "constant",
                   .train_sampling_strategy = "sequential"},
                  std::make_shared<PackedDataset>(ids, kColumns),
                  {.optimizer = std::make_shared<AdamW>(model->parameters(), AdamWOptions{.weight_decay = 0.01})});
  std::vector<double> times, losses;
  for (const TrainingStep& step : trainer.train().steps) {
    losses.push_back(step.loss);
    if (step.step > 0) times.push_back(step.seconds);
  }
  return {{"value", kRows * kColumns / median_of(times)}, {"unit", "tokens/s"}, {"check", losses}};
}

// Forward and backward without an optimizer.
OutJson step(CausalLM& model, const ModelBenchFlags& flags) {
  constexpr int kWarm = 2;
  model.train();
  const at::Device device = model.device();
  const int64_t rows = flags.rows.value_or(kRows), columns = flags.columns.value_or(kColumns);
  const Tensor ids = arbitrary_ids(rows, columns, model);
  const DeviceMemory memory(device);
  const int64_t loaded = memory.now();
  std::vector<double> times, losses;
  for (int i = 0; i < kWarm + flags.repeats; ++i) {
    for (Tensor& p : model.parameters()) p.mutable_grad() = Tensor();
    memory.reset();
    wait_for(device);
    const auto start = Clock::now();
    const Tensor loss = model({.input_ids = ids, .labels = ids}).loss;
    loss.backward();
    wait_for(device);
    if (i >= kWarm) times.push_back(seconds_since(start));
    losses.push_back(loss.item<double>());
  }
  OutJson out{
      {"value", static_cast<double>(rows * columns) / median_of(times)}, {"unit", "tokens/s"}, {"check", losses}};
  if (device.is_cuda()) out["device_memory"] = {{"loaded", loaded}, {"peak", memory.peak()}};
  if (!model.kernel_report().rows.empty()) out["bound"] = model.kernel_report().bound();
  return out;
}

}  // namespace

void add_bench_model(CLI::App& bench) {
  auto* verb = bench.add_subcommand("model", "One measurement of a model as one JSON line: decode, prefill or train");
  auto flags = std::make_shared<ModelBenchFlags>();
  add_model_flags(*verb, flags->model);
  add_kernel_flags(*verb, flags->kernels);
  verb->add_option("--what", flags->what,
                   "decode: tokens/s after a prompt of 1 x 32; prefill: 1 x 512 tokens; train: AdamW steps of 2 x 256 "
                   "tokens; step: "
                   "forward and backward of 2 x 256")
      ->check(CLI::IsMember({"decode", "prefill", "train", "step"}))
      ->capture_default_str();
  verb->add_flag("--random-weights", flags->model.random_weights,
                 "Random weights; only config.json of the model is read");
  verb->add_option("--rows", flags->rows, "Sequences, but of train")->check(above_zero());
  verb->add_option("--columns", flags->columns, "Tokens of each, of decode in its prompt; but of train")
      ->check(above_zero());
  verb->add_option("--shortest", flags->shortest,
                   cat("decode: prompts of uniformly random length from this one to --columns, seed ", kSeed))
      ->check(above_zero());
  verb->add_option("--new-tokens", flags->new_tokens, "decode: tokens of each sequence")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  verb->add_flag("--sample", flags->sample, "decode: from the whole vocabulary, and not greedily");
  verb->add_option("--cache", flags->cache, "decode: dynamic or static; a prefill is the same in both")
      ->check(CLI::IsMember({"dynamic", "static"}));
  verb->add_option("--trace", flags->trace,
                   "decode, prefill: what ran when, of 24 tokens or one prefill, into this file for chrome://tracing");
  verb->add_option("--threads", flags->threads, "Threads; default: torch's own number")->check(above_zero());
  verb->add_option("--repeats", flags->repeats, "Measured runs; one more warms up")
      ->check(above_zero())
      ->capture_default_str();
  verb->callback([flags] {
    if (flags->threads > 0) at::set_num_threads(flags->threads);
    const auto model = load_model(flags->model, flags->kernels);
    const int64_t loaded = resident_memory();
    reset_peak_memory();
    OutJson out = flags->what == "decode"    ? decode(*model, *flags)
                  : flags->what == "prefill" ? prefill(*model, *flags)
                  : flags->what == "train"   ? bench_train(model, flags->repeats)
                                             : step(*model, *flags);
    out["peak_memory"] = peak_memory();
    out["loaded_memory"] = loaded;
    std::printf("%s\n", out.dump().c_str());
  });
}

}  // namespace hotswap
