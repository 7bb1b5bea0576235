// Models with recurrences on a GPU: what they generate there, step by step and captured, stock and by kernels, is what
// they generate on the CPU; so are logits and gradients of a training step.
#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <set>

#include "hotswap/engine/test_gpu.h"
#include "hotswap/generation/generate.h"
#include "hotswap/layers/cache.h"
#include "hotswap/models/auto.h"

namespace hotswap {
namespace {

using Ids = std::vector<int64_t>;

std::shared_ptr<CausalLM> tiny_mamba(const std::string& family, at::Device device, at::ScalarType dtype = at::kFloat) {
  const nlohmann::ordered_json config = {{"model_type", family},    {"vocab_size", 50},
                                         {"hidden_size", 32},       {"num_hidden_layers", 2},
                                         {"intermediate_size", 64}, {"num_attention_heads", 4},
                                         {"rms_norm_eps", 1e-5},    {"state_size", 16},
                                         {"num_heads", 8},          {"head_dim", 8},
                                         {"n_groups", 2},           {"initializer_range", 0.4},
                                         {"num_experts", 4},        {"num_experts_per_tok", 2},
                                         {"attn_layer_period", 2},  {"attn_layer_offset", 1},
                                         {"chunk_size", 8},         {"max_position_embeddings", 128}};
  auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->init_weights(3, dtype, device);
  model->eval();
  return model;
}

const at::Device mamba_gpu = test_support::gpu();

double relative_difference(const Tensor& got, const Tensor& want) {
  const Tensor a = got.detach().to(at::kCPU, at::kDouble), b = want.detach().to(at::kCPU, at::kDouble);
  return ((a - b).norm() / b.norm().clamp_min(1e-30)).item<double>();
}

// Layers of the package, all of them: one that stays stock would make a test of kernels pass. Steps of generation have
// no backward.
void expect_served(const KernelReport& report, bool training) {
  const std::set<std::string> names = {"causal_conv1d_fn", "selective_scan_fn", "mamba_chunk_scan_combined",
                                       "MambaRMSNormGated"};
  const std::set<std::string> steps = {"causal_conv1d_update", "selective_state_update"};
  int64_t served = 0;
  for (const KernelRow& row : report.rows) {
    if (!names.contains(row.layer) && (training || !steps.contains(row.layer))) continue;
    EXPECT_TRUE(row.package == "mamba") << row.layer << ": " << row.reason;
    ++served;
  }
  EXPECT_GE(served, training ? 2 : 4);
}

class MambaOnGpu : public test_support::OnGpu<testing::TestWithParam<const char*>> {
 protected:
  const Tensor batch_ = at::tensor(Ids{5, 6, 7, 8, 9, 0, 11, 12, 13, 14}, at::kLong).view({2, 5});
  const Tensor padding_ = at::tensor(Ids{1, 1, 1, 1, 1, 0, 1, 1, 1, 1}, at::kLong).view({2, 5});
};

// Random weights of this size leave no two logits nearly equal, so that the ids are the same for every rounding.
TEST_P(MambaOnGpu, GeneratesWhatTheCpuGenerates) {
  const auto here = tiny_mamba(GetParam(), at::kCPU), there = tiny_mamba(GetParam(), mamba_gpu);
  for (const bool kernels : {false, true}) {
    if (kernels) expect_served(there->kernelize(Mode::of_training(false)), false);
    for (const char* cache : {"dynamic", "static"}) {
      for (const Tensor& mask : {Tensor(), padding_}) {
        const GenerateArguments arguments{.input_ids = batch_,
                                          .config = {.max_new_tokens = 24, .cache_implementation = cache},
                                          .attention_mask = mask};
        const GenerateResult want = generate(*here, arguments), got = generate(*there, arguments);
        EXPECT_TRUE(got.ids.is_cuda());
        // Stock experts ask the host how many tokens each of them has.
        const bool can_be = kernels || std::string("jamba") != GetParam();
        EXPECT_EQ(got.captured, can_be && std::string("static") == cache)
            << got.why_not_captured << ", kernels " << kernels;
        EXPECT_EQ(got.new_ids, want.new_ids) << cache << ", kernels " << kernels << ", padded " << mask.defined();
      }
    }
  }
}

TEST_P(MambaOnGpu, LogitsOfAPromptAndOfAStepBehindIt) {
  const c10::InferenceMode inference;
  const auto logits_of = [&](CausalLM& model) {
    const auto cache = model.make_cache();
    const Tensor ids = batch_.to(model.device());
    const Tensor prompt = model({.input_ids = ids, .cache = cache.get()}).logits;
    return std::pair(prompt, model({.input_ids = ids.narrow(1, 0, 1), .cache = cache.get()}).logits);
  };
  const auto here = tiny_mamba(GetParam(), at::kCPU), there = tiny_mamba(GetParam(), mamba_gpu);
  const auto [prompt, step] = logits_of(*here);
  for (const bool kernels : {false, true}) {
    if (kernels) there->kernelize(Mode::of_training(false));
    const auto [got_prompt, got_step] = logits_of(*there);
    EXPECT_LE(relative_difference(got_prompt, prompt), 1e-5) << "kernels " << kernels;
    EXPECT_LE(relative_difference(got_step, step), 1e-5) << "kernels " << kernels;
  }
}

TEST_P(MambaOnGpu, ATrainingStep) {
  const auto grads_of = [&](CausalLM& model) {
    model.train();
    model.requires_grad(true);
    const Tensor ids = batch_.to(model.device());
    const Tensor loss = model({.input_ids = ids, .labels = ids}).loss;
    loss.backward();
    std::vector<Tensor> grads{loss.detach()};
    for (const Tensor& p : model.parameters()) grads.push_back(p.grad());
    return grads;
  };
  const auto here = tiny_mamba(GetParam(), at::kCPU), there = tiny_mamba(GetParam(), mamba_gpu);
  expect_served(there->kernelize(Mode::of_training(true)), true);
  const std::vector<Tensor> want = grads_of(*here), got = grads_of(*there);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].defined(), want[i].defined()) << i;
    if (!want[i].defined()) continue;  // an expert that no token came to
    EXPECT_LE(relative_difference(got[i], want[i]), 1e-4) << "parameter " << i << " of " << want[i].sizes();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MambaOnGpu, testing::Values("mamba", "falcon_mamba", "mamba2", "jamba"));

}  // namespace
}  // namespace hotswap
