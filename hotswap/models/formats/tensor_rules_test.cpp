#include "hotswap/models/formats/tensor_rules.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

// Two experts as one tensor, three projections of their own.
class Model : public Module {
 public:
  Model() {
    own("layers.0.q.weight", q, {4, 3});
    own("layers.0.k.weight", k, {2, 3});
    own("layers.0.v.weight", v, {2, 3});
    own("layers.0.experts.up.weight", up, {2, 5, 3});
    own("norm.weight", norm, {3});
  }
  Tensor q, k, v, up, norm;
};

const TensorRules kRules = {
    TensorRule::split("h.*.qkv", {"layers.*.q", "layers.*.k", "layers.*.v"}),
    TensorRule::stack({"layers.*.experts.*.up"}, "layers.*.experts.up"),
    TensorRule::rename("final_norm", "norm"),
};

TensorMap stored() {
  return {{"final_norm.weight", at::randn({3})},
          {"h.0.qkv.weight", at::arange(24, at::kFloat).view({8, 3})},
          {"layers.0.experts.0.up.weight", at::randn({5, 3})},
          {"layers.0.experts.1.up.weight", at::randn({5, 3})}};
}

std::unique_ptr<const Checkpoint> checkpoint_of(const TempFolder& folder, const TensorMap& tensors) {
  save_pretrained_weights(folder.path(), tensors);
  Model model;
  return in_model_terms(open_checkpoint(folder.path()), kRules, model);
}

TEST(TensorRules, FillAModelAndSaveWhatWasRead) {
  const TempFolder folder;
  const TensorMap tensors = stored();
  const auto checkpoint = checkpoint_of(folder, tensors);
  Model model;
  load_into(model, *checkpoint);
  EXPECT_TRUE(at::equal(model.q, tensors[1].second.narrow(0, 0, 4)));
  EXPECT_TRUE(at::equal(model.k, tensors[1].second.narrow(0, 4, 2)));
  EXPECT_TRUE(at::equal(model.v, tensors[1].second.narrow(0, 6, 2)));
  EXPECT_TRUE(at::equal(model.up, at::stack({tensors[2].second, tensors[3].second})));
  model.k.zero_();  // memory of its own
  EXPECT_TRUE(at::equal(checkpoint->tensor("layers.0.k.weight"), tensors[1].second.narrow(0, 4, 2)));

  Model shared;
  load_into(shared, *checkpoint, {.copy = false});
  std::map<std::string, Tensor> saved;
  for (const auto& [name, tensor] : in_checkpoint_terms(named_tensors(shared), kRules)) saved[name] = tensor;
  ASSERT_EQ(saved.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE(saved.contains(name)) << name;
    EXPECT_TRUE(at::equal(saved[name], tensor)) << name;
  }
}

TEST(TensorRules, WithoutRulesNothingChanges) {
  const TempFolder folder;
  save_pretrained_weights(folder.path(), stored());
  Model model;
  EXPECT_EQ(in_model_terms(open_checkpoint(folder.path()), {}, model)->names(),
            open_checkpoint(folder.path())->names());
  EXPECT_EQ(in_checkpoint_terms(stored(), {}).size(), 4U);
}

TEST(TensorRules, WhatDoesNotFitIsNamed) {
  const auto message = [](const TensorMap& tensors) {
    const TempFolder folder;
    return message_of([&] { checkpoint_of(folder, tensors); });
  };
  expect_has(message({{"layers.0.experts.1.up.weight", at::randn({5, 3})}}),
             {"layers.0.experts.up.weight", "number 1"});
  expect_has(message({{"layers.0.experts.0.up.weight", at::randn({5, 3})},
                      {"layers.0.experts.1.up.weight", at::randn({5, 2})}}),
             {"different shapes"});
  expect_has(message({{"layers.0.experts.1.up.weight", at::randn({5, 3})},
                      {"layers.0.experts.01.up.weight", at::randn({5, 3})}}),
             {"one tensor for 'layers.0.experts.up.weight'", "01"});
  expect_has(message({{"h.0.qkv.weight", at::randn({7, 3})}}), {"8 rows in 'h.0.qkv.weight'", "[7, 3]"});
  expect_has(message({{"h.1.qkv.weight", at::randn({8, 3})}}), {"'layers.1.q.weight' in the model"});
  expect_has(message({{"final_norm.weight", at::randn({3})}, {"norm.weight", at::randn({3})}}),
             {"one tensor for 'norm.weight'", "final_norm"});
  const std::string expert = "layers.0.experts.x.up.weight";  // no number: not an expert
  EXPECT_EQ(message({{expert, at::randn({3})}}), "no error");
}

// Gate and up of each expert lie one behind the other in one tensor.
class ExpertTensors : public Module {
 public:
  ExpertTensors() {
    own("layers.0.experts.gate_up", gate_up, {3, 4, 5});
    own("layers.0.experts.bias", bias, {3, 4});
  }
  Tensor gate_up, bias;
};

const TensorRules kExpertRules = {
    TensorRule::stack({"layers.*.experts.*.gate.weight", "layers.*.experts.*.up.weight"}, "layers.*.experts.gate_up"),
    TensorRule::stack({"layers.*.experts.*.gate.bias", "layers.*.experts.*.up.bias"}, "layers.*.experts.bias"),
};

TEST(TensorRules, StackSeveralListsSideBySide) {
  TensorMap tensors;
  for (const char* part : {"gate", "up"}) {
    for (int e = 0; e < 3; ++e) {
      tensors.emplace_back(cat("layers.0.experts.", e, ".", part, ".bias"), at::randn({2}));
      tensors.emplace_back(cat("layers.0.experts.", e, ".", part, ".weight"), at::randn({2, 5}));
    }
  }
  const auto read = [](const TensorMap& given) {
    const TempFolder folder;
    save_pretrained_weights(folder.path(), given);
    ExpertTensors model;
    load_into(model, *in_model_terms(open_checkpoint(folder.path()), kExpertRules, model));
    return named_tensors(model);
  };
  const TensorMap model = read(tensors);
  EXPECT_TRUE(at::equal(model[0].second[2].narrow(0, 2, 2), tensors.back().second));
  EXPECT_TRUE(at::equal(model[1].second[0].narrow(0, 0, 2), tensors.front().second));
  std::map<std::string, Tensor> saved;
  for (const auto& [name, tensor] : in_checkpoint_terms(model, kExpertRules)) saved[name] = tensor;
  ASSERT_EQ(saved.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(at::equal(saved.at(name), tensor)) << name;
  // Stacked already, as transformers holds them in memory.
  EXPECT_TRUE(at::equal(read(model)[0].second, model[0].second));

  TensorMap lost = tensors;
  lost.pop_back();  // up of expert 2
  expect_has(message_of([&] { read(lost); }), {"layers.0.experts.gate_up", "2 of them"});
  lost = tensors;
  std::erase_if(lost, [](const auto& named) { return named.first.ends_with("up.weight"); });
  expect_has(message_of([&] { read(lost); }), {"'layers.*.experts.*.up.weight'", "none, and 'layers.0.experts.0.gate"});
  lost = tensors;
  lost.insert(lost.end(), model.begin(), model.end());  // both forms
  expect_has(message_of([&] { read(lost); }),
             {"one tensor for 'layers.0.experts.bias'", "and 'layers.0.experts.bias'"});
}

}  // namespace
}  // namespace hotswap
