// Whole tiny models of every quantised format, as the format's own writer makes them where there is one: the logits are
// those of transformers' reader, or of its Llama with the weights that the format stands for
// (formats/quantised_model_oracle.py).
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <set>

#include "hotswap/models/auto.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::made_data;

constexpr const char* kScript = "models/formats/quantised_model_oracle.py";

constexpr const char* kModels[] = {
    "gptq_v1",       "gptq_v2",        "gptq_act_order", "gptq_2bit",        "gptq_3bit",
    "gptq_8bit",     "gptq_one_group", "gptq_sym",       "gptq_mislabelled", "awq",
    "fp8_blocks",    "fp8_real",       "modelopt_fp8",   "ct_w4a16",         "modelopt_nvfp4",
    "ct_w4a16_asym", "ct_w8a16",       "ct_int8",        "ct_fp8",           "ct_nvfp4",
    "bnb_nf4",       "bnb_nf4_nested", "bnb_fp4",        "bnb_real",         "gguf_q8_0",
    "gguf_q4_0",     "gguf_q4_1",      "gguf_q5_0",      "gguf_q5_1",        "gguf_q2_k",
    "gguf_q3_k",     "gguf_q4_k",      "gguf_q5_k",      "gguf_q6_k",        "gguf_iq4_xs"};

// Those of which kernels keep no weight packed: eight bits, tables, columns in an order of their own, types of ggml
// that no kernel takes.
const std::set<std::string> kDequantised = {"gptq_act_order", "gptq_8bit", "modelopt_nvfp4", "ct_w8a16",   "ct_int8",
                                            "ct_nvfp4",       "bnb_nf4",   "bnb_nf4_nested", "bnb_fp4",    "bnb_real",
                                            "gguf_q5_1",      "gguf_q2_k", "gguf_q3_k",      "gguf_iq4_xs"};

class QuantisedModel : public testing::TestWithParam<const char*> {};

TEST_P(QuantisedModel, ComputesWhatItsReaderDoes) {
  if (const auto why = test_support::lacking_imports("bitsandbytes, compressed_tensors, gguf, transformers")) {
    GTEST_SKIP() << *why;
  }
  const auto folder = made_data(kScript) / "models" / GetParam();
  const SafetensorsFile expected(folder / "expected.safetensors");
  const Tensor exact = expected.tensor("logits"), ids = expected.tensor("input_ids");
  PretrainedOptions options{.dtype = "float32"};
  if (std::filesystem::exists(folder / "model.gguf")) options.gguf_file = "model.gguf";
  const at::NoGradGuard no_grad;
  // The weights are the same float32 elements; sums of at most 512 terms, in two layers, are made in another order.
  // At most 7e-6 was measured over six runs of other random weights.
  const double limit = 3e-5 * exact.abs().max().item<double>();
  const auto compare = [&](const PretrainedOptions& with) {
    const auto model = AutoModelForCausalLM::from_pretrained(folder, with);
    const Tensor got = (*model)({.input_ids = ids}).logits;
    ASSERT_EQ(got.sizes(), exact.sizes());
    EXPECT_LE((got - exact).abs().max().item<double>(), limit);
    EXPECT_EQ(model->has_encoded_weights(), with.use_kernels && !kDequantised.contains(GetParam()));
  };
  compare(options);
  options.use_kernels = true;  // of packed weights too, where there are some
  compare(options);
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantisedModel, testing::ValuesIn(kModels),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace hotswap
