// What every family's model promises beyond its values: packed rows, caches, fresh weights, inputs that are wrong.
#include "hotswap/models/causal_lm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <random>

#include "hotswap/models/auto.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/weights.h"
#include "hotswap/models/test_families.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;
using test_support::tiny;

class EveryFamily : public testing::TestWithParam<const Family*> {
 protected:
  Tensor& embedding() {
    Tensor* found = nullptr;
    model_->each_tensor([&](const std::string& name, Tensor& t) {
      if (name == "model.embed_tokens.weight") found = &t;
    });
    return *found;
  }
  std::shared_ptr<CausalLM> model_ = tiny(GetParam()->model_type);
  at::NoGradGuard no_grad_;
};

TEST_P(EveryFamily, PackedSequencesAreAsIfAlone) {
  const Tensor a = at::randint(0, 40, {1, 9}, at::kLong), b = at::randint(0, 40, {1, 4}, at::kLong);
  const Tensor alone = at::cat({(*model_)({.input_ids = a}).logits, (*model_)({.input_ids = b}).logits}, 1);
  for (const char* attention : {"", "eager"}) {
    model_->set_attn_implementation(attention);
    const Tensor packed =
        (*model_)({.input_ids = at::cat({a, b}, 1), .cu_seqlens = at::tensor({0, 9, 13}, at::kInt)}).logits;
    EXPECT_LE((packed - alone).abs().max().item<double>(), 1e-4 * alone.abs().max().item<double>()) << attention;
  }
}

// By positions that begin again, as transformers takes them, or by seq_idx; stock and by kernels.
TEST_P(EveryFamily, DocumentsOfPackedRowsAreKeptApart) {
  const Tensor ids = at::randint(0, 40, {2, 13}, at::kLong);
  const std::vector<std::vector<int64_t>> lengths = {{9, 4}, {5, 1, 7}};
  std::vector<Tensor> single, positions, index;
  for (int64_t row = 0; row < 2; ++row) {
    int64_t start = 0;
    for (const int64_t length : lengths[row]) {
      single.push_back((*model_)({.input_ids = ids.narrow(0, row, 1).narrow(1, start, length)}).logits);
      positions.push_back(at::arange(length));
      index.push_back(at::full({length}, start, at::kInt));
      start += length;
    }
  }
  const Tensor expected = at::cat(single, 1).view({2, 13, -1});
  const Tensor by_positions = at::cat(positions).view({2, 13}), by_index = at::cat(index).view({2, 13});
  const auto check = [&](const ForwardArguments& packed, const std::string& what) {
    const double difference = ((*model_)(packed).logits - expected).abs().max().item<double>();
    EXPECT_LE(difference, 1e-4 * expected.abs().max().item<double>()) << what;
  };
  for (const char* way : {"stock", "eager", "kernels"}) {
    if (way == std::string("eager")) model_->set_attn_implementation(way);
    if (way == std::string("kernels")) model_->kernelize();
    check({.input_ids = ids, .position_ids = by_positions}, cat(way, ", position_ids"));
    check({.input_ids = ids, .seq_idx = by_index}, cat(way, ", seq_idx"));
    check({.input_ids = ids, .position_ids = by_positions, .seq_idx = by_index}, cat(way, ", both"));
  }
  const Tensor one = at::arange(13).unsqueeze(0), zeros = at::zeros({1, 13}, at::kInt);
  const Tensor plain = (*model_)({.input_ids = ids}).logits;
  EXPECT_TRUE(at::equal((*model_)({.input_ids = ids, .seq_idx = zeros}).logits, plain));
  EXPECT_LE(((*model_)({.input_ids = ids, .position_ids = one}).logits - plain).abs().max().item<double>(), 1e-5);
}

TEST_P(EveryFamily, GradientsOfPackedDocumentsAreKeptApart) {
  const at::AutoGradMode with_grad(true);
  model_->requires_grad(true);
  const Tensor ids = at::randint(0, 40, {1, 13}, at::kLong);
  const auto gradient = [&](const std::vector<ForwardArguments>& calls) {
    std::vector<Tensor> logits;
    for (const ForwardArguments& call : calls) logits.push_back((*model_)(call).logits);
    Tensor& weight = embedding();
    at::cat(logits, 1).square().sum().backward();
    const Tensor made = weight.grad();
    weight.mutable_grad() = Tensor();
    return made;
  };
  const Tensor positions = at::cat({at::arange(9), at::arange(4)}).unsqueeze(0);
  const Tensor expected = gradient({{.input_ids = ids.narrow(1, 0, 9)}, {.input_ids = ids.narrow(1, 9, 4)}});
  for (const bool kernels : {false, true}) {
    if (kernels) model_->kernelize(Mode::TRAINING);
    const Tensor got = gradient({{.input_ids = ids, .position_ids = positions}});
    EXPECT_LE((got - expected).norm().item<double>(), 1e-4 * expected.norm().item<double>()) << "kernels " << kernels;
  }
}

// Saved while kernels are bound, too.
TEST_P(EveryFamily, KernelsComeAndGoInAnyOrder) {
  const Tensor ids = at::randint(0, 40, {2, 7}, at::kLong), stock = (*model_)({.input_ids = ids}).logits;
  std::mt19937 random(7);
  std::string steps;
  const std::vector<std::pair<const char*, std::function<void()>>> all = {
      {"kernelize", [&] { model_->kernelize(); }},
      {"kernelize for training", [&] { model_->kernelize(Mode::TRAINING); }},
      {"kernelize only norms",
       [&] {
         const char* norm = model_->config().layer_norm ? "LayerNorm" : "RMSNorm";
         model_->kernelize(Mode::INFERENCE, {.config = {{{norm, "hotswap/norm"}}}});
       }},
      {"unkernelize", [&] { model_->unkernelize(); }},
      {"train", [&] { model_->train(); }},
      {"eval", [&] { model_->eval(); }},
      {"eager", [&] { model_->set_attn_implementation("eager"); }},
      {"default attention", [&] { model_->set_attn_implementation(""); }}};
  for (int step = 0; step < 24; ++step) {
    const auto& [name, act] = all[random() % all.size()];
    steps += cat(name, ", ");
    act();
    const double difference = ((*model_)({.input_ids = ids}).logits - stock).abs().max().item<double>();
    ASSERT_LE(difference, 1e-4 * stock.abs().max().item<double>()) << steps;
  }
  model_->kernelize();
  const TempFolder folder;
  model_->save_pretrained(folder.path());
  const auto loaded = AutoModelForCausalLM::from_pretrained(folder.path());
  loaded->eval();
  EXPECT_TRUE(at::equal((*loaded)({.input_ids = ids}).logits, stock));
  model_->unkernelize();
  model_->eval();
  model_->set_attn_implementation("");
  EXPECT_TRUE(at::equal((*model_)({.input_ids = ids}).logits, stock)) << steps;
  EXPECT_TRUE(model_->kernel_report().rows.empty());
}

// Token by token, several at once, and after a crop: what a whole forward gives.
TEST_P(EveryFamily, ACacheGivesTheWholeForward) {
  const Tensor ids = at::randint(0, 40, {2, 14}, at::kLong);
  Tensor mask = at::ones({2, 14}, at::kLong);
  mask[1].narrow(0, 0, 3).zero_();
  for (const bool padded : {false, true}) {
    const Tensor positions = (mask.cumsum(1) - 1).clamp_min(0);
    const Tensor whole = padded
                             ? (*model_)({.input_ids = ids, .attention_mask = mask, .position_ids = positions}).logits
                             : (*model_)({.input_ids = ids}).logits;
    const auto cache = model_->make_cache();
    int64_t seen = 0;
    for (const int64_t count : {4, 1, 1, 5, 1, 2}) {
      const Tensor got = (*model_)({.input_ids = ids.narrow(1, seen, count),
                                    .attention_mask = padded ? mask.narrow(1, 0, seen + count) : Tensor(),
                                    .position_ids = padded ? positions.narrow(1, seen, count) : Tensor(),
                                    .cache = cache.get()})
                             .logits;
      Tensor difference = (got - whole.narrow(1, seen, count)).abs();
      if (padded) difference = difference * mask.narrow(1, seen, count).unsqueeze(-1);
      EXPECT_LE(difference.max().item<double>(), 1e-4 * whole.abs().max().item<double>())
          << "after " << seen << " padded " << padded;
      seen += count;
    }
    EXPECT_EQ(cache->length(), 14);
  }
}

TEST_P(EveryFamily, FreshWeights) {
  std::map<std::string, Tensor> tensors;
  model_->each_tensor([&](const std::string& name, Tensor& tensor) { tensors[name] = tensor; });
  // By rules of their own: layers/mamba_test.cpp.
  const auto is_mamba = [](const std::string& name) {
    for (const char* part : {"A_log", ".D", "dt_bias", "dt_proj", "conv1d", "mixer.out_proj"}) {
      if (name.find(part) != std::string::npos) return true;
    }
    return false;
  };
  for (const auto& [name, tensor] : tensors) {
    if (is_mamba(name)) continue;
    if (name.ends_with("bias")) {
      EXPECT_TRUE(tensor.eq(0).all().item<bool>()) << name;
    } else if (name.find("norm") != std::string::npos) {
      const bool gated = name.find("linear_attn.norm") != std::string::npos;  // which keeps its weight whole
      EXPECT_TRUE(tensor.eq(gated ? 1 : 1 - model_->config().norm_offset).all().item<bool>()) << name;
    } else if (tensor.numel() < 20) {  // sinks: too few numbers to tell a spread
      EXPECT_TRUE(tensor.ne(0).all().item<bool>()) << name;
    } else {
      EXPECT_NEAR(tensor.std().item<double>(), 0.4, 0.1) << name;
    }
  }
}

TEST_P(EveryFamily, WrongInputsAreToldInOurWords) {
  const Tensor ids = at::zeros({2, 3}, at::kLong);
  const auto refused = [&](const ForwardArguments& arguments) { return message_of([&] { (*model_)(arguments); }); };
  expect_has(refused({.input_ids = Tensor()}), {"input_ids [batch, time]", "got none"});
  expect_has(refused({.input_ids = at::zeros({3}, at::kLong)}), {"[batch, time]", "got [3]", "unsqueeze(0)"});
  expect_has(refused({.input_ids = at::zeros({0, 3}, at::kLong)}), {"not empty"});
  expect_has(refused({.input_ids = ids.to(at::kInt)}), {"input_ids of Long", "got Int", "to(at::kLong)"});
  expect_has(refused({.input_ids = ids.to(at::kMeta)}), {"input_ids on cpu, where the model is", "got them on meta"});
  expect_has(refused({.input_ids = ids + 40}), {"token ids from 0 to 39", "got 40", "tokenizer"});
  expect_has(refused({.input_ids = ids - 1}), {"got -1"});
  expect_has(refused({.input_ids = ids, .attention_mask = at::ones({2, 4})}), {"attention_mask [2, 3]", "[2, 4]"});
  expect_has(refused({.input_ids = ids, .position_ids = at::zeros({2, 2}, at::kLong)}), {"position_ids [1 or 2, 3]"});
  expect_has(refused({.input_ids = ids, .position_ids = at::zeros({2, 3})}), {"position_ids of Long", "Float"});
  expect_has(refused({.input_ids = ids, .labels = ids.to(at::kInt)}), {"labels of Long"});
  expect_has(refused({.input_ids = ids, .labels = at::zeros({2, 2}, at::kLong)}), {"labels [2, 3]"});
  const Tensor row = at::zeros({1, 3}, at::kLong);
  expect_has(refused({.input_ids = ids, .cu_seqlens = at::tensor({0, 3}, at::kInt)}),
             {"a batch of one", "a batch of 2"});
  expect_has(refused({.input_ids = row, .cu_seqlens = at::tensor({0, 2}, at::kInt)}), {"rise from 0 to 3", "got 0, 2"});
  expect_has(refused({.input_ids = row, .cu_seqlens = at::tensor({0, 4, 3}, at::kInt)}), {"rise from 0 to 3"});
  expect_has(refused({.input_ids = row, .cu_seqlens = at::tensor({0.0, 3.0})}), {"integers"});
  expect_has(refused({.input_ids = ids, .seq_idx = at::zeros({2, 2}, at::kInt)}), {"seq_idx [1 or 2, 3]"});
  expect_has(refused({.input_ids = ids, .seq_idx = at::zeros({2, 3})}), {"seq_idx of integers", "Float"});
  expect_has(refused({.input_ids = ids, .attention_mask = at::ones({2, 3}), .seq_idx = ids}), {"an attention_mask"});
  const auto cache = model_->make_cache();
  EXPECT_EQ(refused({.input_ids = row, .cache = cache.get()}), "no error");
  expect_has(refused({.input_ids = row, .attention_mask = at::ones({1, 3}), .cache = cache.get()}),
             {"attention_mask [1, 6]"});
}

INSTANTIATE_TEST_SUITE_P(Models, EveryFamily, testing::ValuesIn(families()),
                         [](const auto& info) { return info.param->model_type; });

// As transformers has it: a head in the file that is not the embedding counts, whatever tie_word_embeddings says; the
// same numbers twice are one tensor.
TEST(TiedEmbeddings, AHeadOfItsOwnInTheFileIsUsed) {
  const at::NoGradGuard no_grad;
  const TempFolder folder;
  nlohmann::ordered_json config = tiny("llama")->config_json().raw();
  config["tie_word_embeddings"] = true;
  const auto tied = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  tied->init_weights(1);
  tied->save_pretrained(folder.path());
  const Tensor ids = at::randint(0, 40, {2, 5}, at::kLong);
  const auto file = open_checkpoint(folder.path());
  TensorMap tensors;
  for (const std::string& name : file->names()) tensors.emplace_back(name, file->tensor(name).clone());
  ASSERT_FALSE(file->has("lm_head.weight"));
  const Tensor embedding = file->tensor("model.embed_tokens.weight");
  const auto with_head = [&](const Tensor& head) {
    TensorMap all = tensors;
    all.emplace_back("lm_head.weight", head);
    save_pretrained_weights(folder.path(), all);
    return AutoModelForCausalLM::from_pretrained(folder.path());
  };
  const Tensor logits = (*tied)({.input_ids = ids}).logits;
  const auto same = with_head(embedding.clone());
  EXPECT_TRUE(same->config().tie_word_embeddings);
  EXPECT_TRUE(at::equal((*same)({.input_ids = ids}).logits, logits));

  const auto other = with_head(embedding * 2);
  EXPECT_FALSE(other->config().tie_word_embeddings);
  EXPECT_TRUE(at::equal((*other)({.input_ids = ids}).logits, logits * 2));
  const TempFolder again;
  other->save_pretrained(again.path());  // with its head, and a config that says so
  EXPECT_TRUE(at::equal((*AutoModelForCausalLM::from_pretrained(again.path()))({.input_ids = ids}).logits, logits * 2));
}

}  // namespace
}  // namespace hotswap
