// Requests of several threads to one model: each gets, bit for bit, what it gets when it is the only one.
//
// HOTSWAP_THREAD_REQUESTS: requests of each of the 16 threads, by default 3; 200 before a release.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <barrier>
#include <cstdlib>
#include <random>
#include <thread>

#include "hotswap/generation/generate.h"
#include "hotswap/models/auto.h"

namespace hotswap {
namespace {

using Tensors = std::vector<Tensor>;
using Request = std::function<Tensors(CausalLM& model)>;
using Object = nlohmann::ordered_json;

constexpr int kThreads = 16;
constexpr int64_t kVocabulary = 50;

int requests_per_thread() {
  const char* text = std::getenv("HOTSWAP_THREAD_REQUESTS");
  return text == nullptr ? 3 : std::stoi(text);
}

struct Model {
  const char* name;
  Object config;
};

std::ostream& operator<<(std::ostream& out, const Model& model) { return out << model.name; }

Object config_with(const char* family, Object more = Object::object()) {
  Object config = {{"model_type", family},
                   {"vocab_size", kVocabulary},
                   {"hidden_size", 32},
                   {"num_hidden_layers", 2},
                   {"num_attention_heads", 4},
                   {"num_key_value_heads", 2},
                   {"intermediate_size", 48},
                   {"head_dim", 8},
                   {"rms_norm_eps", 1e-5},
                   {"initializer_range", 0.3},
                   {"max_position_embeddings", 128},
                   {"num_experts", 4},
                   {"num_local_experts", 4},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 16},
                   {"state_size", 8},
                   {"num_heads", 8},
                   {"n_groups", 2},
                   {"attn_layer_period", 2},
                   {"attn_layer_offset", 1}};
  config.update(more);
  return config;
}

// Every kind of layer that could keep something: tables of rotary embeddings, recurrent states, routes to experts.
std::vector<Model> models() {
  const std::vector<double> few(4, 1.0), many = {1.0, 2.0, 4.0, 6.0};
  const Object longrope = {{"rope_type", "longrope"}, {"factor", 8.0}, {"short_factor", few}, {"long_factor", many}};
  const Object dynamic = {{"rope_type", "dynamic"}, {"factor", 4.0}};
  return {{"llama", config_with("llama")},
          {"longrope", config_with("llama", {{"rope_scaling", longrope}, {"original_max_position_embeddings", 16}})},
          {"phi3", config_with("phi3", {{"rope_scaling", longrope}, {"original_max_position_embeddings", 16}})},
          {"dynamic", config_with("llama", {{"rope_scaling", dynamic}, {"max_position_embeddings", 16}})},
          {"gemma3", config_with("gemma3_text", {{"sliding_window", 6}, {"sliding_window_pattern", 2}})},
          {"mixtral", config_with("mixtral", {{"output_router_logits", true}})},
          {"mamba", config_with("mamba")},
          {"mamba2", config_with("mamba2")},
          {"jamba", config_with("jamba")}};
}

Tensor random_ids(int64_t rows, int64_t time, uint64_t seed) {
  return at::randint(0, kVocabulary, {rows, time}, at::make_generator<at::CPUGeneratorImpl>(seed), at::kLong);
}

// The loss and its gradient of every weight, which are not accumulated in the weights.
Request loss(ForwardArguments arguments) {
  return [arguments](CausalLM& model) {
    const Tensor made = model(arguments).loss;
    Tensors found = {made.detach()};
    for (const Tensor& gradient : torch::autograd::grad({made}, model.parameters(), {}, std::nullopt, false, true)) {
      if (gradient.defined()) found.push_back(gradient);
    }
    return found;
  };
}

Request generation(const Tensor& ids, const GenerationConfig& config, const Tensor& mask = {}) {
  return [=](CausalLM& model) { return Tensors{model.generate(ids, config, mask)}; };
}

// Short and long ones, so that tables grow and frequencies change while others are on their way.
std::vector<Request> requests() {
  std::vector<Request> made;
  for (const int64_t time : {5, 14, 30, 70}) {
    const Tensor ids = random_ids(time % 3 + 1, time, static_cast<uint64_t>(time));
    made.push_back(loss({.input_ids = ids, .labels = ids, .need_logits = false}));
    made.push_back(loss({.input_ids = ids, .labels = ids, .need_logits = true}));
    made.push_back(generation(ids, {.max_new_tokens = 9}));
    made.push_back(generation(ids, {.max_new_tokens = 4, .cache_implementation = "static"}));
    made.push_back(generation(ids.narrow(0, 0, 1), {.max_new_tokens = 14, .do_sample = true, .seed = 7}));
  }
  const Tensor packed = random_ids(1, 13, 3);
  made.push_back(loss({.input_ids = packed,
                       .position_ids = at::cat({at::arange(9), at::arange(4)}).unsqueeze(0),
                       .labels = packed,
                       .need_logits = false}));
  const Tensor ids = random_ids(2, 9, 4), mask = at::ones({2, 9}, at::kLong);
  mask[1].narrow(0, 0, 3).zero_();
  made.push_back(generation(ids, {.max_new_tokens = 11}, mask));
  made.push_back(loss({.input_ids = ids, .attention_mask = mask, .labels = ids}));
  return made;
}

bool same(const Tensors& a, const Tensors& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), at::equal);
}

// work(0), work(1), ... at the same time; torch's own threads stay out of it.
void in_threads(const std::function<void(int)>& work) {
  std::barrier ready(kThreads);
  std::vector<std::thread> threads;
  for (int k = 0; k < kThreads; ++k) {
    threads.emplace_back([&, k] {
      at::set_num_threads(1);
      ready.arrive_and_wait();
      work(k);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class Threads : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    model_ = AutoModelForCausalLM::from_config(Json::parse(GetParam().config.dump(), "config.json"));
    model_->init_weights(5);
    model_->requires_grad(true);
    model_->eval();
  }
  int before_ = at::get_num_threads();
  std::shared_ptr<CausalLM> model_;
};

TEST_P(Threads, EachRequestIsAnsweredAsIfItWereTheOnlyOne) {
  at::set_num_threads(1);
  const std::vector<Request> all = requests();
  for (const bool kernels : {false, true}) {
    if (kernels) {
      EXPECT_GT(model_->kernelize(Mode::TRAINING).bound(), 0);
    }
    std::vector<Tensors> expected;
    for (const Request& request : all) expected.push_back(request(*model_));
    std::vector<std::string> wrong(kThreads);
    in_threads([&](int k) {
      std::mt19937 chosen(static_cast<uint32_t>(k));
      for (int i = 0; i < requests_per_thread() && wrong[k].empty(); ++i) {
        const size_t r = chosen() % all.size();
        try {
          if (!same(all[r](*model_), expected[r])) wrong[k] = cat("request ", r, " has another answer");
        } catch (const std::exception& error) {
          wrong[k] = cat("request ", r, ": ", error.what());
        }
      }
    });
    for (const std::string& what : wrong) EXPECT_EQ(what, "") << "kernels " << kernels;
  }
  at::set_num_threads(before_);
}

// A fresh model has no table yet: all threads are the first.
TEST_P(Threads, TheFirstRequestsAreAnsweredAtTheSameTime) {
  at::set_num_threads(1);
  const Request request = generation(random_ids(1, 20, 1), {.max_new_tokens = 6});
  const auto twin = AutoModelForCausalLM::from_config(Json::parse(GetParam().config.dump(), "config.json"));
  twin->init_weights(5);
  twin->eval();
  const Tensors expected = request(*twin);
  std::vector<int> right(kThreads);
  in_threads([&](int k) { right[k] = same(request(*model_), expected) ? 1 : 0; });
  EXPECT_EQ(right, std::vector<int>(kThreads, 1));
  at::set_num_threads(before_);
}

// Packages are loaded, ops looked up and slots bound by all at once, of a model each.
TEST(ThreadsOfModels, EachKernelizesItsOwn) {
  std::vector<std::string> reports(kThreads);
  in_threads([&](int k) {
    const auto model =
        AutoModelForCausalLM::from_config(Json::parse(config_with(k % 2 == 0 ? "jamba" : "mixtral").dump(), ""));
    model->init_weights(5);
    reports[k] = model->kernelize(Mode::TRAINING).to_json().dump();
  });
  for (int k = 0; k < kThreads; ++k) EXPECT_EQ(reports[k], reports[k % 2]);
}

INSTANTIATE_TEST_SUITE_P(Generation, Threads, testing::ValuesIn(models()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace hotswap
