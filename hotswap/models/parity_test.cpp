// Random tiny models against transformers: see parity_oracle.py.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <gtest/gtest.h>

#include <set>

#include "hotswap/base/file.h"
#include "hotswap/base/test_support.h"
#include "hotswap/layers/gated_delta_net.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/weights.h"
#include "hotswap/models/test_files.h"
#include "hotswap/models/test_recurrent_configurations.h"

namespace hotswap {
namespace {

using test_support::TempFolder;

using Object = nlohmann::ordered_json;

// The families whose tests this run of the program has.
std::set<std::string> selected_families() {
  std::set<std::string> families;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    if (std::string(suite.name()) != "Families/Parity") continue;
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (!test.should_run()) continue;
      const std::string name = test.name();  // "StockInBfloat16/llama_plain"
      for (const Configuration& c : parity_configurations()) {
        if (name.substr(name.find('/') + 1) == parity_name(c)) families.insert(c.family);
      }
    }
  }
  return families;
}

// A folder for each family, all made by one process when the first test asks: importing transformers takes seconds.
struct Oracle {
  TempFolder folder;
  uint64_t seed = test_support::test_seed();
  test_support::PythonRun run;
  Oracle() {
    Object cases;
    const std::set<std::string> families = selected_families();
    for (const Configuration& c : parity_configurations()) {
      if (families.count(c.family) == 0) continue;
      Object config = Object::parse(kBase);
      config["model_type"] = c.family;
      config.update(Object::parse(c.differs));
      cases[c.family][c.name] = {{"config", config}, {"time", c.time}};
    }
    test_support::put_file(folder / "cases.json", cases.dump());
    run = test_support::run_script(test_support::source_folder() / "hotswap/models/parity_oracle.py",
                                   cat(folder.path().string(), " ", seed), ".", /*seconds=*/800);
  }
  // What went wrong with this family; empty: nothing.
  std::string error(const std::string& family) const {
    if (run.status != 0) return cat("exit status ", run.status, ": ", run.output);
    const std::filesystem::path file = folder / family / "error.txt";
    return std::filesystem::exists(file) ? read_file(file) : "";
  }
};
const Oracle& oracle() {
  static const Oracle made;
  return made;
}

double relative_max(const Tensor& got, const Tensor& want) {
  return ((got - want).abs().max() / want.abs().max()).item<double>();
}

double relative_l2(const Tensor& got, const Tensor& want) {
  return (at::linalg_vector_norm(got - want) / at::linalg_vector_norm(want).clamp_min(1e-30)).item<double>();
}

Tensor greedy(CausalLM& model, Tensor ids, int64_t length) {
  const at::NoGradGuard no_grad;
  const auto cache = model.make_cache();
  Tensor next = ids;
  while (ids.size(1) < length) {
    const Tensor logits =
        model({.input_ids = next, .cache = cache.get(), .logits_to_keep = 1}).logits;  // [1, 1, vocab]
    next = at::argmax(logits, -1);
    ids = at::cat({ids, next}, 1);
  }
  return ids;
}

class Case {
 public:
  explicit Case(const Configuration& c)
      : folder_(oracle().folder / c.family / c.name), expected_(folder_ / "expected.safetensors") {}
  std::shared_ptr<CausalLM> load(const PretrainedOptions& options) const {
    return AutoModelForCausalLM::from_pretrained(folder_, options);
  }
  Tensor want(const std::string& name) const { return expected_.tensor(name); }
  const SafetensorsFile& expected() const { return expected_; }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  SafetensorsFile expected_;
};

// Layers of the gated delta rule.
bool has_gated_delta(const CausalLM& model) {
  return std::any_cast<GatedDeltaNetOptions>(&model.config().family_options) != nullptr;
}

// One rounding of the weights alone moves gradients of a recurrence by up to 8e-6 in transformers itself, for it decays
// by an exponential of an exponential of a weight; here both sides round all the way.
// With the gated delta rule transformers' own move by 4e-5 with its chunk_size: a norm divides heads that may be near
// 0.
double gradient_tolerance(const CausalLM& model) {
  if (has_gated_delta(model)) return 3e-4;
  return model.config().mamba.hidden_size > 0 ? 1e-4 : 1e-5;
}

// Float32 tolerances: 1e-4 of the largest logit, 1e-5 of a gradient's norm, the loss to 6 digits.
void expect_values(const Case& c, const PretrainedOptions& options) {
  const auto model = c.load(options);
  const Tensor ids = c.want("input_ids"), labels = c.want("labels");
  const auto out = (*model)({.input_ids = ids, .labels = labels, .need_logits = true});
  EXPECT_LE(relative_max(out.logits, c.want("logits")), 1e-4);
  const double loss = c.want("loss").item<double>();
  EXPECT_NEAR(out.loss.item<double>(), loss, 2e-6 * loss);

  // Training without logits: the loss may fuse with the head. PhiMoE draws experts in training.
  if (model->config().model_type != "phimoe") model->train();
  const auto trained = (*model)({.input_ids = ids, .labels = labels});
  EXPECT_NEAR(trained.loss.item<double>(), loss, 2e-6 * loss);
  trained.loss.backward();
  // Under the model's names, or where transformers' module has another form, under the checkpoint's.
  const TensorRules rules = model->family().tensor_rules(model->config());
  const TensorRules modules = model->family().module_names(model->config());
  TensorMap gradients, others;
  model->each_parameter([&](const std::string& name, Tensor& tensor) {
    ASSERT_TRUE(tensor.grad().defined()) << name;
    const std::string before = name_before(rules, name);  // in GLM-4 the names of two norms are exchanged
    const bool renamed = before != name && c.expected().has("grad." + before);
    const std::string module = name_before(modules, name);  // files of Nemotron-H have names that no module has
    if (!renamed && c.expected().has("grad." + name)) {
      gradients.emplace_back(name, tensor.grad());
    } else if (!renamed && c.expected().has("grad." + module)) {
      gradients.emplace_back(module, tensor.grad());
    } else {
      others.emplace_back(name, tensor.grad());
    }
  });
  const TensorMap converted = in_checkpoint_terms(others, rules);
  gradients.insert(gradients.end(), converted.begin(), converted.end());
  for (const auto& [name, gradient] : gradients) {
    EXPECT_LE(relative_l2(gradient, c.want("grad." + name)), gradient_tolerance(*model)) << name;
  }
  size_t wanted = 0;
  for (const auto& name : c.expected().names()) wanted += name.rfind("grad.", 0) == 0 ? 1 : 0;
  EXPECT_EQ(gradients.size(), wanted);
  const auto items = (*model)({.input_ids = ids, .labels = labels, .num_items_in_batch = 7});
  EXPECT_NEAR(items.loss.item<double>(), c.want("loss_items").item<double>(), 1e-4);
  model->eval();

  const at::NoGradGuard no_grad;
  const Tensor mask = c.want("mask");
  const Tensor masked =
      (*model)({.input_ids = ids, .attention_mask = mask, .position_ids = c.want("position_ids")}).logits;
  const Tensor visible = mask.to(at::kBool).unsqueeze(-1);  // padded positions see nothing that means anything
  EXPECT_LE(relative_max(masked * visible, c.want("masked_logits") * visible), 1e-4);
}

// Optimizer states are exchanged with torch by the order of parameters.
void expect_order(const Case& c, const PretrainedOptions& options) {
  const auto model = c.load(options);
  if (model->family().own_parameter_order) return;
  const TensorRules renames = model->family().tensor_rules(model->config());
  const TensorRules modules = model->family().module_names(model->config());
  std::vector<std::string> names;
  model->each_parameter([&](const std::string& name, Tensor&) { names.push_back(name); });
  const auto theirs = Json::read(c.folder() / "parameters.json").as<std::vector<std::string>>();
  ASSERT_EQ(names.size(), theirs.size());
  for (size_t i = 0; i < names.size();
       ++i) {  // a checkpoint's name is the module's there, or was that of an earlier release
    const bool same = names[i] == theirs[i] || name_before(renames, names[i]) == theirs[i] ||
                      name_before(modules, names[i]) == theirs[i];
    EXPECT_TRUE(same) << names[i] << ", " << theirs[i];
  }
}

// Of mixtures of experts: each router's logits, and a loss that asks for even use of the experts. Float32 sums in
// another order: as above.
void expect_auxiliary_loss(const Case& c, const PretrainedOptions& options) {
  if (!c.expected().has("aux_loss")) return;
  const auto model = c.load(options);
  const Tensor ids = c.want("input_ids");
  const auto out = (*model)({.input_ids = ids, .labels = c.want("labels"), .output_router_logits = true});
  const auto expect_number = [&](const Tensor& got, const char* name) {
    const double want = c.want(name).item<double>();
    EXPECT_NEAR(got.item<double>(), want, 2e-6 * want) << name;
  };
  expect_number(out.aux_loss, "aux_loss");
  expect_number(out.loss, "loss_with_aux");
  for (size_t i = 0; i < out.router_logits.size(); ++i) {
    EXPECT_LE(relative_max(out.router_logits[i], c.want(cat("router_logits.", i))), 1e-4);
  }
  EXPECT_FALSE(c.expected().has(cat("router_logits.", out.router_logits.size())));
  out.loss.backward();
  model->each_parameter([&](const std::string& name, Tensor& tensor) {
    const std::string wanted = "aux_grad." + name;
    if (!c.expected().has(wanted)) return;
    EXPECT_LE(relative_l2(tensor.grad(), c.want(wanted)), gradient_tolerance(*model)) << name;
  });
  const at::NoGradGuard no_grad;
  const auto masked = (*model)({.input_ids = ids,
                                .attention_mask = c.want("mask"),
                                .position_ids = c.want("position_ids"),
                                .output_router_logits = true});
  expect_number(masked.aux_loss, "masked_aux_loss");
  EXPECT_FALSE((*model)({.input_ids = ids}).aux_loss.defined());
}

void expect_greedy(const Case& c, const PretrainedOptions& options) {
  const auto model = c.load(options);
  const Tensor want = c.want("greedy");
  EXPECT_TRUE(at::equal(greedy(*model, c.want("prompt"), want.size(1)), want));
}

class Parity : public testing::TestWithParam<Configuration> {
 protected:
  void SetUp() override {
    if (test_support::no_transformers()) GTEST_SKIP() << *test_support::no_transformers();
    const std::string error = oracle().error(GetParam().family);
    ASSERT_TRUE(error.empty()) << error;
    trace_ = std::make_unique<testing::ScopedTrace>(__FILE__, __LINE__, cat("oracle seed ", oracle().seed));
    case_ = std::make_unique<Case>(GetParam());
  }
  void expect_parity(const PretrainedOptions& options) {
    expect_values(*case_, options);
    expect_auxiliary_loss(*case_, options);
    expect_greedy(*case_, options);
  }
  std::unique_ptr<testing::ScopedTrace> trace_;
  std::unique_ptr<Case> case_;
};

TEST_P(Parity, Stock) { expect_parity({}); }
TEST_P(Parity, StockEager) { expect_parity({.attn_implementation = "eager"}); }
TEST_P(Parity, Kernelized) { expect_parity({.use_kernels = true}); }

TEST_P(Parity, ParametersHaveTransformersOrder) { expect_order(*case_, {}); }

// Every operation rounds where transformers' does; what is left is the order of summation inside one product. Some of
// its models give the same logits as float32.
TEST_P(Parity, StockInBfloat16) {
  const at::NoGradGuard no_grad;
  const auto model = case_->load({.dtype = "bfloat16"});
  const Tensor logits = (*model)({.input_ids = case_->want("input_ids")}).logits;
  ASSERT_EQ(logits.scalar_type(), at::kBFloat16);
  const Tensor got = logits.to(at::kFloat), want = case_->want("bf16_logits").to(at::kFloat);
  // Falcon's biases transformers adds in an operation of their own, and masks where torch has a causal form. GPT-2's
  // weights it has transposed, which on CPUs without AVX-512 is another product. Mamba-2's scan and the gated
  // delta rule add up in float32 in another order. One value of thousands then rounds to another one.
  const std::string family = GetParam().family;
  const bool differs =
      family == "falcon" || family == "gpt2" || model->config().mamba.heads > 0 || has_gated_delta(*model);
  const bool same = at::equal(got, want);
  if (differs && !same) {  // no further from float32 than transformers, but for chance
    const Tensor exact = case_->want("logits");
    EXPECT_LE(relative_l2(got, exact), 1.25 * relative_l2(want, exact));
    return;
  }
  EXPECT_TRUE(same) << relative_max(got, want);
}

TEST_P(Parity, SavedModelIsTheSameModel) {
  const auto model = case_->load({});
  const TempFolder folder;
  model->save_pretrained(folder.path());
  const auto again = AutoModelForCausalLM::from_pretrained(folder.path());
  const auto ids = case_->want("input_ids");
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal((*model)({.input_ids = ids}).logits, (*again)({.input_ids = ids}).logits));
  // and has the names that transformers gave it
  EXPECT_EQ(open_checkpoint(folder.path())->names(), open_checkpoint(case_->folder())->names());
}

INSTANTIATE_TEST_SUITE_P(Families, Parity, testing::ValuesIn(parity_configurations()),
                         [](const auto& info) { return parity_name(info.param); });

TEST(Families, EachHasConfigurations) {
  std::set<std::string> configured;
  for (const Configuration& c : parity_configurations()) configured.insert(c.family);
  for (const Family* family : families()) EXPECT_TRUE(configured.contains(family->model_type)) << family->model_type;
}

}  // namespace
}  // namespace hotswap
