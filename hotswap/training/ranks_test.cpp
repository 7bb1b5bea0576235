// Ranks as processes of this machine, over Gloo: their collectives, and a Trainer of several beside one that trains on
// the joined batches.
#include "hotswap/training/ranks/ranks.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "hotswap/base/json.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/training/data/bins.h"
#include "hotswap/training/data/order.h"
#include "hotswap/training/test_model.h"
#include "hotswap/training/test_ranks.h"
#include "hotswap/training/trainer.h"

namespace hotswap {

void test_support::use_one_thread() { at::set_num_threads(1); }

namespace {

namespace fs = std::filesystem;
using test_support::expect_all_well;
using test_support::expect_has;
using test_support::message_of;
using test_support::run_ranks;
using test_support::ScopedEnv;
using test_support::TempFolder;

TEST(RankEnvironment, IsWholeOrNone) {
  std::vector<std::unique_ptr<ScopedEnv>> unset;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    unset.push_back(std::make_unique<ScopedEnv>(name, std::nullopt));
  }
  EXPECT_FALSE(rank_environment());
  const ScopedEnv address("MASTER_ADDR", "node0");  // some images always have it
  EXPECT_FALSE(rank_environment());
  const ScopedEnv rank("RANK", "1");
  expect_has(message_of([] { rank_environment(); }),
             {"RANK, MASTER_ADDR without WORLD_SIZE, LOCAL_RANK, MASTER_PORT", "torchrun"});
  const ScopedEnv size("WORLD_SIZE", "2"), local("LOCAL_RANK", "1"), port("MASTER_PORT", "29500"),
      restarts("TORCHELASTIC_RESTART_COUNT", "3"), agent("TORCHELASTIC_USE_AGENT_STORE", "True");
  const auto whole = rank_environment();
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->rank, 1);
  EXPECT_EQ(whole->size, 2);
  EXPECT_EQ(whole->master_address, "node0");
  EXPECT_EQ(whole->restarts, 3);
  EXPECT_TRUE(whole->agent_has_store);
  const auto fails = [](const char* name, const char* value, std::initializer_list<std::string> parts) {
    const ScopedEnv set(name, value);
    expect_has(message_of([] { rank_environment(); }), parts);
  };
  fails("RANK", "2", {"RANK from 0 to 1", "'2'"});
  fails("WORLD_SIZE", "many", {"WORLD_SIZE", "'many'"});
  fails("MASTER_PORT", "0", {"MASTER_PORT from 1"});
}

TEST(RankEnvironment, TheErrorIsLeftForTorchrun) {
  const TempFolder folder;
  const fs::path file = folder / "error.json";
  const ScopedEnv set("TORCHELASTIC_ERROR_FILE", file.string());
  write_rank_error("rank 1: disk full");
  write_rank_error("rank 1: what came of it");
  const Json json = Json::read(file);
  EXPECT_EQ(json.at<std::string>("message"), "rank 1: disk full");
  EXPECT_GT(json.at<int64_t>("timestamp"), 1'700'000'000);
}

// As accelerate's BatchSamplerShard: for each rank as many batches, all full, filled from the beginning.
TEST(Order, OfRanksIsFilledFromTheBeginning) {
  using Batches = std::vector<std::vector<int64_t>>;
  const auto of = [](int64_t examples, int64_t ranks, bool drop_last = false) {
    return batches_of_ranks(epoch_order(examples, SamplingStrategy::kSequential, 0, 0), 2, drop_last, ranks);
  };
  EXPECT_EQ(of(7, 1), (Batches{{0, 1}, {2, 3}, {4, 5}, {6}}));
  EXPECT_EQ(of(7, 2), (Batches{{0, 1}, {2, 3}, {4, 5}, {6, 0}}));
  EXPECT_EQ(of(5, 2), (Batches{{0, 1}, {2, 3}, {4, 0}, {1, 2}}));
  EXPECT_EQ(of(3, 4), (Batches{{0, 1}, {2, 0}, {1, 2}, {0, 1}}));
  EXPECT_EQ(of(6, 2), (Batches{{0, 1}, {2, 3}, {4, 5}, {0, 1}}));
  EXPECT_EQ(of(7, 2, true), (Batches{{0, 1}, {2, 3}}));
  EXPECT_EQ(of(3, 2, true), Batches{});
}

TEST(Ranks, Collectives) {
  expect_all_well(run_ranks({.size = 4}, [](int rank) {
    Ranks ranks(*rank_environment(), {.timeout = 60});
    const auto need = [](bool holds, const char* what) {
      if (!holds) throw std::runtime_error(what);
    };
    const double own = rank;
    need(ranks.sum({own, 1}) == std::vector<double>{6, 4}, "sum");
    need(ranks.max({own, -own}) == std::vector<double>{3, 0}, "max");
    need(ranks.from_first(rank == 0 ? "a\nb" : "other").compare("a\nb") == 0, "from_first");
    need(ranks.from_first("").empty(), "from_first of nothing");
    const auto all = ranks.to_first(std::string(static_cast<size_t>(rank) * 3, static_cast<char>('a' + rank)));
    need(all.size() == (rank == 0 ? 4 : 0), "to_first");
    if (rank == 0) need(all[0].empty() && all[2] == "cccccc", "to_first's bytes");
    const Tensor floats = at::full({3}, rank), halves = at::full({2, 2}, rank, at::kBFloat16),
                 bytes = at::full({5}, rank, at::kByte);
    ranks.broadcast({floats, halves, bytes});
    for (const Tensor& one : {floats, halves, bytes}) need(at::equal(one, at::zeros_like(one)), "broadcast");
    bool refused = false;
    try {
      ranks.broadcast({at::zeros({rank == 3 ? 2 : 3})});
    } catch (const std::exception& error) {
      refused = rank == 3;
      if (refused) std::_Exit(0);  // and the others cannot go on
    }
    need(refused || rank != 3, "shapes that differ are refused");
    std::_Exit(0);
  }));
}

// Rows of lengths of their own; the first i % 3 tokens of one count for nothing.
std::shared_ptr<const Dataset> uneven_rows(int64_t count = 16) {
  std::vector<Example> examples;
  for (int64_t i = 0; i < count; ++i) {
    Example example;
    for (int64_t at = 0; at < 5 + i % 4; ++at) {
      example.ids.push_back((1 + i * at) % 16);
      example.labels.push_back(at < i % 3 ? -100 : example.ids.back());
    }
    examples.push_back(example);
  }
  return std::make_shared<ExampleDataset>(std::move(examples), 0);
}

TrainingArguments few_steps(int64_t batch, int64_t accumulation) {
  return {.per_device_train_batch_size = batch,
          .per_device_eval_batch_size = 3,
          .gradient_accumulation_steps = accumulation,
          .max_steps = 5,
          .learning_rate = 0.01,
          .weight_decay = 0.1,
          .ddp_timeout = 60,
          .logging_steps = 1,
          .include_num_input_tokens_seen = "all"};
}

struct Shown {
  bool adapter = false;
  at::ScalarType dtype = at::kFloat;
};

// Of each entry of the log the rates that callbacks see.
struct SeenRates : TrainerCallback {
  void on_log(const TrainerEvent& event, const nlohmann::json& entry) override {
    if (entry.contains("loss")) rates.push_back(event.rates);
  }
  std::vector<TrainingRates> rates;
};

// The updates of the whole run, and whether the log's rates are theirs.
nlohmann::json steps_of(const TrainOutput& out, const SeenRates& seen) {
  nlohmann::json steps = nlohmann::json::array();
  if (seen.rates.size() != out.steps.size()) throw std::runtime_error("an entry of the log for each update");
  for (size_t i = 0; i < out.steps.size(); ++i) {
    const TrainingStep& step = out.steps[i];
    steps.push_back({{"loss", step.loss}, {"tokens", step.num_input_tokens}, {"flops", step.flops}});
    const double tokens = seen.rates[i].tokens_per_second * step.seconds,
                 flops = seen.rates[i].flops_per_second * step.seconds;
    const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-6 * b; };
    if (!near(tokens, static_cast<double>(step.num_input_tokens)) || !near(flops, step.flops)) {
      throw std::runtime_error(cat("update ", i, ": rates of ", tokens, " tokens; it had ", step.num_input_tokens));
    }
  }
  return steps;
}

// Trains and writes the weights, the log and the updates of this process.
void train_and_write(const fs::path& folder, const TrainingArguments& arguments, const Shown& shown, int rank) {
  auto model = test_support::tiny_llama({.dtype = shown.dtype});
  if (shown.adapter) model->add_adapter({.r = 2, .lora_alpha = 8, .target_modules = {"q_proj", "down_proj"}}, 7);
  if (rank > 0) {  // rank 0's weights count
    const at::NoGradGuard no_grad;
    model->each_trained([](const std::string&, Tensor& tensor) { tensor.add_(1); });
  }
  const auto seen_rates = std::make_shared<SeenRates>();
  Trainer trainer(model, arguments, uneven_rows(), {.eval_dataset = uneven_rows(13), .callbacks = {seen_rates}});
  write_file(folder / cat(rank, ".steps.json"), steps_of(trainer.train(), *seen_rates).dump());
  trainer.evaluate();
  std::map<std::string, Tensor> seen;
  model->each_tensor([&](const std::string& name, Tensor& tensor) { seen[name] = tensor.detach(); });
  model->each_trained([&](const std::string& name, Tensor& tensor) { seen[name] = tensor.detach(); });
  save_safetensors(folder / cat(rank, ".safetensors"), TensorMap(seen.begin(), seen.end()));
  trainer.state().save(folder / cat(rank, ".json"), {});
}

void expect_same_weights(const fs::path& one, const fs::path& other, double tolerance) {
  const SafetensorsFile a(one), b(other);
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : a.names()) {
    const double off = (a.tensor(name).to(at::kDouble) - b.tensor(name).to(at::kDouble)).abs().max().item<double>();
    EXPECT_LE(off, tolerance) << name;
  }
}

void expect_same_log(const fs::path& one, const fs::path& other, double tolerance) {
  const auto a = Json::read(one).child("log_history").elements(), b = Json::read(other).child("log_history").elements();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (const char* key : {"loss", "grad_norm", "learning_rate", "epoch", "num_input_tokens_seen", "eval_loss",
                            "eval_loss_per_token", "train_loss", "total_flos"}) {
      ASSERT_EQ(a[i].has(key), b[i].has(key)) << key << " in entry " << i;
      if (!a[i].has(key)) continue;
      const auto expected = b[i].at<double>(key);
      EXPECT_NEAR(a[i].at<double>(key), expected, tolerance * std::max(1.0, std::abs(expected))) << key << ' ' << i;
    }
  }
}

void expect_same_steps(const fs::path& one, const fs::path& other, double tolerance) {
  const auto a = Json::read(one).elements(), b = Json::read(other).elements();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].at<int64_t>("tokens"), b[i].at<int64_t>("tokens")) << i;
    for (const char* key : {"loss", "flops"}) {
      const auto expected = b[i].at<double>(key);
      EXPECT_NEAR(a[i].at<double>(key), expected, tolerance * expected) << key << ' ' << i;
    }
  }
}

// What every rank counts of the batches that others read.
TEST(Ranks, CountLabelsAsTheBatchHasThem) {
  const std::vector<Example> rows = static_cast<const ExampleDataset&>(*uneven_rows()).examples();
  const std::vector<std::shared_ptr<const Dataset>> datasets = {
      std::make_shared<PackedDataset>(std::vector<int64_t>(40, 3), 7), uneven_rows(),
      packed_examples(rows, Packing::kBestFit, 16), packed_examples(rows, Packing::kWrapped, 16)};
  for (size_t i = 0; i < datasets.size(); ++i) {
    for (const std::vector<int64_t>& some : {std::vector<int64_t>{2}, {0, 3, 1}}) {
      EXPECT_EQ(datasets[i]->labels_in(some), label_count(datasets[i]->batch(some))) << i;
    }
  }
}

// A row of them is in no forward of rank 1: it gets no gradient there.
TEST(Ranks, AParameterWithoutGradientIsNamedOrAllowed) {
  const auto ended = [](bool find_unused) {
    return run_ranks({.size = 2}, [&](int rank) {
      Ranks ranks(*rank_environment(), {.timeout = 10});
      ranks.watched([&] {
        const TrainedTensors trained{{at::full({2}, 3.0).requires_grad_(), at::full({2}, 5.0).requires_grad_()},
                                     {"used", "unused"}};
        const auto sync = ranks.gradient_sync(trained, {.find_unused_parameters = find_unused});
        for (int step = 0; step < 2; ++step) {
          sync->before_forward(true);
          Tensor loss = trained.tensors[0].sum() * (rank + 1);
          if (rank == 0) loss = loss + trained.tensors[1].sum();
          sync->before_backward(loss, true);
          loss.backward();
          sync->after_backward(true);
        }
        const auto is = [](const Tensor& gradient, double value) { return at::equal(gradient, at::full({2}, value)); };
        if (!is(trained.tensors[0].grad(), 3) || !is(trained.tensors[1].grad(), 1)) throw std::runtime_error("values");
      });
    });
  };
  expect_all_well(ended(true));  // two steps of the means (1 + 2) / 2 and (1 + 0) / 2
  const auto refused = ended(false);
  EXPECT_NE(refused[1].status, 0);
  expect_has(refused[1].errors, {"none of unused", "ddp_find_unused_parameters"});
  expect_has(refused[0].errors, {"rank 1 on ", "none of unused"});
}

struct Split {
  const char* name;
  int ranks;
  int64_t batch, accumulation;          // of each rank
  int64_t whole_batch, whole_forwards;  // of one rank on the same examples
  Shown shown = {};
};
class RanksTrain : public testing::TestWithParam<Split> {};

// Adam's first steps are signs of gradients: where one is 0 but for rounding, a weight may differ by a whole step. The
// rows are such that none is. Weights: float32's rounding of small gradients, a step of 1e-2 each; 1.01e-6 was seen.
TEST_P(RanksTrain, IsOneRankOnTheJoinedBatch) {
  const Split& split = GetParam();
  const TempFolder whole, apart;
  expect_all_well(run_ranks({.size = split.ranks}, [&](int rank) {
    train_and_write(apart.path(), few_steps(split.batch, split.accumulation), split.shown, rank);
  }));
  ASSERT_EQ(test_support::status_of(test_support::in_child([&] {
              test_support::use_one_thread();
              train_and_write(whole.path(), few_steps(split.whole_batch, split.whole_forwards), split.shown, 0);
            })),
            0);
  expect_same_weights(apart / "0.safetensors", whole / "0.safetensors", 3e-6);
  expect_same_log(apart / "0.json", whole / "0.json", 1e-6);
  expect_same_steps(apart / "0.steps.json", whole / "0.steps.json", 1e-6);
  for (int rank = 1; rank < split.ranks; ++rank) {
    expect_same_weights(apart / cat(rank, ".safetensors"), apart / "0.safetensors", 0);
    expect_same_log(apart / cat(rank, ".json"), apart / "0.json", 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, RanksTrain,
                         testing::Values(Split{"two", 2, 2, 1, 2, 2}, Split{"four", 4, 1, 1, 1, 4},
                                         Split{"accumulation", 2, 2, 2, 2, 4},
                                         Split{"adapter", 2, 2, 2, 2, 4, {.adapter = true}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace hotswap
