// A checkpoint of gpt-oss as it is published, its experts in MXFP4: read as transformers reads it, and saved plain.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "hotswap/models/auto.h"
#include "hotswap/models/formats/weights.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::put_file;
using test_support::run_python;
using test_support::TempFolder;

constexpr const char* kConfig = R"({"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "vocab_size": 60,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "initializer_range": 0.3, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "dtype": "bfloat16")";
constexpr const char* kMxfp4Config = R"(, "quantization_config": {"quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}})";

// A fresh model whose experts' weights are replaced by blocks and scales.
void write_mxfp4(const TempFolder& folder) {
  const auto model = AutoModelForCausalLM::from_config(Json::parse(cat(kConfig, "}"), "config.json"));
  model->init_weights(3, at::kBFloat16);
  TensorMap tensors;
  for (const auto& [name, tensor] : named_tensors(*model)) {
    if (!name.ends_with("experts.gate_up_proj") && !name.ends_with("experts.down_proj")) {
      tensors.emplace_back(name, tensor.detach());
      continue;
    }
    const int64_t rows = tensor.size(2), groups = tensor.size(1) / 32;  // [experts, columns, rows]
    tensors.emplace_back(name + "_blocks", at::randint(0, 256, {tensor.size(0), rows, groups, 16}, at::kByte));
    tensors.emplace_back(name + "_scales", at::randint(121, 125, {tensor.size(0), rows, groups}, at::kByte));
  }
  save_pretrained_weights(folder.path(), tensors);
  put_file(folder / "config.json", cat(kConfig, kMxfp4Config));
}

TEST(GptOss, ReadsMxfp4AsTransformersDoesAndSavesPlainWeights) {
  const TempFolder folder, saved;
  write_mxfp4(folder);
  const auto run = run_python(folder, R"(
import torch, transformers
from safetensors.torch import save_file
ids = torch.arange(3, 23).view(1, 20)
model = transformers.AutoModelForCausalLM.from_pretrained(".", dtype=torch.float32).float().eval()  # decoded weights came as bfloat16
with torch.no_grad():
    save_file({"logits": model(ids).logits}, "want.safetensors")
)");
  ASSERT_EQ(run.status, 0) << run.output;
  const Tensor want = SafetensorsFile(folder / "want.safetensors").tensor("logits");
  const at::NoGradGuard no_grad;
  const Tensor ids = at::arange(3, 23, at::kLong).view({1, 20});
  const auto model = AutoModelForCausalLM::from_pretrained(folder.path(), {.dtype = "float32"});
  const Tensor got = (*model)({.input_ids = ids}).logits;
  EXPECT_LE((got - want).abs().max().item<double>(), 1e-4 * want.abs().max().item<double>());  // as in parity_test.cpp

  model->save_pretrained(saved.path());
  EXPECT_FALSE(Json::read(saved / "config.json").has("quantization_config"));
  const auto plain = AutoModelForCausalLM::from_pretrained(saved.path());
  EXPECT_TRUE(at::equal((*plain)({.input_ids = ids}).logits, got));
}

TEST(GptOss, ExpertsStayPackedWhereKernelsRun) {
  const TempFolder folder, saved;
  write_mxfp4(folder);
  const auto load = [&](bool kernels, std::optional<bool> keep) {
    return AutoModelForCausalLM::from_pretrained(folder.path(),
                                                 {.use_kernels = kernels, .dtype = "float32", .keep_formats = keep});
  };
  const auto plain = load(false, std::nullopt), stock = load(false, true), packed = load(true, std::nullopt);
  EXPECT_FALSE(plain->has_encoded_weights());
  const at::NoGradGuard no_grad;
  const Tensor ids = at::arange(3, 23, at::kLong).view({1, 20}), expected = (*plain)({.input_ids = ids}).logits;
  for (const auto& model : {stock, packed}) {
    EXPECT_TRUE(model->has_encoded_weights());
    const Tensor got = (*model)({.input_ids = ids}).logits;  // the same weights; sums have another order
    EXPECT_LE((got - expected).abs().max().item<double>(), 3e-5 * expected.abs().max().item<double>());
    EXPECT_TRUE(at::equal(got.argmax(-1), expected.argmax(-1)));
  }
  const auto& rows = packed->kernel_report().rows;
  EXPECT_EQ(std::count_if(rows.begin(), rows.end(),
                          [](const KernelRow& row) { return row.layer == "PackedExperts" && row.package.has_value(); }),
            2);
  packed->save_pretrained(saved.path());
  const auto again = AutoModelForCausalLM::from_pretrained(saved.path(), {.dtype = "float32"});
  EXPECT_TRUE(at::equal((*again)({.input_ids = ids}).logits, expected));
}

TEST(GptOss, ACheckpointWithoutScalesIsRefusedByName) {
  const TempFolder folder;
  write_mxfp4(folder);
  TensorMap tensors;
  const auto stored = open_checkpoint(folder.path());
  for (const std::string& name : stored->names()) {
    if (name != "model.layers.1.mlp.experts.down_proj_scales") tensors.emplace_back(name, stored->tensor(name).clone());
  }
  save_pretrained_weights(folder.path(), tensors);
  const std::string error =
      test_support::message_of([&] { AutoModelForCausalLM::from_pretrained(folder.path(), {.use_kernels = true}); });
  test_support::expect_has(error, {"down_proj_scales", "model.layers.1.mlp.experts.down_proj", "none"});
}

}  // namespace
}  // namespace hotswap
