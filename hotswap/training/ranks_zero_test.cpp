// ZeRO's stage 1 over ranks of this machine: the same bits as without, an r-th of the states on each of r ranks, and
// checkpoints that either resumes from.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "hotswap/base/json.h"
#include "hotswap/layers/norm.h"
#include "hotswap/training/checkpoint/folder.h"
#include "hotswap/training/memory_estimate.h"
#include "hotswap/training/optimizer_shards.h"
#include "hotswap/training/test_model.h"
#include "hotswap/training/test_ranks.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_all_well;
using test_support::expect_has;
using test_support::run_ranks;
using test_support::TempFolder;

TEST(BalancedOwners, GiveTheNextBySizeToTheRankWithTheLeast) {
  EXPECT_EQ(balanced_owners({3, 9, 5, 5, 1}, 2), (std::vector<int>{0, 0, 1, 1, 1}));  // 12 and 11
  EXPECT_EQ(balanced_owners({4, 4, 4}, 4), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(balanced_owners({}, 3), std::vector<int>{});
  EXPECT_EQ(balanced_owners({7, 0, 7}, 1), (std::vector<int>{0, 0, 0}));
}

struct ZeroVariant {
  const char* name;
  std::string states = "parameter";
  int ranks = 2;
  at::ScalarType dtype = at::kFloat;
  bool kernels = false, adapter = false, checkpointing = false;
  int64_t accumulation = 1;
  std::optional<int64_t> check_step = std::nullopt;
  double max_grad_norm = 0.5;  // below the norms of this model: gradients are clipped in each update
};

void PrintTo(const ZeroVariant& variant, std::ostream* out) { *out << variant.name; }

TrainingArguments arguments_of(const ZeroVariant& variant, int64_t zero_stage, const fs::path& output) {
  return {.output_dir = output.string(),
          .per_device_train_batch_size = 2,
          .gradient_accumulation_steps = variant.accumulation,
          .max_steps = 6,
          .learning_rate = 0.01,
          .weight_decay = 0.1,
          .max_grad_norm = variant.max_grad_norm,
          .gradient_checkpointing = variant.checkpointing,
          .optimizer_states = variant.states,
          .ddp_timeout = 60,
          .zero_stage = zero_stage,
          .logging_steps = 1,
          .save_steps = 3};
}

std::shared_ptr<const Dataset> zero_rows() {
  std::vector<Example> examples;
  for (int64_t i = 0; i < 24; ++i) {
    Example example;
    for (int64_t at = 0; at < 5 + i % 4; ++at) example.ids.push_back((1 + i * at) % 16);
    example.labels = example.ids;
    examples.push_back(example);
  }
  return std::make_shared<ExampleDataset>(std::move(examples), 0);
}

// What each rank writes beside the run: how many bytes of states it has, counted, and by the estimate.
void train_rank(const ZeroVariant& variant, int64_t zero_stage, const fs::path& output, const std::string& resume,
                int rank) {
  const auto model = test_support::tiny_llama({.layers = 2, .dtype = variant.dtype});
  if (variant.adapter) model->add_adapter({.r = 2, .lora_alpha = 8, .lora_dropout = 0.25}, 7);
  if (variant.kernels) model->kernelize();
  const TrainingArguments arguments = arguments_of(variant, zero_stage, output);
  const auto optimizer = make_optimizer(*model, arguments);
  Trainer trainer(model, arguments, zero_rows(), {.optimizer = optimizer, .check_step = variant.check_step});
  const int64_t estimated = optimizer_bytes(*optimizer);
  const TrainOutput out = trainer.train(resume);
  trainer.save_model();
  trainer.save_state();
  const nlohmann::json bytes = {
      {"counted", optimizer->state_bytes()}, {"estimated", estimated}, {"ranks", out.optimizer_bytes}};
  write_file(output.string() + cat(".", rank, ".json"), bytes.dump());
}

class ZeroStage1 : public testing::TestWithParam<ZeroVariant> {
 protected:
  fs::path train(const char* name, int64_t zero_stage, const std::string& resume = {}) const {
    const fs::path output = folder_ / name;
    expect_all_well(run_ranks({.size = GetParam().ranks},
                              [&](int rank) { train_rank(GetParam(), zero_stage, output, resume, rank); }));
    return output;
  }
  Json bytes_of(const char* name, int rank) const { return Json::read(folder_ / cat(name, ".", rank, ".json")); }
  TempFolder folder_;
};

nlohmann::json log_in(const fs::path& folder) {
  nlohmann::json log = nlohmann::json::array();
  for (const auto& entry : TrainerState::read(folder / "trainer_state.json").log_history) {
    for (const char* key : {"loss", "grad_norm", "train_loss"}) {
      if (entry.contains(key)) log.push_back(entry[key]);
    }
  }
  return log;
}

void expect_same_bytes(const fs::path& one, const fs::path& other) {
  EXPECT_TRUE(read_file(one) == read_file(other)) << one << " and " << other;
}

void expect_same_zero_run(const fs::path& one, const fs::path& other, bool adapter) {
  const std::string weights = adapter ? "adapter_model.safetensors" : "model.safetensors";
  expect_same_bytes(one / weights, other / weights);
  EXPECT_EQ(log_in(one), log_in(other));
  EXPECT_EQ(log_in(one).size(), 13u);  // two of each update, and the mean
  for (const char* file : {"optimizer.pt", "scheduler.pt"}) {
    expect_same_bytes(checkpoint_folder(one, 6) / file, checkpoint_folder(other, 6) / file);
  }
}

TEST_P(ZeroStage1, HasTheBitsOfEachRankWithAllStates) {
  const ZeroVariant& variant = GetParam();
  const fs::path plain = train("plain", 0), zero = train("zero", 1);
  expect_same_zero_run(zero, plain, variant.adapter);
  expect_same_bytes(checkpoint_folder(zero, 3) / "optimizer.pt", checkpoint_folder(plain, 3) / "optimizer.pt");
  // Either goes on from the other's checkpoint.
  expect_same_zero_run(train("zero_on", 1, checkpoint_folder(plain, 3).string()), plain, variant.adapter);
  expect_same_zero_run(train("plain_on", 0, checkpoint_folder(zero, 3).string()), plain, variant.adapter);
}

TEST_P(ZeroStage1, SharesTheBytesOfTheStatesOut) {
  const int ranks = GetParam().ranks;
  train("plain", 0);
  train("zero", 1);
  const auto whole = bytes_of("plain", 0).at<int64_t>("counted");
  const auto parameters = [&] {
    const auto model = test_support::tiny_llama({.layers = 2, .dtype = GetParam().dtype});
    if (GetParam().adapter) model->add_adapter({.r = 2, .lora_alpha = 8}, 7);
    return make_optimizer(*model, arguments_of(GetParam(), 0, ""))->parameters();
  }();
  int64_t max_state = 0;
  for (const Tensor& one : parameters) {
    max_state = std::max(max_state, state_bytes_of(one, optimizer_states_from(GetParam().states)));
  }
  const auto counts = static_cast<int64_t>(4 * parameters.size());  // of steps: each rank has all
  std::vector<int64_t> counted;
  for (int rank = 0; rank < ranks; ++rank) {
    counted.push_back(bytes_of("zero", rank).at<int64_t>("counted"));
    EXPECT_EQ(bytes_of("zero", rank).at<int64_t>("estimated"), counted.back());
    EXPECT_EQ(bytes_of("plain", rank).at<int64_t>("counted"), whole);
    EXPECT_LE(counted.back() - counts, (whole - counts) / ranks + max_state) << rank;
  }
  EXPECT_EQ(std::accumulate(counted.begin(), counted.end(), int64_t{0}), whole + (ranks - 1) * counts);
  for (int rank = 0; rank < ranks; ++rank) {  // each knows the others'
    EXPECT_EQ(bytes_of("zero", rank).at<std::vector<int64_t>>("ranks"), counted);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, ZeroStage1,
    testing::Values(
        ZeroVariant{.name = "parameter"}, ZeroVariant{.name = "parameter_of_four", .ranks = 4},
        ZeroVariant{.name = "bfloat16", .dtype = at::kBFloat16},
        ZeroVariant{.name = "master", .states = "float32_master", .dtype = at::kBFloat16},
        ZeroVariant{.name = "moments", .states = "bfloat16_moments", .dtype = at::kBFloat16},
        ZeroVariant{.name = "stochastic", .states = "stochastic", .dtype = at::kBFloat16},
        ZeroVariant{.name = "stochastic_of_four", .states = "stochastic", .ranks = 4, .dtype = at::kBFloat16},
        ZeroVariant{.name = "kernels", .kernels = true},
        ZeroVariant{.name = "kernels_master_of_four",
                    .states = "float32_master",
                    .ranks = 4,
                    .dtype = at::kBFloat16,
                    .kernels = true},
        ZeroVariant{.name = "kernels_stochastic", .states = "stochastic", .dtype = at::kBFloat16, .kernels = true},
        ZeroVariant{.name = "accumulation", .accumulation = 2},
        ZeroVariant{.name = "checkpointing", .checkpointing = true, .accumulation = 2},
        ZeroVariant{.name = "adapter", .adapter = true, .accumulation = 2},
        ZeroVariant{.name = "check_step", .kernels = true, .check_step = 2},
        ZeroVariant{.name = "unclipped", .max_grad_norm = 0}),
    [](const auto& info) { return std::string(info.param.name); });

// More ranks than parameters: some have nothing to update.
TEST(ZeroStage1Of, FewParametersLeavesRanksWithoutAny) {
  expect_all_well(run_ranks({.size = 3}, [](int rank) {
    Ranks ranks(*rank_environment(), {.timeout = 60});
    AdamW all({at::ones({3}), at::ones({2, 2})}, {.learning_rate = 0.1}),
        own({at::ones({3}), at::ones({2, 2})}, {.learning_rate = 0.1});
    OptimizerShards shards(own, ranks);
    for (AdamW* optimizer : {&all, &own}) {
      for (Tensor one : optimizer->parameters()) one.mutable_grad() = at::ones_like(one) * 0.5;
      optimizer->step();
    }
    shards.broadcast_parameters();
    for (size_t i = 0; i < 2; ++i) {
      if (!at::equal(all.parameters()[i], own.parameters()[i])) throw std::runtime_error(cat("parameter ", i));
    }
    const int64_t bytes = rank == 0 ? 32 : rank == 1 ? 24 : 0;  // averages of 4 and 3 elements
    if (own.state_bytes() != bytes + 8) throw std::runtime_error(cat(own.state_bytes(), " bytes"));
  }));
}

// With several ranks gradients are the reducer's memory, which the second of the two compared runs writes to.
TEST(CheckedStepOfRanks, SeesAKernelThatIsWrong) {
  expect_all_well(run_ranks({.size = 2}, [](int) {
    const auto model = test_support::tiny_llama({.layers = 2});
    model->kernelize();
    model->each_slot([](const std::string& name, SlotBase& slot) {
      if (name.find("layers.1.post_attention_layernorm") == std::string::npos || slot.layer() != "AddRMSNorm") return;
      slot.as<AddRmsNormForward>()->bind([](const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                                            double offset, const std::string& casting) {
        const Tensor h = x + residual;
        return std::tuple(stock::rms_norm(h, weight * 2, eps, offset, casting), h);
      });
    });
    double difference = 0;
    Trainer trainer(model, arguments_of({.name = "wrong"}, 1, ""), zero_rows(),
                    {.check_step = 3,
                     .on_step_check = [&](const StepCheck& check) { difference = check.rows.front().difference; }});
    trainer.train();
    if (difference < 0.1) throw std::runtime_error(cat("difference ", difference));
  }));
}

TEST(ZeroStageArgument, IsNoneOrOne) {
  const auto of = [](const char* json) {
    return test_support::message_of([&] { training_arguments_from(Json::parse(json, "args.json")); });
  };
  EXPECT_EQ(training_arguments_from(Json::parse(R"({"zero_stage": 1})", "args.json")).zero_stage, 1);
  EXPECT_EQ(to_json(TrainingArguments{.zero_stage = 1}).at("zero_stage"), 1);
  EXPECT_FALSE(to_json(TrainingArguments{}).contains("zero_stage"));
  EXPECT_EQ(of(R"({"zero_stage": null})"), "no error");
  expect_has(of(R"({"zero_stage": 2})"), {"zero_stage 0, or 1", "2, which shards gradients", "DeepSpeed"});
  expect_has(of(R"({"zero_stage": 4})"), {"zero_stage 0, or 1", "got 4"});
  expect_has(of(R"({"zero_stge": 1})"), {"did you mean zero_stage?"});
  expect_has(of(R"({"deepspeed": "ds.json"})"), {"zero_stage 1"});
}

TEST(ZeroStage1Of, OneOptimizerIsNotForgotten) {
  const auto model = test_support::tiny_llama();
  const auto optimizer = make_optimizer(*model, {});
  std::vector<bool> own(optimizer->parameters().size(), true);
  own[0] = false;
  optimizer->keep_only(own);
  expect_has(test_support::message_of([&] { Trainer(model, {.max_steps = 1}, zero_rows(), {.optimizer = optimizer}); }),
             {"the states of all parameters", "a rank's share", "zero_stage"});
  expect_has(test_support::message_of([&] { optimizer->keep_only({true}); }), {"for each of", "one value for each"});
}

}  // namespace
}  // namespace hotswap
