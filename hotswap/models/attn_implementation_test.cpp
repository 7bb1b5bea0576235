#include "hotswap/models/attn_implementation.h"

#include <gtest/gtest.h>

#include "hotswap/base/test_support.h"
#include "hotswap/layers/norm.h"
#include "hotswap/layers/slot.h"
#include "hotswap/models/auto.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using test_support::ScopedEnv;
using test_support::TempFolder;

// transformers' own test of what is a kernel's name and what is not, and its short names, which mean kernels here.
TEST(AttnImplementation, WhatIsAKernelsName) {
  for (const char* kernel : {"org/model", "org/model@main", "org/model:f", "org/model@v1.2.3:f", "flash_attention_2"}) {
    EXPECT_TRUE(is_attention_kernel(kernel)) << kernel;
    EXPECT_TRUE(is_attention_kernel(cat("paged|", kernel))) << kernel;
  }
  for (const char* built_in : {"eager", "sdpa", "flex_attention", "org:model", ""}) {
    EXPECT_FALSE(is_attention_kernel(built_in)) << built_in;
    EXPECT_FALSE(is_attention_kernel(cat("paged|", built_in))) << built_in;
  }
}

TEST(AttnImplementation, WhichKernelANameMeans) {
  const auto kernel = [](const std::string& name) { return attention_kernel(name, false, {}).str(); };
  EXPECT_EQ(kernel("sdpa"), "");
  EXPECT_EQ(kernel("eager"), "");
  EXPECT_EQ(kernel("acme/attn"), "acme/attn@v1");
  EXPECT_EQ(kernel("acme/attn@v2:fast"), "acme/attn@v2:fast");
  EXPECT_EQ(kernel("acme/attn@>=1.0,<3.0"), "acme/attn@>=1.0,<3.0");
  EXPECT_EQ(kernel("kernels-community/flash-attn2"), "kernels-community/flash-attn2@v3");
  EXPECT_EQ(kernel("flash_attention_2"), "kernels-community/flash-attn2@v3");
  EXPECT_EQ(kernel("flash_attention_3"), "kernels-community/vllm-flash-attn3@v1");
  TempFolder project;
  project.write("hotswap.toml", "[dependencies]\n\"acme/attn\" = 7\n");
  EXPECT_EQ(attention_kernel("acme/attn", false, project.path()).str(), "acme/attn@v7");
  EXPECT_EQ(attention_kernel("acme/attn@v2", false, project.path()).str(), "acme/attn@v2");
  const auto refused = [](const std::string& name) { return message_of([&] { check_attn_implementation(name); }); };
  for (const char* good : {"sdpa", "eager", "acme/attn", "flash_attention_3"}) EXPECT_EQ(refused(good), "no error");
  for (const char* unknown : {"flash", "org:model", ""}) {
    expect_has(refused(unknown), {"an attention implementation: sdpa, eager"});
  }
  expect_has(refused("/here/attn"), {"the folder /here/attn", "LOCAL_KERNELS"});
  expect_has(refused("org/model:a:b"), {"org/repo[@revision][:Layer]"});
}

// transformers' names for continuous batching: what to write instead is the same name without "paged|", which is
// checked like one without; a name that is wrong without it is told as such, and not as a paged one.
TEST(AttnImplementation, PagesAreRefusedWithTheNameToWriteInstead) {
  const auto refused = [](const std::string& name) { return message_of([&] { check_attn_implementation(name); }); };
  for (const std::string rest : {"sdpa", "eager", "flash_attention_2", "flash_attention_3", "acme/attn",
                                 "acme/attn@v2:fast", "acme/attn@>=1.0,<3.0"}) {
    expect_has(refused("paged|" + rest), {cat("\"paged|", rest, '"'), "a paged cache", "continuous batching",
                                          cat("set attn_implementation to \"", rest, '"'), "generate_batch"});
    EXPECT_EQ(refused(rest), "no error");
  }
  expect_has(message_of([] { attention_kernel("paged|acme/attn", false, {}); }),
             {"set attn_implementation to \"acme/attn\""});
  for (const char* unknown : {"paged|flash", "paged|", "paged|paged|sdpa", "paged|flex_attention"}) {
    expect_has(refused(unknown), {"an attention implementation: sdpa, eager", "a kernel as org/repo"});
  }
  expect_has(refused("paged|/here/attn"), {"the folder /here/attn", "LOCAL_KERNELS"});
  expect_has(refused("paged|org/model:a:b"), {"org/repo[@revision][:Layer]"});
  expect_has(refused("sdpa|paged"), {"an attention implementation: sdpa, eager"});
}

std::shared_ptr<CausalLM> tiny_llama() {
  const nlohmann::ordered_json config = {
      {"model_type", "llama"},    {"vocab_size", 20},        {"hidden_size", 8},     {"num_hidden_layers", 2},
      {"num_attention_heads", 2}, {"intermediate_size", 12}, {"rms_norm_eps", 1e-5}, {"max_position_embeddings", 16}};
  auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->init_weights(1);
  return model;
}

// Before any weight is read, and a model that is there stays as it was.
TEST(AttnImplementation, PagesAreRefusedWhereAModelIsLoadedOrChanged) {
  const auto model = tiny_llama();
  model->set_attn_implementation("eager");
  expect_has(message_of([&] { model->set_attn_implementation("paged|sdpa"); }), {"a paged cache", "\"sdpa\""});
  EXPECT_EQ(model->attn_implementation(), "eager");
  const TempFolder folder;  // no weights in it
  folder.write("config.json", R"({"model_type": "llama", "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 12, "rms_norm_eps": 1e-5, "max_position_embeddings": 16})");
  for (const bool use_kernels : {false, true}) {
    const PretrainedOptions options{.use_kernels = use_kernels, .attn_implementation = "paged|flash_attention_2"};
    const auto load = [&] { AutoModelForCausalLM::from_pretrained(folder.path(), options); };
    expect_has(message_of(load), {"a paged cache", "\"flash_attention_2\""});
  }
}

// Stock forwards are rows of the report, by choice; what fails leaves the model as it was.
TEST(AttnImplementation, IsARowOfTheReport) {
  const auto model = tiny_llama();
  const auto rows = [&] {
    std::vector<KernelRow> found;
    for (const KernelRow& row : model->kernel_report().rows) {
      if (row.layer == kAttentionLayer) found.push_back(row);
    }
    return found;
  };
  EXPECT_EQ(model->attn_implementation(), "sdpa");
  model->kernelize(Mode::INFERENCE, {.config = {{{"RMSNorm", ""}}, false, /*inherit_mapping=*/false}});
  ASSERT_EQ(rows().size(), 2U);
  EXPECT_EQ(rows()[0].name, "model.layers.0.self_attn");
  EXPECT_TRUE(rows()[0].by_choice);
  EXPECT_FALSE(rows()[0].package);
  model->set_attn_implementation("eager");
  EXPECT_EQ(model->attn_implementation(), "eager");
  const TempFolder cache;
  const ScopedEnv offline("HF_HUB_OFFLINE", "1"), cached("HF_HUB_CACHE", cache.path().string());
  const ScopedEnv kernels("KERNELS_CACHE", std::nullopt);
  expect_has(message_of([&] { model->set_attn_implementation("acme/attn"); }), {"acme/attn", "HF_HUB_OFFLINE"});
  EXPECT_EQ(model->attn_implementation(), "eager");
  EXPECT_EQ(rows().size(), 2U);
  model->unkernelize();
  EXPECT_TRUE(rows().empty());
  expect_has(message_of([&] { model->set_attn_implementation("acme/attn"); }), {"acme/attn"});
  EXPECT_TRUE(rows().empty());
  expect_has(message_of([&] {
               model->kernelize(Mode::INFERENCE, {.config = {{{"attention", "acme/attn"}}, false, false}});
             }),
             {"acme/attn"});
  EXPECT_EQ(model->attn_implementation(), "eager");
}

// A row for another kind of device says nothing about this one: attn_implementation does.
TEST(AttnImplementation, ARowForAnotherDeviceLeavesThisOnes) {
  const auto model = tiny_llama();
  const auto attention = [&]() -> const KernelRow& {
    for (const KernelRow& row : model->kernel_report().rows) {
      if (row.layer == kAttentionLayer) return row;
    }
    throw std::runtime_error("no row for the attention");
  };
  const KernelRef bundled("hotswap/attention:attention");
  model->kernelize(Mode::INFERENCE, {.config = {{{kAttentionLayer, {{"cuda", bundled}}}}}});
  EXPECT_FALSE(attention().package) << *attention().package;
  EXPECT_TRUE(attention().by_choice);
  model->kernelize(Mode::INFERENCE, {.config = {{{kAttentionLayer, {{"cuda", ""}, {"cpu", bundled}}}}}});
  EXPECT_EQ(attention().package, "attention");
}

}  // namespace
}  // namespace hotswap
