// Adapters that train: losses and gradients as peft's (lora_oracle.py), new adapters as peft reads them, and what a
// LoraConfig means.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hotswap/kernelize/package/package.h"
#include "hotswap/layers/linear.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/models/lora.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::made_data;
using test_support::message_of;
using test_support::put_file;
using test_support::TempFolder;
namespace fs = std::filesystem;
using OutJson = nlohmann::ordered_json;

const fs::path& lora_oracle() { return made_data("models/lora_oracle.py"); }

double relative_to_max(const Tensor& got, const Tensor& expected) {
  const double size = expected.abs().max().item<double>();
  return (got - expected).abs().max().item<double>() / (size > 0 ? size : 1);
}

Tensor adapted_logits(CausalLM& model, const Tensor& ids) {
  const at::NoGradGuard no_grad;
  return model({.input_ids = ids}).logits;
}

// A copy of a case's adapter whose config a test changes.
class Copied {
 public:
  Copied(const std::string& name, const std::function<void(OutJson&)>& change) {
    fs::copy(lora_oracle() / name / "adapter", folder());
    OutJson config = Json::read(folder() / "adapter_config.json").raw();
    change(config);
    put_file(folder() / "adapter_config.json", config.dump());
  }
  fs::path folder() const { return root_ / "adapter"; }

 private:
  TempFolder root_;
};

template <class Base = testing::Test>
class WithPeft : public Base {
 protected:
  void SetUp() override {
    if (const auto why = test_support::lacking_imports("peft, transformers")) GTEST_SKIP() << *why;
  }
};

struct LoraCase {
  std::string name;
  bool kernels;
};

class LoraTraining : public WithPeft<testing::TestWithParam<LoraCase>> {};

// The gradients are written over the tensors, and what is saved then has them by peft's names.
TEST_P(LoraTraining, GradientsArePefts) {
  const fs::path folder = lora_oracle() / GetParam().name;
  const SafetensorsFile expected(folder / "expected.safetensors");
  const Copied copy(GetParam().name, [](OutJson& config) { config["lora_dropout"] = 0.0; });
  const auto model = AutoModelForCausalLM::from_pretrained(
      folder / "model", {.use_kernels = GetParam().kernels, .adapter = copy.folder(), .is_trainable = true});
  model->train();
  const Tensor ids = expected.tensor("input_ids");
  const CausalLMOutput out = (*model)({.input_ids = ids, .labels = ids});
  EXPECT_NEAR(out.loss.item<double>(), expected.tensor("loss").item<double>(), 1e-5);
  out.loss.backward();
  int64_t learned = 0;
  model->each_parameter([&](const std::string& name, Tensor& tensor) {
    EXPECT_EQ(tensor.grad().defined(), tensor.requires_grad()) << name;
  });
  model->each_trained([&](const std::string& name, Tensor& tensor) {
    ASSERT_TRUE(tensor.grad().defined()) << name;
    const at::NoGradGuard no_grad;
    tensor.copy_(tensor.grad());
    ++learned;
  });
  EXPECT_GT(learned, 0);
  const TempFolder saved;
  model->save_pretrained(saved.path());
  const SafetensorsFile got(saved / "adapter_model.safetensors");
  size_t compared = 0;
  for (const std::string& name : expected.names()) {
    if (!name.starts_with("grad.")) continue;
    ASSERT_TRUE(got.has(name.substr(5))) << name;
    // Sums over 20 positions in two layers, in another order: up to 2e-5 of the maximum.
    EXPECT_LE(relative_to_max(got.tensor(name.substr(5)), expected.tensor(name)), 1e-4) << name;
    ++compared;
  }
  EXPECT_EQ(compared, got.names().size());
}

std::vector<LoraCase> lora_cases() {
  std::vector<LoraCase> all;
  for (const char* name : {"llama_all_linear",
                           "llama_rslora",
                           "llama_embedding_head",
                           "llama_tied_both",
                           "llama_tied_head",
                           "llama_tied_saved",
                           "llama_saved",
                           "llama_saved_mlp",
                           "llama_bias_all",
                           "llama_bias_lora_only",
                           "llama_dora",
                           "llama_layers",
                           "llama_one_layer",
                           "llama_pattern",
                           "llama_excluded",
                           "llama_orthogonal",
                           "qwen2_all_linear",
                           "qwen2_dora",
                           "qwen3_all_linear",
                           "mixtral_attention",
                           "qwen2_moe_all_linear",
                           "gpt_oss_attention",
                           "phi3_all_linear",
                           "phi3_dora",
                           "phi3_saved",
                           "gemma_all_linear",
                           "gemma_embedding",
                           "gemma2_all_linear",
                           "gemma3_embedding",
                           "olmo2_all_linear",
                           "deepseek_v3_attention",
                           "mamba_projections",
                           "jamba_attention_mixer"}) {
    for (const bool kernels : {false, true}) all.push_back({name, kernels});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Cases, LoraTraining, testing::ValuesIn(lora_cases()), [](const auto& info) {
  return info.param.name + (info.param.kernels ? "_kernels" : "_stock");
});

class LoraNew : public WithPeft<> {
 protected:
  static std::shared_ptr<CausalLM> base(const std::string& name, PretrainedOptions options = {}) {
    return AutoModelForCausalLM::from_pretrained(lora_oracle() / name / "model", options);
  }
};

TEST_F(LoraNew, TargetsOfEachModelTypeArePefts) {
  const Json theirs = Json::read(lora_oracle() / "targets.json");
  for (const Family* family : families()) {
    const std::string type = family->model_type;
    if (theirs.has(type)) {
      EXPECT_EQ(default_target_modules(type), theirs.at<std::vector<std::string>>(type)) << type;
    } else {
      expect_has(message_of([&] { default_target_modules(type); }), {type, "target_modules"});
    }
  }
}

struct Made {
  std::string name, base;
  LoraConfig config;
};
std::vector<Made> made() {
  return {{"defaults", "llama_all_linear", {}},
          {"all_linear", "qwen2_all_linear", {.r = 3, .lora_alpha = 5, .target_modules = "all-linear"}},
          {"patterns",
           "llama_all_linear",
           {.lora_alpha = 3,
            .target_modules = "all-linear",
            .use_rslora = true,
            .rank_pattern = {{"o_proj", 2}},
            .alpha_pattern = {{"v_proj", 11}},
            .init_lora_weights = "gaussian"}},
          {"dora", "llama_bias_all", {.target_modules = "all-linear", .use_dora = true}},
          {"joined", "phi3_all_linear", {.target_modules = {"qkv_proj", "gate_up_proj"}, .use_dora = true}},
          {"whole", "phi3_saved", {.target_modules = {"o_proj"}, .modules_to_save = {"qkv_proj", "lm_head"}}},
          {"biases", "llama_bias_all", {.target_modules = {"q_proj"}, .bias = "all"}},
          {"own_biases", "llama_bias_all", {.target_modules = {"q_proj", "down_proj"}, .bias = "lora_only"}},
          {"embedding", "llama_saved", {.target_modules = {"embed_tokens", "lm_head"}}},
          {"layers", "llama_all_linear", {.target_modules = {"q_proj"}, .layers_to_transform = {1}}},
          {"regex", "llama_all_linear", {.target_modules = ".*mlp.*_proj", .exclude_modules = {"up_proj"}}},
          {"no_zero", "mixtral_attention", {.target_modules = {"q_proj"}, .init_lora_weights = "false"}}};
}

// A new adapter changes nothing; trained (here: moved at random) it is saved, and peft has the same logits with it, as
// a model here that loads it.
TEST_F(LoraNew, PeftReadsWhatWasTrained) {
  const TempFolder root;
  const Tensor ids = at::randint(3, 61, {2, 9});
  OutJson list = OutJson::array();
  for (const Made& one : made()) {
    const auto model = base(one.base, {.use_kernels = true});
    const Tensor before = adapted_logits(*model, ids);
    model->add_adapter(one.config, 5);
    const bool changes = one.config.init_lora_weights == "false";
    const Tensor fresh = adapted_logits(*model, ids);
    EXPECT_LE(relative_to_max(fresh, before), changes ? 10 : 1e-5) << one.name;
    model->each_trained([&](const std::string&, Tensor& tensor) {
      const at::NoGradGuard no_grad;
      tensor.add_(at::randn(tensor.sizes()), 0.2);
    });
    const Tensor moved = adapted_logits(*model, ids);
    EXPECT_GE(relative_to_max(moved, before), 0.01) << one.name;
    const fs::path folder = root / one.name;
    model->save_pretrained(folder);
    save_safetensors(folder / "ids.safetensors", {{"ids", ids}, {"logits", moved}});
    const auto again = base(one.base, {.adapter = folder});
    EXPECT_LE(relative_to_max(adapted_logits(*again, ids), moved), 1e-5) << one.name;
    model->unload_adapter();
    EXPECT_LE(relative_to_max(adapted_logits(*model, ids), before), 1e-6) << one.name;
    list.push_back({{"name", one.name}, {"model", (lora_oracle() / one.base / "model").string()}});
  }
  put_file(root / "list.json", list.dump());
  const auto ran = test_support::run_python(root, R"(
import json, peft, torch, transformers, warnings
from safetensors.torch import load_file
warnings.simplefilter("error", UserWarning)  # of keys that are missing
for one in json.load(open("list.json")):
    model = transformers.AutoModelForCausalLM.from_pretrained(one["model"], dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(model, one["name"]).eval()
    data = load_file(one["name"] + "/ids.safetensors")
    with torch.no_grad():
        logits = model(input_ids=data["ids"], use_cache=False).logits
    off = ((logits - data["logits"]).abs().max() / logits.abs().max()).item()
    assert off < 1e-5, (one["name"], off)
    assert model.peft_config["default"].peft_version, one["name"]
print("all equal")
)");
  EXPECT_NE(ran.output.find("all equal"), std::string::npos) << ran.output;
}

TEST_F(LoraNew, DrawsAsPeftDoes) {
  const auto model = base("llama_all_linear");
  const auto a_of = [&](LoraConfig config, uint64_t seed) {
    Tensor a;
    model->add_adapter(config, seed);
    model->each_trained([&](const std::string& name, Tensor& tensor) {
      if (name == "model.layers.0.mlp.down_proj.lora_A.weight") a = tensor.detach().clone();
      EXPECT_EQ(tensor.scalar_type(), at::kFloat);
      if (!name.ends_with("lora_B.weight")) return;
      EXPECT_EQ(tensor.abs().max().item<double>() > 0, config.init_lora_weights == "false");
    });
    model->unload_adapter();
    return a;
  };
  LoraConfig config{.r = 64, .target_modules = "all-linear"};
  const Tensor a = a_of(config, 1);  // [64, 40]: uniform up to 1 / sqrt(40)
  const double bound = 1 / std::sqrt(40.0);
  EXPECT_LE(a.abs().max().item<double>(), bound);
  EXPECT_NEAR(a.std().item<double>(), bound / std::sqrt(3.0), 0.005);
  EXPECT_TRUE(at::equal(a, a_of(config, 1)));
  EXPECT_FALSE(at::equal(a, a_of(config, 2)));
  config.init_lora_weights = "gaussian";
  EXPECT_NEAR(a_of(config, 1).std().item<double>(), 1.0 / 64, 0.001);
  config.init_lora_weights = "false";
  a_of(config, 1);
}

// Of a model in bfloat16 adapters are float32, as peft's autocast_adapter_dtype has them; whole tensors are as they
// were.
TEST_F(LoraNew, AdaptersOfSixteenBitsAreFloat32) {
  const auto model = base("llama_saved", {.dtype = "bfloat16"});
  model->add_adapter({.target_modules = {"q_proj"}, .modules_to_save = {"lm_head"}});
  model->each_trained([&](const std::string& name, Tensor& tensor) {
    EXPECT_EQ(tensor.scalar_type(), name == "lm_head.weight" ? at::kBFloat16 : at::kFloat) << name;
  });
  model->train();
  const Tensor ids = at::randint(3, 61, {2, 9});
  (*model)({.input_ids = ids, .labels = ids}).loss.backward();
  const TempFolder folder;
  model->save_pretrained(folder.path());
  EXPECT_EQ(
      SafetensorsFile(folder / "adapter_model.safetensors").tensor("base_model.model.lm_head.weight").scalar_type(),
      at::kBFloat16);
}

TEST_F(LoraNew, TheBaseModelLearnsAgainAfterwards) {
  const auto model = base("llama_all_linear");
  const size_t all = model->parameters().size();
  const auto learning = [&] {
    size_t count = 0;
    model->each_parameter([&](const std::string&, Tensor& t) { count += t.requires_grad() ? 1 : 0; });
    return count;
  };
  EXPECT_EQ(learning(), all);
  model->add_adapter({});
  EXPECT_TRUE(model->trains_adapter());
  EXPECT_EQ(learning(), 0u);
  model->train();
  expect_has(message_of([&] { model->add_adapter({}); }), {"one adapter at a time", "unload_adapter"});
  model->merge_and_unload();
  EXPECT_EQ(learning(), all);
  EXPECT_FALSE(model->trains_adapter());
}

TEST_F(LoraNew, ARestoredAdapterIsTheSaved) {
  const auto model = base("phi3_dora");
  model->add_adapter({.target_modules = "all-linear", .use_dora = true, .modules_to_save = {"norm"}}, 1);
  const TempFolder folder;
  model->save_pretrained(folder.path());
  std::map<std::string, Tensor> before, tensors;
  model->each_trained([&](const std::string& name, Tensor& tensor) {
    before[name] = tensor.detach().clone();
    tensors[name] = tensor;
    const at::NoGradGuard no_grad;
    tensor.add_(1);
  });
  model->restore_adapter(folder.path());
  model->each_trained([&](const std::string& name, Tensor& tensor) {
    EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
    EXPECT_TRUE(tensor.is_same(tensors.at(name))) << name << " is another tensor than the optimizer has";
  });
  model->unload_adapter();
  expect_has(message_of([&] { model->restore_adapter(folder.path()); }), {"without an adapter", "add_adapter"});
}

TEST_F(LoraNew, WhatDoesNotTrainIsRefusedByName) {
  for (const char* name : {"llama_lora_bias", "llama_tied_ensured", "llama_tied_saved_ensured"}) {
    const std::string key = std::string(name) == "llama_lora_bias" ? "lora_bias" : "ensure_weight_tying";
    expect_has(message_of([&] { base(name, {.adapter = lora_oracle() / name / "adapter", .is_trainable = true}); }),
               {key, "peft"});
  }
  const auto model = base("llama_tied_saved");
  const auto refuses = [&](const LoraConfig& config, std::initializer_list<std::string> parts) {
    expect_has(message_of([&] { model->add_adapter(config); }), parts);
    EXPECT_EQ(model->adapter_name(), "");
    EXPECT_TRUE(model->lm_head().data().requires_grad()) << "nothing changed";
  };
  refuses({.r = 0}, {"r", "0"});
  refuses({.lora_dropout = 1}, {"lora_dropout"});
  refuses({.bias = "some"}, {"bias", "some"});
  refuses({.init_lora_weights = "pissa"}, {"init_lora_weights", "pissa"});
  refuses({.init_lora_weights = "eva"}, {"init_lora_weights", "eva", "gaussian"});
  refuses({.target_modules = {"none_such"}}, {"target_modules", "none_such"});
  refuses({.target_modules = "("}, {"target_modules"});
  refuses({.modules_to_save = {"none_such"}}, {"modules_to_save", "none_such"});
  refuses({.modules_to_save = {"lm_head"}}, {"tie_word_embeddings"});
  refuses({.target_modules = {"embed_tokens"}, .use_dora = true}, {"use_dora", "embedding"});
  const auto parse = [](const char* text) {
    return message_of([&] { LoraConfig::from_json(Json::parse(text, "lora.json")); });
  };
  EXPECT_EQ(parse(R"({"r": 4})"), "no error");
  EXPECT_EQ(parse(R"({"r": 4, "target_modules": null, "use_qalora": false, "loftq_config": {}})"), "no error");
  expect_has(parse(R"({"rank": 4})"), {"rank", "lora.json"});
  expect_has(parse(R"({"use_qalora": true})"), {"use_qalora"});
  expect_has(parse(R"({"target_parameters": ["a"]})"), {"target_parameters"});
  expect_has(parse(R"({"peft_type": "IA3"})"), {"IA3"});
  expect_has(parse(R"({"r": "four"})"), {"r"});
}

// What stays stock by an adapter has its reason in the report; the others are bound, and trained through.
TEST_F(LoraNew, TheReportSaysWhatAnAdapterKeepsStock) {
  const auto model = base("llama_embedding_head", {.use_kernels = true});
  const auto reason_of = [&](const char* layer) {
    for (const KernelRow& row : model->kernel_report().rows) {
      if (row.layer == layer) return row.package ? std::string("bound") : row.reason;
    }
    return std::string("no row");
  };
  model->train();
  const std::string before = reason_of("LinearCrossEntropy");
  model->add_adapter({.target_modules = {"lm_head", "q_proj"}});
  if (before == "bound") expect_has(reason_of("LinearCrossEntropy"), {"LoRA adapter"});
  EXPECT_EQ(reason_of("RMSNorm"), "bound");
  EXPECT_EQ(reason_of("SwiGLUMLP"), "bound");
  model->unload_adapter();
  EXPECT_EQ(reason_of("LinearCrossEntropy"), before);
}

}  // namespace
}  // namespace hotswap
