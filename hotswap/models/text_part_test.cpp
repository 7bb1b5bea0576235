// Models that see, of which the text part loads: text_part_oracle.py.
#include "hotswap/models/text_part.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "hotswap/models/auto.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::made_data;
using test_support::TempFolder;

using TextPart = test_support::WithTransformers<>;

// Float32 sums in another order, as in parity_test.cpp.
void expect_logits(CausalLM& model, const SafetensorsFile& expected, const std::string& what) {
  const Tensor got = model({.input_ids = expected.tensor("input_ids")}).logits, reference = expected.tensor("logits");
  ASSERT_EQ(got.sizes(), reference.sizes()) << what;
  EXPECT_LE(((got - reference).abs().max() / reference.abs().max()).item<double>(), 1e-4) << what;
}

TEST_F(TextPart, ComputesWhatTheWholeComputesOfText) {
  const at::NoGradGuard no_grad;
  const auto& root = made_data("models/text_part_oracle.py");
  for (const Json& entry : Json::read(root / "models.json").elements()) {
    const auto name = entry.as<std::string>();
    const SafetensorsFile expected(root / name / "expected.safetensors");
    for (const char* form : {"published", "by_modules"}) {
      for (const bool kernels : {false, true}) {
        const std::string what = cat(name, ", ", form, ", kernels ", kernels);
        testing::internal::CaptureStderr();
        const auto model = AutoModelForCausalLM::from_pretrained(root / name / form, {.use_kernels = kernels});
        const std::string log = testing::internal::GetCapturedStderr();
        EXPECT_NE(log.find("belong to images and are skipped"), std::string::npos) << what << ": " << log;
        expect_logits(*model, expected, what);
        const TempFolder folder;  // a model of text
        model->save_pretrained(folder.path());
        EXPECT_FALSE(Json::read(folder / "config.json").has("vision_config")) << what;
        expect_logits(*AutoModelForCausalLM::from_pretrained(folder.path()), expected, what + ", saved");
      }
    }
  }
}

TEST(TextPartConfig, TakesWhatTheWholeSaysOfTheText) {
  const auto read = [](const nlohmann::ordered_json& config) {
    return text_part(Json::parse(config.dump(), "config.json"));
  };
  // As published: text_config names what differs from its class.
  const Json text = read({{"model_type", "gemma3"},
                          {"text_config", {{"hidden_size", 2560}, {"num_hidden_layers", 34}, {"sliding_window", 1024}}},
                          {"vision_config", {{"hidden_size", 1152}}},
                          {"eos_token_id", {1, 106}},
                          {"torch_dtype", "bfloat16"}});
  EXPECT_EQ(text.at<std::string>("model_type"), "gemma3_text");
  EXPECT_EQ(text.at<int64_t>("hidden_size"), 2560);
  EXPECT_EQ(text.at<int64_t>("num_attention_heads"), 8);
  EXPECT_EQ(read_ids(text, "eos_token_id"), (std::vector<int64_t>{1, 106}));
  EXPECT_EQ(config_dtype(text), at::kBFloat16);
  EXPECT_EQ(text.where(), "config.json: text_config");
  const nlohmann::ordered_json plain = {{"model_type", "llama"}, {"text_config", {{"hidden_size", 8}}}};
  EXPECT_EQ(read(plain).raw(), plain) << "of no model that sees";
}

}  // namespace
}  // namespace hotswap
