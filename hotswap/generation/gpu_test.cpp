// Generation on a GPU gives what it gives on the CPU, with both caches, stock and by kernels; and a step of static
// shape can be captured in a CUDA graph, which it could not if it waited for the device.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "hotswap/engine/cuda_graph.h"
#include "hotswap/engine/test_gpu.h"
#include "hotswap/engine/test_pool.h"
#include "hotswap/engine/uniform_step.h"
#include "hotswap/generation/generate.h"
#include "hotswap/generation/test_sampling.h"
#include "hotswap/layers/cache.h"
#include "hotswap/models/auto.h"

namespace hotswap {
namespace {

using Ids = std::vector<int64_t>;

std::shared_ptr<CausalLM> tiny_on(at::Device device, at::ScalarType dtype = at::kFloat, int64_t head_dim = 16,
                                  const nlohmann::ordered_json& more = nlohmann::ordered_json::object()) {
  nlohmann::ordered_json config = {{"model_type", "qwen3"},
                                   {"vocab_size", 50},
                                   {"hidden_size", 32},
                                   {"num_hidden_layers", 2},
                                   {"num_attention_heads", 4},
                                   {"num_key_value_heads", 2},
                                   {"intermediate_size", 64},
                                   {"rms_norm_eps", 1e-5},
                                   {"max_position_embeddings", 1024},
                                   {"initializer_range", 0.5},
                                   {"tie_word_embeddings", true},
                                   {"head_dim", head_dim}};
  config.update(more);
  auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->init_weights(3, dtype, device);
  model->eval();
  return model;
}

class OnGpu : public test_support::OnGpu<> {
 protected:
  const Tensor batch_ = at::tensor(Ids{5, 6, 7, 8, 0, 11, 12, 13}, at::kLong).view({2, 4});
  const Tensor padding_ = at::tensor(Ids{1, 1, 1, 1, 0, 1, 1, 1}, at::kLong).view({2, 4});
};

// Random weights of this size leave no two logits nearly equal, so that the ids are the same for every rounding.
TEST_F(OnGpu, GeneratesWhatTheCpuGenerates) {
  const auto here = tiny_on(at::kCPU), there = tiny_on(test_support::gpu());
  for (const bool kernels : {false, true}) {
    if (kernels) {
      EXPECT_GT(there->kernelize(Mode::of_training(false)).bound(), 0);
    }
    for (const char* cache : {"dynamic", "static"}) {
      for (const Tensor& mask : {Tensor(), padding_}) {
        const GenerateArguments arguments{.input_ids = batch_,
                                          .config = {.max_new_tokens = 24, .cache_implementation = cache},
                                          .attention_mask = mask};
        const GenerateResult want = generate(*here, arguments), got = generate(*there, arguments);
        EXPECT_TRUE(got.ids.is_cuda());
        EXPECT_EQ(got.captured, std::string("static") == cache) << got.why_not_captured;
        EXPECT_EQ(got.new_ids, want.new_ids) << cache << ", kernels " << kernels;
      }
    }
  }
}

// Other frequencies from the 17th token on, in steps that were captured before it; and from then on, of one that is
// dynamic, others with every token. A model that has said much begins anew.
TEST_F(OnGpu, FrequenciesThatDependOnTheLengthAreChosenInTheGraph) {
  const std::vector<double> few(8, 1.0), many = {1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0};
  for (const nlohmann::ordered_json& rope : std::vector<nlohmann::ordered_json>{
           {{"rope_type", "dynamic"}, {"factor", 4.0}},
           {{"rope_type", "longrope"}, {"factor", 4.0}, {"short_factor", few}, {"long_factor", many}}}) {
    const nlohmann::ordered_json more = {{"rope_scaling", rope},
                                         {"original_max_position_embeddings", 16},
                                         {"max_position_embeddings", rope["rope_type"] == "dynamic" ? 16 : 64}};
    const auto here = tiny_on(at::kCPU, at::kFloat, 16, more);
    const auto there = tiny_on(test_support::gpu(), at::kFloat, 16, more);
    for (int again = 0; again < 2; ++again) {
      for (const Tensor& mask : {Tensor(), padding_}) {
        const GenerateArguments arguments{
            .input_ids = batch_, .config = {.max_new_tokens = 40}, .attention_mask = mask};
        const GenerateResult got = generate(*there, arguments);
        EXPECT_TRUE(got.captured) << got.why_not_captured;
        EXPECT_EQ(got.new_ids, generate(*here, arguments).new_ids)
            << rope["rope_type"] << ", padded " << mask.defined();
      }
    }
  }
}

// Of a prompt of 500 tokens the 12th step looks at more keys than the graph was captured for.
TEST_F(OnGpu, StepsAreCapturedAgainWhenKeysAreMore) {
  const auto here = tiny_on(at::kCPU), there = tiny_on(test_support::gpu());
  Ids prompt(500);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int64_t>(i * 7 % 50);
  const GenerateArguments arguments{.input_ids = at::tensor(prompt, at::kLong).unsqueeze(0),
                                    .config = {.max_new_tokens = 40}};
  const GenerateResult got = generate(*there, arguments);
  EXPECT_TRUE(got.captured) << got.why_not_captured;
  EXPECT_EQ(got.new_ids, generate(*here, arguments).new_ids);
}

// From prompts of one token through every length of the first graph and into the second. No two tokens come after each
// other twice: in a text that goes in circles all keys are alike, and a stale one would not be seen.
TEST_F(OnGpu, NothingIsStaleAtAnyLength) {
  const auto here = tiny_on(at::kCPU), there = tiny_on(test_support::gpu());
  const GenerateArguments arguments{.input_ids = at::tensor(Ids{5, 9}, at::kLong).view({2, 1}),
                                    .config = {.max_new_tokens = 540, .no_repeat_ngram_size = 2}};
  const auto want = generate(*here, arguments).new_ids;
  for (const bool kernels : {false, true}) {
    if (kernels) {
      EXPECT_GT(there->kernelize(Mode::of_training(false)).bound(), 0);
    }
    const GenerateResult got = generate(*there, arguments);
    EXPECT_TRUE(got.captured) << got.why_not_captured;
    EXPECT_EQ(got.new_ids, want) << "kernels " << kernels;
    EXPECT_EQ(generate(*there, arguments).new_ids, got.new_ids) << "again, kernels " << kernels;
  }
}

// The device is one step ahead of the host: what it makes after the last token is never shown.
TEST_F(OnGpu, AStopThatIsReadOneStepLateShowsNothingMore) {
  const auto here = tiny_on(at::kCPU), there = tiny_on(test_support::gpu());
  const GenerateArguments free{.input_ids = batch_, .config = {.max_new_tokens = 24}};
  const auto said = generate(*here, free).new_ids;
  GenerateArguments ending = free;
  ending.config.eos_token_id = Ids{said[0][9], said[1][4]};
  ending.config.pad_token_id = 0;
  int64_t calls = 0;
  ending.on_tokens = [&](const Ids& tokens) {
    for (size_t row = 0; row < 2; ++row) {
      const auto& mine = said[row];
      const auto end = std::find_if(mine.begin(), mine.end(), [&](int64_t id) {
        return id == (*ending.config.eos_token_id)[0] || id == (*ending.config.eos_token_id)[1];
      });
      EXPECT_EQ(tokens[row], calls <= end - mine.begin() ? mine[calls] : 0) << "row " << row << ", step " << calls;
    }
    ++calls;
    return true;
  };
  const GenerateResult got = generate(*there, ending);
  EXPECT_TRUE(got.captured) << got.why_not_captured;
  EXPECT_EQ(got.steps, calls);
  EXPECT_EQ(got.ids.size(1), 4 + got.steps);
  ending.on_tokens = nullptr;
  EXPECT_EQ(got.new_ids, generate(*here, ending).new_ids);

  ending = free;
  calls = 0;
  ending.on_tokens = [&](const Ids&) { return ++calls < 20; };
  EXPECT_EQ(generate(*there, ending).steps, 20);
  EXPECT_EQ(calls, 20);
}

TEST_F(OnGpu, CapturedSamplesRepeatWithTheirSeedAndPenalisesWhatWasSaid) {
  const auto there = tiny_on(test_support::gpu());
  const auto run = [&](const GenerationConfig& config) {
    const GenerateResult got = generate(*there, {.input_ids = batch_, .config = config});
    EXPECT_TRUE(got.captured) << got.why_not_captured;
    return got.new_ids;
  };
  GenerationConfig config{.max_new_tokens = 40, .do_sample = true, .temperature = 3.0, .top_k = 20, .top_p = 0.95};
  config.seed = 1;
  const auto one = run(config);
  EXPECT_EQ(run(config), one);
  config.seed = 2;
  EXPECT_NE(run(config), one);

  // Greedy, so that the CPU says the same.
  const GenerationConfig penalised{.max_new_tokens = 40, .repetition_penalty = 3.0};
  EXPECT_EQ(run(penalised), generate(*tiny_on(at::kCPU), {.input_ids = batch_, .config = penalised}).new_ids);
}

// Each replay draws anew.
TEST_F(OnGpu, ACapturedSamplerDrawsEachTokenAsOftenAsItIsLikely) {
  const c10::InferenceMode inference;
  const at::Device device = test_support::gpu();
  const Tensor logits = test_support::sampling_logits().to(device).expand({200, 5}).contiguous();
  for (const auto& [config, want] : test_support::sampling_cases()) {
    GenerationConfig seeded = config;
    seeded.seed = 11;
    Sampler sampler(seeded, device);
    auto graph = std::move(*make_cuda_graph(device));
    Tensor drawn;
    const auto draw = [&] { drawn = sampler.next(logits, logits); };
    graph->draws_from(*sampler.generator());
    graph->warm_up(draw);
    graph->capture(draw);
    std::vector<Tensor> all;
    for (int i = 0; i < 100; ++i) {
      graph->replay();
      all.push_back(drawn.clone());
    }
    test_support::expect_drawn(at::cat(all), want, cat("temperature ", config.temperature.value_or(1)));
  }
}

// 64 runs of each, token by token.
TEST_F(OnGpu, CapturedRunsAreDrawnAsThoseOfStockSteps) {
  const auto there = tiny_on(test_support::gpu(), at::kFloat, 16, {{"vocab_size", 8}, {"initializer_range", 0.3}});
  const Tensor stock = test_support::sampled_runs(*there, "dynamic", 1);
  for (const bool kernels : {false, true}) {
    if (kernels) {
      EXPECT_GT(there->kernelize(Mode::of_training(false)).bound(), 0);
    }
    const Tensor ours = test_support::sampled_runs(*there, "static", 2);
    for (int64_t token = 0; token < stock.size(1); ++token) {
      EXPECT_LT(test_support::apart(ours.select(1, token), stock.select(1, token)), 1)
          << "token " << token << ", kernels " << kernels;
    }
  }
}

// In bfloat16 with heads of 64 the whole layer is one kernel's.
TEST_F(OnGpu, AStepOfWholeLayers) {
  const auto there = tiny_on(test_support::gpu(), at::kBFloat16, 64);
  const GenerateArguments arguments{.input_ids = batch_, .config = {.max_new_tokens = 24}};
  const GenerateResult want = generate(*there, arguments);
  const KernelReport& report = there->kernelize(Mode::of_training(false));
  EXPECT_EQ(std::count_if(report.rows.begin(), report.rows.end(),
                          [](const KernelRow& row) { return row.layer == "DecoderLayer" && row.package == "decode"; }),
            2)
      << report;
  const GenerateResult got = generate(*there, arguments);
  EXPECT_TRUE(got.captured) << got.why_not_captured;
  // The first token is the prefill's; later ones may part where two logits are as good as equal.
  EXPECT_EQ(got.new_ids[0][0], want.new_ids[0][0]);
  EXPECT_EQ(generate(*there, arguments).new_ids, got.new_ids);
  const c10::InferenceMode inference;
  const Tensor ids = batch_.to(test_support::gpu());
  const auto cache = there->make_cache();
  (*there)({.input_ids = ids, .cache = cache.get()});
  const Tensor parts =
      (*there)({.input_ids = ids.narrow(1, 0, 1), .cache = cache.get()}).logits.select(1, 0).to(at::kFloat);
  test_support::RanPrompts ran = test_support::ran_prompts(*there, batch_, 8);
  const Tensor whole = UniformStep(ran.pool, 8).forward(*there, ids.select(1, 0)).to(at::kFloat);
  EXPECT_LT((whole - parts).norm().item<double>(), 0.02 * parts.norm().item<double>());  // a few roundings of bfloat16
}

// A function of the CUDA runtime that torch brought along; 0 is success.
template <class... Args>
void runtime(const char* name, Args... args) {
  const auto fn = reinterpret_cast<int (*)(Args...)>(dlsym(RTLD_DEFAULT, name));
  ASSERT_NE(fn, nullptr) << name;
  ASSERT_EQ(fn(args...), 0) << name;
}

TEST_F(OnGpu, AStepOfStaticShapeIsCaptured) {
  const c10::InferenceMode inference;
  const at::Device device = test_support::gpu();
  const auto* guard = c10::impl::getDeviceGuardImpl(at::kCUDA);
  const auto model = tiny_on(device);
  for (const bool kernels : {false, true}) {
    if (kernels) model->kernelize(Mode::of_training(false));
    test_support::RanPrompts ran = test_support::ran_prompts(*model, batch_, 16);
    const Tensor token = at::tensor(Ids{9, 10}, at::kLong).to(device);
    // The fifth token each time: nothing is committed.
    UniformStep first(ran.pool, 16), warm_up(ran.pool, 16), captured(ran.pool, 16);
    const Tensor want = first.forward(*model, token);
    guard->synchronizeDevice(device.index());  // no stream of the pool waits for this one
    const c10::Stream stream = guard->getNewStream(device), before = guard->exchangeStream(stream);
    warm_up.forward(*model, token);  // what a library makes once for a stream is made before the capture
    void *graph = nullptr, *run = nullptr, *handle = stream.native_handle();
    constexpr int kRelaxed = 2;  // the allocator may ask for memory
    guard->synchronizeDevice(device.index());
    runtime("cudaStreamBeginCapture", handle, kRelaxed);
    const Tensor got = captured.forward(*model, token);
    runtime("cudaStreamEndCapture", handle, &graph);
    runtime("cudaGraphInstantiateWithFlags", &run, graph, 0ull);
    got.zero_();
    runtime("cudaGraphLaunch", run, handle);
    guard->synchronizeDevice(device.index());
    guard->exchangeStream(before);
    EXPECT_TRUE(at::allclose(got, want, 1e-4, 1e-4)) << "kernels " << kernels;
    runtime("cudaGraphExecDestroy", run);
    runtime("cudaGraphDestroy", graph);
  }
}

}  // namespace
}  // namespace hotswap
