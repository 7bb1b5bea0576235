// The memory that is printed before a run, against the bytes of tensors that a step has.
#include "hotswap/training/memory_estimate.h"

#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "hotswap/base/env.h"
#include "hotswap/base/test_support.h"
#include "hotswap/kernelize/package/device.h"
#include "hotswap/models/lora.h"
#include "hotswap/training/live_memory.h"
#include "hotswap/training/test_model.h"
#include "hotswap/training/trainer.h"
#include "hotswap/training/training_work.h"

namespace hotswap {
namespace {

// Wide enough that a step's bytes are its layers' and its head's, not those of a few small tensors.
std::shared_ptr<CausalLM> small_llama(at::ScalarType dtype, at::Device device = at::kCPU) {
  const nlohmann::ordered_json config = {
      {"model_type", "llama"},      {"vocab_size", 2000},       {"hidden_size", 128},
      {"num_hidden_layers", 3},     {"num_attention_heads", 4}, {"num_key_value_heads", 2},
      {"intermediate_size", 320},   {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 1024},
      {"tie_word_embeddings", true}};
  auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->requires_grad(true);
  model->init_weights(3, dtype, device);
  return model;
}

struct EstimateCase {
  const char* name;
  bool kernels, lora;
  at::ScalarType dtype = at::kFloat;
  const char* states = "parameter";
};

class Estimate : public testing::TestWithParam<EstimateCase> {
 protected:
  static constexpr StepShape kShape{.rows = 3, .length = 300};
  void make(at::Device device) {
    model_ = small_llama(GetParam().dtype, device);
    if (GetParam().lora) model_->add_adapter({.r = 8, .target_modules = "all-linear"}, 1);
    model_->train();
    if (GetParam().kernels) model_->kernelize();
    optimizer_ = make_optimizer(*model_, {.optimizer_states = GetParam().states});
    ids_ = at::randint(2000, {kShape.rows, kShape.length}, at::TensorOptions(at::kLong).device(device));
  }
  void forward_backward() {
    const Tensor loss = (*model_)({.input_ids = ids_, .labels = ids_}).loss;  // as the loop: logits are gone
    loss.backward();
  }
  static void expect_near(int64_t estimated, int64_t measured, double share, const char* what) {
    EXPECT_NEAR(static_cast<double>(estimated), static_cast<double>(measured), share * static_cast<double>(measured))
        << what;
  }
  std::shared_ptr<CausalLM> model_;
  std::shared_ptr<AdamW> optimizer_;
  Tensor ids_;
};

TEST_P(Estimate, WeightsGradientsAndStatesAreExact) {
  make(at::kCPU);
  const MemoryEstimate estimate = estimate_memory(*model_, *optimizer_, kShape);
  int64_t weights = 0, gradients = 0, states = 0;
  model_->each_tensor([&](const std::string&, Tensor& t) { weights += static_cast<int64_t>(t.nbytes()); });
  if (GetParam().lora) {
    model_->each_trained([&](const std::string&, Tensor& t) { weights += static_cast<int64_t>(t.nbytes()); });
  }
  forward_backward();
  for (const Tensor& parameter : optimizer_->parameters()) {
    gradients += static_cast<int64_t>(parameter.grad().nbytes());
  }
  optimizer_->step();
  for (const AdamWState& state : optimizer_->states()) {
    for (const Tensor& t : {state.average, state.average_square, state.steps, state.master}) {
      if (t.defined()) states += static_cast<int64_t>(t.nbytes());
    }
  }
  EXPECT_EQ(estimate.weights, weights);
  EXPECT_EQ(estimate.gradients, gradients);
  EXPECT_EQ(estimate.optimizer, states);
}

TEST_P(Estimate, ActivationsAreThoseOfTheForward) {
  make(at::kCPU);
  const MemoryEstimate estimate = estimate_memory(*model_, *optimizer_, kShape);
  const LiveMemory memory;
  const Tensor loss = (*model_)({.input_ids = ids_, .labels = ids_}).loss;
  expect_near(estimate.activations, memory.now(), 0.05, "kept for the backward");
}

// All that a second update has at once beside the weights.
TEST_P(Estimate, IsThePeakOfAStep) {
  make(at::kCPU);
  const MemoryEstimate estimate = estimate_memory(*model_, *optimizer_, kShape);
  const LiveMemory memory;
  for (int step = 0; step < 2; ++step) {
    forward_backward();
    optimizer_->step();
    optimizer_->zero_grad();
  }
  // In 16 bits the loss has some float32 copies of rows of hidden states, of which a wider model makes less of a share.
  const double share = GetParam().dtype == at::kFloat ? 0.05 : 0.1;
  expect_near(estimate.total() - estimate.weights, memory.peak(), share, "at once");
}

TEST_P(Estimate, LeavesTheModelAsItWas) {
  make(at::kCPU);
  const auto loss = [&] { return (*model_)({.input_ids = ids_, .labels = ids_}).loss.item<double>(); };
  const double before = loss();
  estimate_memory(*model_, *optimizer_, kShape);
  EXPECT_EQ(loss(), before);
  for (const Tensor& parameter : optimizer_->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

INSTANTIATE_TEST_SUITE_P(Cases, Estimate,
                         testing::Values(EstimateCase{"Stock", false, false}, EstimateCase{"Kernels", true, false},
                                         EstimateCase{"Lora", true, true},
                                         EstimateCase{"Bfloat16", true, false, at::kBFloat16},
                                         EstimateCase{"Master", true, false, at::kBFloat16, "float32_master"},
                                         EstimateCase{"Moments", true, false, at::kBFloat16, "bfloat16_moments"},
                                         EstimateCase{"Stochastic", true, false, at::kBFloat16, "stochastic"}),
                         [](const auto& info) { return info.param.name; });

const bool has_gpu = cuda_available();  // before main: torch remembers the first answer

TEST(EstimateOnAGpu, IsThePeakOfAStep) {
  if (!has_gpu && env_is_set(EnvVar::kRequireCuda)) FAIL() << "HOTSWAP_REQUIRE_CUDA is set: no GPU that torch can use";
  if (!has_gpu) GTEST_SKIP() << "no GPU that torch can use";
  const at::Device gpu("cuda:0");
  const auto model = small_llama(at::kBFloat16, gpu);
  model->train();
  model->kernelize();
  const auto optimizer = make_optimizer(*model, {});
  const StepShape shape{.rows = 16, .length = 1024};
  const MemoryEstimate estimate = estimate_memory(*model, *optimizer, shape);
  const auto ids = at::randint(2000, {shape.rows, shape.length}, at::TensorOptions(at::kLong).device(gpu));
  std::string phases;  // of two steps: forward, backward, update
  int64_t measured = 0;
  const auto peak_of = [&](const char* phase, const auto& run) {
    ASSERT_TRUE(reset_peak_device_memory(gpu));
    run();
    phases += cat(" ", phase, " ", peak_device_memory(gpu));
    measured = std::max(measured, peak_device_memory(gpu));
  };
  for (int step = 0; step < 2; ++step) {
    Tensor loss;
    peak_of("forward", [&] { loss = (*model)({.input_ids = ids, .labels = ids}).loss; });
    peak_of("backward", [&] { loss.backward(); });
    peak_of("update", [&] { optimizer->step(); });
    optimizer->zero_grad();
  }
  EXPECT_NEAR(static_cast<double>(estimate.total()), static_cast<double>(measured), 0.1 * static_cast<double>(measured))
      << estimate.str() << ";" << phases;
}

// getChosenWorkspaceSize() of torch.
TEST(EstimatedLibraries, AreTorchsWorkspacesByComputeCapability) {
  EXPECT_EQ(library_bytes(std::nullopt), 0) << "a CPU";
  for (const int64_t hopper_or_blackwell : {90, 100, 103, 120}) {
    EXPECT_EQ(library_bytes(hopper_or_blackwell), 3 * (int64_t{32} << 20)) << hopper_or_blackwell;
  }
  for (const int64_t other : {75, 80, 86, 89}) EXPECT_EQ(library_bytes(other), 3 * 8519680) << other;
}

TEST(Work, IsSixOperationsAnElementAndTokenAndTheAttention) {
  const auto model = small_llama(at::kFloat);
  // q and o, k and v, gate up down, the head
  const double products = 3 * (2.0 * 128 * 128 + 2.0 * 64 * 128 + 3.0 * 320 * 128) + 2000.0 * 128;
  const double attention = 3 * 6.0 * 128 * 100;
  EXPECT_DOUBLE_EQ(TrainingWork(*model).flops(4, 100), 400 * (6 * products + attention));
  model->add_adapter({.r = 2, .target_modules = {"q_proj"}}, 1);
  const double adapters = 3 * 2.0 * (128 + 128);
  EXPECT_DOUBLE_EQ(TrainingWork(*model).flops(4, 100), 400 * (4 * products + 6 * adapters + attention));
}

TEST(Work, PeaksAreOfKnownNamesOnly) {
  EXPECT_EQ(peak_flops("NVIDIA H200"), 989.5e12);
  EXPECT_EQ(peak_flops("NVIDIA H100 80GB HBM3"), 989.5e12);
  EXPECT_EQ(peak_flops("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(peak_flops("NVIDIA H200 NVL"), 835.5e12);
  EXPECT_EQ(peak_flops("NVIDIA H20"), 148e12);
  for (const char* other : {"", "NVIDIA L40", "NVIDIA H2000", "NVIDIA GeForce RTX 4090", "H200"}) {
    EXPECT_FALSE(peak_flops(other)) << other;
  }
  EXPECT_FALSE(peak_flops_for(*small_llama(at::kBFloat16))) << "a CPU";
}

}  // namespace
}  // namespace hotswap
