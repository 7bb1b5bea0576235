// Generation on a GPU says what it says on the CPU, with both caches, stock and by kernels; and a step with a static
// cache can be captured in a CUDA graph, which it could not if it waited for the device.
#include <ATen/ops/allclose.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "hotswap/generation/generate.h"
#include "hotswap/kernelize/package/device.h"
#include "hotswap/models/auto.h"

namespace hotswap {
namespace {

using Ids = std::vector<int64_t>;

std::shared_ptr<CausalLM> tiny(at::Device device) {
  const nlohmann::ordered_json config = {{"model_type", "qwen3"},
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
                                         {"head_dim", 16}};
  auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->init_weights(3, at::kFloat, device);
  model->eval();
  return model;
}

// Asked before main: torch remembers the first answer in a process, and libtorch_cuda must be there by then.
const bool has_gpu = cuda_available();

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu) GTEST_SKIP() << "no GPU that torch can use";
  }
  const Tensor batch_ = at::tensor(Ids{5, 6, 7, 8, 0, 11, 12, 13}, at::kLong).view({2, 4});
  const Tensor padding_ = at::tensor(Ids{1, 1, 1, 1, 0, 1, 1, 1}, at::kLong).view({2, 4});
};

// Random weights of this size leave no two logits nearly equal, so that the ids are the same for every rounding.
TEST_F(OnGpu, GeneratesWhatTheCpuGenerates) {
  const auto here = tiny(at::kCPU), there = tiny(at::Device(at::kCUDA, 0));
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

// Of a prompt of 500 tokens the 12th step looks at more keys than the graph was captured for.
TEST_F(OnGpu, StepsAreCapturedAgainWhenKeysAreMore) {
  const auto here = tiny(at::kCPU), there = tiny(at::Device(at::kCUDA, 0));
  Ids prompt(500);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int64_t>(i * 7 % 50);
  const GenerateArguments arguments{.input_ids = at::tensor(prompt, at::kLong).unsqueeze(0),
                                    .config = {.max_new_tokens = 40}};
  const GenerateResult got = generate(*there, arguments);
  EXPECT_TRUE(got.captured) << got.why_not_captured;
  EXPECT_EQ(got.new_ids, generate(*here, arguments).new_ids);
}

// A function of the CUDA runtime that torch brought along; 0 is success.
template <class... Args>
void runtime(const char* name, Args... args) {
  const auto fn = reinterpret_cast<int (*)(Args...)>(dlsym(RTLD_DEFAULT, name));
  ASSERT_NE(fn, nullptr) << name;
  ASSERT_EQ(fn(args...), 0) << name;
}

TEST_F(OnGpu, AStepWithAStaticCacheIsCaptured) {
  const c10::InferenceMode inference;
  const at::Device device(at::kCUDA, 0);
  const auto model = tiny(device);
  for (const bool kernels : {false, true}) {
    if (kernels) model->kernelize(Mode::of_training(false));
    const auto cache = model->make_cache({.implementation = "static", .max_cache_len = 16});
    const Tensor prompt = batch_.to(device), token = at::tensor(Ids{9, 10}, at::kLong).view({2, 1}).to(device);
    const auto step = [&] { return (*model)({.input_ids = token, .cache = cache.get(), .logits_to_keep = 1}).logits; };
    (*model)({.input_ids = prompt, .cache = cache.get()});
    const Tensor want = step();  // the fifth token; the captured step is the fifth again
    const auto* guard = c10::impl::getDeviceGuardImpl(at::kCUDA);
    const c10::Stream stream = guard->getNewStream(device), before = guard->exchangeStream(stream);
    step();  // what a library makes once for a stream is made before the capture
    cache->crop(4);
    void *graph = nullptr, *run = nullptr, *handle = stream.native_handle();
    constexpr int kRelaxed = 2;  // the allocator may ask for memory
    runtime("cudaDeviceSynchronize");
    runtime("cudaStreamBeginCapture", handle, kRelaxed);
    const Tensor got = step();
    runtime("cudaStreamEndCapture", handle, &graph);
    runtime("cudaGraphInstantiateWithFlags", &run, graph, 0ull);
    got.zero_();
    runtime("cudaGraphLaunch", run, handle);
    runtime("cudaDeviceSynchronize");
    guard->exchangeStream(before);
    EXPECT_TRUE(at::allclose(got, want, 1e-4, 1e-4)) << "kernels " << kernels;
    runtime("cudaGraphExecDestroy", run);
    runtime("cudaGraphDestroy", graph);
  }
}

}  // namespace
}  // namespace hotswap
