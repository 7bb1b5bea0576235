// Random tiny models against transformers: see parity_oracle.py.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <gtest/gtest.h>

#include "hotswap/base/test_support.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/formats/weights.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::TempFolder;

// The oracle's folder, made once: importing transformers takes seconds.
struct Oracle {
  TempFolder folder;
  uint64_t seed = test_support::test_seed();
  int status = 0;
  std::string output;
  Oracle() {
    const std::string command = cat("env -u LD_PRELOAD timeout 280 ", HOTSWAP_TEST_PYTHON, " ", HOTSWAP_SOURCE_DIR,
                                    "/hotswap/models/parity_oracle.py ", folder.path().string(), " ", seed, " 2>&1");
    FILE* pipe = ::popen(command.c_str(), "r");
    std::array<char, 4096> buffer;
    while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) output.append(buffer.data(), n);
    status = ::pclose(pipe);
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
  KvCache cache;
  Tensor next = ids;
  while (ids.size(1) < length) {
    const Tensor logits = model({.input_ids = next, .cache = &cache, .logits_to_keep = 1}).logits;  // [1, 1, vocab]
    next = at::argmax(logits, -1);
    ids = at::cat({ids, next}, 1);
  }
  return ids;
}

class Case {
 public:
  explicit Case(const std::string& name)
      : folder_(oracle().folder / name), expected_(folder_ / "expected.safetensors") {}
  std::shared_ptr<CausalLM> load(const PretrainedOptions& options) const {
    return AutoModelForCausalLM::from_pretrained(folder_, options);
  }
  Tensor want(const std::string& name) const { return expected_.tensor(name); }
  const SafetensorsFile& expected() const { return expected_; }

 private:
  std::filesystem::path folder_;
  SafetensorsFile expected_;
};

// Float32 tolerances: 1e-4 of the largest logit, 1e-5 of a gradient's norm, the loss to 6 digits.
void expect_values(const Case& c, const PretrainedOptions& options) {
  const auto model = c.load(options);
  const Tensor ids = c.want("input_ids"), labels = c.want("labels");
  const auto out = (*model)({.input_ids = ids, .labels = labels, .need_logits = true});
  EXPECT_LE(relative_max(out.logits, c.want("logits")), 1e-4);
  const double loss = c.want("loss").item<double>();
  EXPECT_NEAR(out.loss.item<double>(), loss, 2e-6 * loss);

  // Training without logits: the loss may fuse with the head.
  model->train();
  const auto trained = (*model)({.input_ids = ids, .labels = labels});
  EXPECT_NEAR(trained.loss.item<double>(), loss, 2e-6 * loss);
  trained.loss.backward();
  int64_t compared = 0;
  model->each_tensor([&](const std::string& name, Tensor& tensor) {
    ++compared;
    ASSERT_TRUE(tensor.grad().defined()) << name;
    EXPECT_LE(relative_l2(tensor.grad(), c.want("grad." + name)), 1e-5) << name;
  });
  int64_t gradients = 0;
  for (const auto& name : c.expected().names()) gradients += name.rfind("grad.", 0) == 0 ? 1 : 0;
  EXPECT_EQ(compared, gradients);
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

void expect_greedy(const Case& c, const PretrainedOptions& options) {
  const auto model = c.load(options);
  const Tensor want = c.want("greedy");
  EXPECT_TRUE(at::equal(greedy(*model, c.want("prompt"), want.size(1)), want));
}

class Parity : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(oracle().status, 0) << oracle().output;
    for (const Json& name : Json::read(oracle().folder / "cases.json").elements()) {
      cases_.push_back(name.as<std::string>());
    }
    ASSERT_GE(cases_.size(), 12U);
  }
  template <typename Check>
  void each(const Check& check) {
    for (const std::string& name : cases_) {
      SCOPED_TRACE(cat(name, ", oracle seed ", oracle().seed));
      check(Case(name));
    }
  }
  std::vector<std::string> cases_;
};

TEST_F(Parity, Stock) {
  each([](const Case& c) {
    expect_values(c, {});
    expect_greedy(c, {});
  });
}

TEST_F(Parity, StockEager) {
  each([](const Case& c) {
    expect_values(c, {.attn_implementation = "eager"});
    expect_greedy(c, {.attn_implementation = "eager"});
  });
}

TEST_F(Parity, Kernelized) {
  each([](const Case& c) {
    expect_values(c, {.use_kernels = true});
    expect_greedy(c, {.use_kernels = true});
  });
}

// Every operation rounds where transformers' does; what is left is the order of summation inside one product.
TEST_F(Parity, StockInBfloat16) {
  each([](const Case& c) {
    const at::NoGradGuard no_grad;
    const auto model = c.load({.dtype = "bfloat16"});
    const Tensor logits = (*model)({.input_ids = c.want("input_ids")}).logits;
    ASSERT_EQ(logits.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(logits, c.want("bf16_logits")))
        << relative_max(logits.to(at::kFloat), c.want("bf16_logits").to(at::kFloat));
  });
}

TEST_F(Parity, SavedModelIsTheSameModel) {
  const Case c("llama_mha_tied");
  const auto model = c.load({});
  const TempFolder folder;
  model->save_pretrained(folder.path());
  const auto again = AutoModelForCausalLM::from_pretrained(folder.path());
  const auto ids = c.want("input_ids");
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal((*model)({.input_ids = ids}).logits, (*again)({.input_ids = ids}).logits));
}

}  // namespace
}  // namespace hotswap
