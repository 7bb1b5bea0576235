// Each key of every family's config, with other values, absent and null, against transformers: config_keys_oracle.py.
// HOTSWAP_CONFIG_KEYS=all: all of them, else an eighth.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "hotswap/models/auto.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::made_data;
using test_support::put_file;

using ConfigKeys = test_support::WithTransformers<>;

// What the model of a folder computes, or the Error that refuses it.
struct KeyOutcome {
  Tensor logits = {};
  std::string refused = {};
};
KeyOutcome outcome_of(const std::filesystem::path& folder, const Tensor& ids) {
  try {
    const auto model = AutoModelForCausalLM::from_pretrained(folder, {.dtype = "float32"});
    return {.logits = (*model)({.input_ids = ids}).logits};
  } catch (const Error& error) {
    return {.refused = error.what()};
  }
}

// The key, or one within its value: "rope_parameters" or its "partial_rotary_factor".
bool names(const std::string& refusal, const Json& config, const std::string& key) {
  if (refusal.find(key) != std::string::npos) return true;
  if (!config.has(key) || !config.child(key).is_object()) return false;
  const auto inner = config.child(key).items();
  return std::any_of(inner.begin(), inner.end(),
                     [&](const auto& item) { return refusal.find(item.first) != std::string::npos; });
}

// A key that changes what transformers computes is used here, or an Error names it. Float32 sums in another order, as
// in parity_test.cpp.
TEST_F(ConfigKeys, AreUsedOrRefusedByName) {
  const at::NoGradGuard no_grad;
  const auto& root = made_data("models/config_keys_oracle.py");
  const SafetensorsFile expected(root / "expected.safetensors");
  const Tensor ids = expected.tensor("input_ids");
  for (const Json& row : Json::read(root / "cases.json").elements()) {
    const auto text = [&](const char* key) { return row.at<std::string>(key); };
    const auto folder = root / text("weights");
    put_file(folder / "config.json", row.child("config").raw().dump());
    const KeyOutcome got = outcome_of(folder, ids);
    const std::string what = cat(text("family"), ", ", text("change"));
    if (!got.refused.empty()) {
      EXPECT_FALSE(text("key").empty()) << what << ": " << got.refused;
      EXPECT_TRUE(names(got.refused, row.child("config"), text("key"))) << what << ": " << got.refused;
      continue;
    }
    const Tensor reference = expected.tensor(text("logits"));
    ASSERT_EQ(got.logits.sizes(), reference.sizes()) << what;
    EXPECT_LE(((got.logits - reference).abs().max() / reference.abs().max()).item<double>(), 1e-4) << what;
  }
}

TEST_F(ConfigKeys, EachFamilyIsCovered) {
  const auto& root = made_data("models/config_keys_oracle.py");
  std::set<std::string> covered;
  for (const Json& row : Json::read(root / "cases.json").elements()) covered.insert(row.at<std::string>("family"));
  for (const Family* family : families()) EXPECT_TRUE(covered.contains(family->model_type)) << family->model_type;
}

}  // namespace
}  // namespace hotswap
