// LoRA adapters as peft saves and computes them (lora_oracle.py), and adapters with defects.
#include "hotswap/models/lora.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "hotswap/layers/cache.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/formats/weights.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::made_data;
using test_support::message_of;
using test_support::put_file;
using test_support::TempFolder;
namespace fs = std::filesystem;

constexpr const char* kLoraScript = "models/lora_oracle.py";

constexpr const char* kCases[] = {"llama_all_linear",
                                  "llama_rslora",
                                  "llama_embedding_head",
                                  "llama_tied_both",
                                  "llama_tied_head",
                                  "llama_tied_ensured",
                                  "llama_tied_saved",
                                  "llama_tied_saved_ensured",
                                  "llama_saved",
                                  "llama_saved_mlp",
                                  "llama_bias_all",
                                  "llama_bias_lora_only",
                                  "llama_lora_bias",
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
                                  "mixtral_router_saved",
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
                                  "jamba_attention_mixer",
                                  "gpt2_all_linear",
                                  "gpt2_dora",
                                  "gpt_neox_all_linear",
                                  "falcon_dora",
                                  "phi_all_linear"};

fs::path case_folder(const std::string& name) { return made_data(kLoraScript) / name; }

double max_error(const Tensor& got, const Tensor& expected) {
  return ((got - expected).abs().max() / expected.abs().max()).item<double>();
}

double relative_norm(const Tensor& got, const Tensor& expected) {
  return (at::linalg_vector_norm(got - expected) / at::linalg_vector_norm(expected)).item<double>();
}

Tensor logits_of(CausalLM& model, const Tensor& ids) {
  const at::NoGradGuard no_grad;
  return model({.input_ids = ids}).logits;
}

Tensor greedy_ids(CausalLM& model, Tensor ids, int64_t length) {
  const at::NoGradGuard no_grad;
  const auto cache = model.make_cache();
  Tensor next = ids;
  while (ids.size(1) < length) {
    next = at::argmax(model({.input_ids = next, .cache = cache.get(), .logits_to_keep = 1}).logits, -1);
    ids = at::cat({ids, next}, 1);
  }
  return ids;
}

class Lora : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto why = test_support::lacking_imports("peft, transformers")) GTEST_SKIP() << *why;
    folder_ = case_folder(GetParam());
    expected_ = std::make_unique<SafetensorsFile>(folder_ / "expected.safetensors");
  }
  Tensor expected(const std::string& name) const { return expected_->tensor(name); }
  std::shared_ptr<CausalLM> load(PretrainedOptions options = {}) const {
    options.adapter = folder_ / "adapter";
    return AutoModelForCausalLM::from_pretrained(folder_ / "model", options);
  }
  // Float32 sums of at most 64 terms in two layers, in another order than peft's: 2e-6 was measured.
  void expect_values(CausalLM& model) const {
    EXPECT_LE(max_error(logits_of(model, expected("input_ids")), expected("logits")), 1e-5);
    const Tensor ids = expected("greedy"), prompt = ids.narrow(1, 0, 5);
    EXPECT_TRUE(at::equal(greedy_ids(model, prompt, ids.size(1)), ids));
  }
  fs::path folder_;
  std::unique_ptr<SafetensorsFile> expected_;
};

TEST_P(Lora, Stock) { expect_values(*load()); }
TEST_P(Lora, Kernelized) { expect_values(*load({.use_kernels = true})); }

// Nothing above means anything where the adapter changes little.
TEST_P(Lora, ChangesTheModel) { EXPECT_GE(relative_norm(expected("logits"), expected("base_logits")), 0.02); }

// peft adds its float32 result to the layer's bfloat16 one and rounds the sum once, as here; what is left is the order
// of summation, which moves some elements to their neighbour in bfloat16.
TEST_P(Lora, Bfloat16) {
  const Tensor logits = logits_of(*load({.dtype = "bfloat16"}), expected("input_ids"));
  ASSERT_EQ(logits.scalar_type(), at::kBFloat16);
  EXPECT_LE(relative_norm(logits.to(at::kFloat), expected("bf16_logits").to(at::kFloat)), 0.01);
}

TEST_P(Lora, UnloadedIsTheModelAsItWas) {
  const Tensor ids = expected("input_ids");
  const auto with = load(), without = AutoModelForCausalLM::from_pretrained(folder_ / "model");
  EXPECT_EQ(with->adapter_name(), "adapter");
  with->unload_adapter();
  EXPECT_EQ(with->adapter_name(), "");
  EXPECT_TRUE(at::equal(logits_of(*with, ids), logits_of(*without, ids)));
  EXPECT_LE(max_error(logits_of(*with, ids), expected("base_logits")), 1e-5);
}

TEST_P(Lora, MergedComputesTheSame) {
  const auto model = load({.use_kernels = true});
  const TempFolder out;
  EXPECT_NE(message_of([&] { model->save_pretrained(out.path()); }).find("adapter"), std::string::npos);
  model->merge_and_unload();
  expect_values(*model);
  model->save_pretrained(out.path());
  const auto again = AutoModelForCausalLM::from_pretrained(out.path());
  EXPECT_TRUE(at::equal(logits_of(*again, expected("input_ids")),
                        logits_of(*AutoModelForCausalLM::from_pretrained(out.path()), expected("input_ids"))));
  EXPECT_LE(max_error(logits_of(*again, expected("input_ids")), expected("logits")), 1e-5);
}

// Tensor by tensor: W + s B A in float32, rounded once. Two elements that are neighbours in bfloat16 differ by at most
// 2^-7 of the larger one; sums in another order may round to either.
TEST_P(Lora, MergedIsWhatPeftSaves) {
  for (const auto& [dtype, name, limit] :
       {std::tuple{"float32", "merged", 1e-6}, {"bfloat16", "merged_bf16", 0x1p-7}}) {
    if (!fs::exists(folder_ / name)) continue;  // tied weights, where peft's merge changes both
    const auto model = load({.dtype = dtype});
    model->merge_and_unload();
    const TempFolder out;
    model->save_pretrained(out.path());
    const auto ours = open_checkpoint(out.path()), theirs = open_checkpoint(folder_ / name);
    const auto base = open_checkpoint(folder_ / "model");
    EXPECT_EQ(ours->names(), theirs->names());
    for (const std::string& tensor : theirs->names()) {
      EXPECT_EQ(ours->dtype(tensor), theirs->dtype(tensor)) << tensor;
      const Tensor got = ours->tensor(tensor, at::kFloat), peft = theirs->tensor(tensor, at::kFloat);
      ASSERT_EQ(got.sizes(), peft.sizes()) << tensor;
      Tensor large = peft.abs();
      // Of an embedding peft rounds s B A to bfloat16 before it adds: an error of the larger summand's size.
      if (tensor.ends_with("embed_tokens.weight")) large = large + base->tensor(tensor, at::kFloat).abs();
      const Tensor excess = (got - peft).abs() - large * limit;
      EXPECT_LE(excess.max().item<double>(), 2e-6) << tensor << " " << dtype;
    }
  }
}

// As an adapter of some rows, beside others without one; where it replaces tensors of the model, which all rows have in
// common, it is refused.
TEST_P(Lora, OfSomeRows) {
  const LoraRules rules = LoraRules::read(folder_ / "adapter/adapter_config.json");
  const bool replaces = !rules.modules_to_save.empty() || rules.bias != LoraBias::kNone;
  for (const bool kernels : {false, true}) {
    const PretrainedOptions options{.use_kernels = kernels, .row_adapters = {folder_ / "adapter"}};
    std::shared_ptr<CausalLM> model;
    const std::string message =
        message_of([&] { model = AutoModelForCausalLM::from_pretrained(folder_ / "model", options); });
    if (replaces) {
      expect_has(message, {"low-rank products only", "replaces tensors of the model", "hotswap merge"});
      continue;
    }
    ASSERT_NE(model, nullptr) << message;
    EXPECT_GT(model->row_adapters().at(0).bytes, 0);
    const Tensor ids = expected("input_ids");
    const at::NoGradGuard no_grad;
    std::vector<int64_t> of_rows(static_cast<size_t>(ids.size(0)), -1);
    EXPECT_LE(max_error((*model)({.input_ids = ids, .row_adapters = of_rows}).logits, expected("base_logits")), 1e-5);
    of_rows[0] = 0;
    const Tensor logits = (*model)({.input_ids = ids, .row_adapters = of_rows}).logits;
    EXPECT_LE(max_error(logits[0], expected("logits")[0]), 1e-5);
    for (int64_t row = 1; row < ids.size(0); ++row) {
      EXPECT_LE(max_error(logits[row], expected("base_logits")[row]), 1e-5) << row;
    }
    of_rows.assign(of_rows.size(), 0);
    EXPECT_LE(max_error((*model)({.input_ids = ids, .row_adapters = of_rows}).logits, expected("logits")), 1e-5);
    expect_has(message_of([&] { (*model)({.input_ids = ids, .row_adapters = {1}}); }), {"up to 0, or -1"});
    expect_has(message_of([&] { model->load_adapter(folder_ / "adapter"); }), {"without adapters of rows"});
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Lora, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param); });

// A folder with an adapter whose files a test changes.
class LoraFile : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = test_support::lacking_imports("peft, transformers")) GTEST_SKIP() << *why;
    take("llama_all_linear");
  }
  void take(const std::string& name) {
    source_ = case_folder(name);
    fs::remove_all(adapter());
    fs::copy(source_ / "adapter", adapter());
    config_ = Json::read(adapter() / "adapter_config.json").raw();
    tensors_.clear();
    const SafetensorsFile file(adapter() / "adapter_model.safetensors");
    for (const std::string& tensor : file.names()) tensors_[tensor] = file.tensor(tensor).clone();
  }
  fs::path adapter() const { return folder_ / "adapter"; }
  std::shared_ptr<CausalLM> load(PretrainedOptions options = {}) {
    put_file(adapter() / "adapter_config.json", config_.dump());
    save_safetensors(adapter() / "adapter_model.safetensors", TensorMap(tensors_.begin(), tensors_.end()));
    options.adapter = adapter();
    return AutoModelForCausalLM::from_pretrained(source_ / "model", options);
  }
  std::string message() {
    return message_of([&] { load(); });
  }
  void expect_refused(const char* key, const nlohmann::ordered_json& value, std::initializer_list<std::string> parts) {
    const auto before = config_;
    config_[key] = value;
    expect_has(message(), parts);
    config_ = before;
  }
  TempFolder folder_;
  fs::path source_;
  nlohmann::ordered_json config_;
  std::map<std::string, Tensor> tensors_;
};

constexpr const char* kQ = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight";

TEST_F(LoraFile, AnUntouchedCopyLoads) { EXPECT_EQ(message(), "no error"); }

TEST_F(LoraFile, EveryKeyIsHonouredOrRefusedByName) {
  using List = nlohmann::ordered_json;
  for (const char* key :
       {"trainable_token_indices", "layer_replication", "alora_invocation_tokens", "target_parameters"})
    expect_refused(key, List::array({1}), {key, "merge_and_unload"});
  for (const char* key : {"use_qalora", "use_bdlora", "merge_weights"}) expect_refused(key, true, {key});
  for (const char* key : {"arrow_config", "kasa_config", "velora_config", "monteclora_config", "megatron_config"})
    expect_refused(key, {{"a", 1}}, {key});
  expect_refused("peft_type", "IA3", {"peft_type", "IA3", "LORA"});
  expect_refused("task_type", "SEQ_CLS", {"task_type", "SEQ_CLS"});
  expect_refused("bias", "some", {"bias", "some"});
  expect_refused("r", 0, {"r", "0"});
  expect_refused("r", 2.5, {"r", "2.5"});
  expect_refused("r", 1e300, {"r"});
  expect_refused("rank_pattern", {{"q_proj", -1}}, {"rank_pattern", "-1"});
  expect_refused("lora_alpha", "eight", {"lora_alpha"});
  expect_refused("target_modules", nullptr, {"target_modules"});
  expect_refused("target_modules", "(", {"target_modules"});
  expect_refused("layers_pattern", "lay.*", {"layers_pattern", "lay.*"});
  expect_refused("of_the_future", 1, {"of_the_future"});
  for (const char* name : {"pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga"})
    expect_refused("init_lora_weights", name, {"init_lora_weights", name, "path_initial_model_for_weight_conversion"});
  expect_refused("init_lora_weights", "another", {"init_lora_weights", "another"});
  config_["of_the_future"] = nullptr;
  config_["init_lora_weights"] = "gaussian";
  EXPECT_EQ(message(), "no error");
}

TEST_F(LoraFile, AConfigOfAnOldPeftHasTheseKeysOnly) {
  const auto full = load();
  config_ = {{"peft_type", "LORA"},
             {"r", config_["r"]},
             {"lora_alpha", config_["lora_alpha"]},
             {"rank_pattern", config_["rank_pattern"]},
             {"alpha_pattern", config_["alpha_pattern"]},
             {"target_modules", "all-linear"},
             {"base_model_name_or_path", nullptr}};
  const Tensor ids = SafetensorsFile(source_ / "expected.safetensors").tensor("input_ids");
  EXPECT_TRUE(at::equal(logits_of(*load(), ids), logits_of(*full, ids)));
}

TEST_F(LoraFile, ATensorThatIsNotUsedIsNamed) {
  for (const char* name :
       {"base_model.model.model.layers.0.self_attn.q_proj.lora_C.weight", "base_model.model.model.norm.weight",
        "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight", "another.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias",
        "base_model.model.model.layers.0.self_attn.q_proj.bias", "base_model.model.lm_head.lora_A.weight"}) {
    tensors_[name] = at::zeros({4, 4});
    expect_has(message(), {"1 unexpected", name, "adapter_model.safetensors"});
    tensors_.erase(name);
  }
}

TEST_F(LoraFile, ATargetWithoutTensorsIsNamed) {
  tensors_.erase(kQ);
  expect_has(message(), {"1 missing", kQ});
  tensors_.erase("base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight");
  expect_has(message(), {"1 missing", "model.layers.1.self_attn.q_proj"});
  tensors_.clear();
  expect_has(message(), {"14 missing"});
}

TEST_F(LoraFile, ShapesAreThoseOfTheModelAndTheConfig) {
  tensors_[kQ] = at::zeros({4, 31});
  config_["base_model_name_or_path"] = "acme/other";
  expect_has(message(), {"1 of another shape", kQ, "[4, 31]", "[4, 32]", "acme/other"});
  tensors_[kQ] = at::zeros({5, 32});
  expect_has(message(), {"1 of another shape", kQ, "[5, 32]", "[4, 32]"});
  tensors_[kQ] = at::zeros({4, 32}, at::kLong);
  expect_has(message(), {kQ, "Long"});
}

TEST_F(LoraFile, WhatTargetModulesDoesNotNameIsUnexpected) {
  config_["target_modules"] = nlohmann::ordered_json::array({"q_proj", "v_proj"});
  expect_has(message(), {"20 unexpected", "target_modules does not name it"});  // k, o, gate, up, down of two layers
}

TEST_F(LoraFile, ModulesToSaveAreWhole) {
  config_["modules_to_save"] = nlohmann::ordered_json::array({"lm_head"});
  expect_has(message(), {"1 missing", "base_model.model.lm_head.weight"});
  tensors_["base_model.model.lm_head.weight"] = at::zeros({62, 32});
  expect_has(message(), {"1 of another shape", "base_model.model.lm_head.weight", "[62, 32]", "[61, 32]"});
  config_["modules_to_save"] = nlohmann::ordered_json::array({"classifier"});
  tensors_.erase("base_model.model.lm_head.weight");
  expect_has(message(), {"modules_to_save = classifier"});
}

TEST_F(LoraFile, AMissingFileIsNamed) {
  const auto message_of_folder = [&](const fs::path& folder) { return message_of([&] { LoraAdapter::read(folder); }); };
  expect_has(message_of_folder(folder_ / "absent"), {"adapter_config.json"});
  put_file(folder_ / "config.json", "{}");
  expect_has(message_of_folder(folder_.path()), {"no ", "adapter_config.json", "that is a model"});
  fs::remove(adapter() / "adapter_model.safetensors");
  expect_has(message_of_folder(adapter()), {"adapter_model.safetensors"});
  put_file(adapter() / "adapter_model.bin", "x");
  expect_has(message_of_folder(adapter()), {"adapter_model.bin", "pickle"});
  expect_has(message_of([&] { open_checkpoint(adapter()); }), {"adapter_config.json", "--adapter"});
}

TEST_F(LoraFile, OneAtATimeAndOnlyForInference) {
  const auto model = load();
  expect_has(message_of([&] { model->load_adapter(adapter()); }), {"unload_adapter"});
  expect_has(message_of([&] { model->train(); }), {"training", "merge_and_unload"});
  EXPECT_FALSE(model->training());
  model->unload_adapter();
  model->load_adapter(adapter());
  EXPECT_EQ(model->adapter_name(), "adapter");
}

// A table that the adapter replaces on one side only needs a model with two.
TEST_F(LoraFile, ATiedModelIsUntiedOrRefused) {
  take("llama_tied_saved");
  const auto tied = AutoModelForCausalLM::from_pretrained(source_ / "model");
  expect_has(message_of([&] { tied->load_adapter(adapter()); }), {"tie_word_embeddings", "PretrainedOptions::adapter"});
  EXPECT_EQ(tied->adapter_name(), "");
  take("llama_tied_both");  // beside the table: no matter
  const auto again = AutoModelForCausalLM::from_pretrained(source_ / "model");
  again->load_adapter(adapter());
  const SafetensorsFile expected(source_ / "expected.safetensors");
  EXPECT_LE(max_error(logits_of(*again, expected.tensor("input_ids")), expected.tensor("logits")), 1e-5);
}

// Layers with an adapter leave the kernel of a whole layer, by name in the report; the others keep it.
TEST_F(LoraFile, TheReportSaysWhatAnAdapterKeepsStock) {
  take("llama_layers");  // the second of two layers
  const auto rows = [](const CausalLM& model) {
    std::map<std::string, KernelRow> found;
    for (const KernelRow& row : model.kernel_report().rows) {
      if (row.layer == "DecoderLayer") found[row.name] = row;
    }
    return found;
  };
  const auto model = load({.use_kernels = true});
  const auto with = rows(*model);
  ASSERT_EQ(with.size(), 2u);
  EXPECT_FALSE(with.at("model.layers.1").package);
  expect_has(with.at("model.layers.1").reason, {"LoRA adapter"});
  EXPECT_EQ(with.at("model.layers.0").reason.find("LoRA"), std::string::npos);
  model->unload_adapter();
  EXPECT_EQ(rows(*model).at("model.layers.1").reason, with.at("model.layers.0").reason);
}

}  // namespace
}  // namespace hotswap
