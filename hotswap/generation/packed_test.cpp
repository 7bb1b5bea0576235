// Models whose weights stay packed as in their GGUF file: the same numbers as the dequantised ones, by kernels that the
// report names, and no training.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "hotswap/base/error.h"
#include "hotswap/engine/test_gpu.h"
#include "hotswap/generation/generate.h"
#include "hotswap/layers/linear.h"
#include "hotswap/layers/norm.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/formats/test_gguf.h"

namespace hotswap {
namespace {

using test_support::Gguf;
using test_support::message_of;
using test_support::TempFolder;

constexpr int64_t kHidden = 64, kHeads = 4, kKeyHeads = 2, kFfn = 96, kVocab = 40, kLayers = 2;

struct Type {
  const char* name;
  uint32_t id;
  int64_t scales, numbers;  // of a block: halves, bytes
  double range;             // of scales: with larger weights the logits are made of rounding errors
};
constexpr Type kQ4_0 = {"Q4_0", 2, 1, 16, 0.05}, kQ4_1 = {"Q4_1", 3, 2, 16, 0.05},
               kQ8_0 = {"Q8_0", 8, 1, 32, 0.05 / 16};

std::string bytes_of(const Tensor& t) {
  const Tensor bytes = t.contiguous().view(at::kByte);
  return {reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()), static_cast<size_t>(bytes.numel())};
}

// A Llama with weights of any bytes, of one type or of all in turns; one matrix is not packed where `mixed`.
class PackedModel {
 public:
  explicit PackedModel(std::vector<Type> types, bool mixed = false, bool tied = true) : types_(std::move(types)) {
    at::manual_seed(5);
    file_.str("general.architecture", "llama").u32("llama.block_count", kLayers).u32("llama.context_length", 64);
    file_.u32("llama.embedding_length", kHidden).u32("llama.feed_forward_length", kFfn);
    file_.u32("llama.attention.head_count", kHeads).u32("llama.attention.head_count_kv", kKeyHeads);
    file_.u32("llama.vocab_size", kVocab).f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    matrix("token_embd", kVocab, kHidden);
    if (!tied) matrix("output", kVocab, kHidden);
    norm("output_norm");
    const int64_t keys = kHidden * kKeyHeads / kHeads;
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = cat("blk.", i, ".");
      norm(layer + "attn_norm"), norm(layer + "ffn_norm");
      matrix(layer + "attn_q", kHidden, kHidden), matrix(layer + "attn_k", keys, kHidden);
      matrix(layer + "attn_v", keys, kHidden), matrix(layer + "attn_output", kHidden, kHidden);
      matrix(layer + "ffn_gate", kFfn, kHidden), matrix(layer + "ffn_down", kHidden, kFfn);
      if (mixed) {
        file_.tensor(layer + "ffn_up.weight", {kHidden, kFfn}, 0, bytes_of(at::rand({kFfn, kHidden}) * 0.2 - 0.1));
      } else {
        matrix(layer + "ffn_up", kFfn, kHidden);
      }
    }
    test_support::put_file(path(), file_.bytes());
  }
  std::filesystem::path path() const { return folder_ / "m.gguf"; }
  std::filesystem::path folder() const { return folder_.path(); }
  std::shared_ptr<CausalLM> load(const PretrainedOptions& options) const {
    return AutoModelForCausalLM::from_pretrained(path(), options);
  }

 private:
  void matrix(const std::string& name, int64_t rows, int64_t columns) {
    const Type& type = types_[next_++ % types_.size()];
    const int64_t blocks = columns / 32;
    const Tensor scales = ((at::rand({rows, blocks, type.scales}) - 0.5) * type.range).to(at::kHalf).view(at::kByte);
    const Tensor numbers = at::randint(0, 256, {rows, blocks, type.numbers}, at::kByte);
    file_.tensor(name + ".weight", {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)}, type.id,
                 bytes_of(at::cat({scales, numbers}, -1)));
  }
  void norm(const std::string& name) {
    file_.tensor(name + ".weight", {kHidden}, 0, bytes_of(at::rand({kHidden}) + 0.5));
  }
  TempFolder folder_;
  std::vector<Type> types_;
  size_t next_ = 0;
  Gguf file_;
};

const Tensor& prompt() {
  static const Tensor ids = at::randint(0, kVocab, {2, 9}, at::kLong);
  return ids;
}
Tensor logits(CausalLM& model) {
  const at::NoGradGuard no_grad;
  return model({.input_ids = prompt()}).logits;
}

int64_t bound(const CausalLM& model, const std::string& layer) {
  const auto& rows = model.kernel_report().rows;
  return std::count_if(rows.begin(), rows.end(),
                       [&](const KernelRow& row) { return row.layer == layer && row.package.has_value(); });
}
int64_t slots(CausalLM& model, const std::string& layer) {
  int64_t count = 0;
  model.each_slot([&](const std::string&, SlotBase& slot) { count += slot.layer() == layer ? 1 : 0; });
  return count;
}
int64_t bytes(CausalLM& model) {
  int64_t all = 0;
  model.each_tensor([&](const std::string&, Tensor& t) { all += static_cast<int64_t>(t.nbytes()); });
  return all;
}

// Weights are the same float32 numbers; sums of at most 96 terms, and of 64 logits, are made in another order.
void expect_as_dequantised(const PackedModel& file, int64_t packed_layers) {
  const auto packed = file.load({.use_kernels = true});
  const auto plain = file.load({.use_kernels = true, .keep_formats = false});
  EXPECT_EQ(bound(*packed, "PackedLinear"), packed_layers);
  EXPECT_EQ(bound(*packed, "DecoderLayer"), kLayers);
  EXPECT_EQ(slots(*plain, "PackedLinear"), 0);
  const Tensor want = logits(*plain);
  EXPECT_LE((logits(*packed) - want).abs().max().item<double>(), 2e-5 * want.abs().max().item<double>());
  for (const char* cache : {"dynamic", "static"}) {
    const GenerationConfig config{.max_new_tokens = 20, .cache_implementation = cache};
    EXPECT_TRUE(at::equal(packed->generate(prompt(), config), plain->generate(prompt(), config))) << cache;
  }
}

TEST(Packed, GivesWhatItsDequantisedFormGives) {
  for (const Type& type : {kQ4_0, kQ4_1, kQ8_0}) {
    SCOPED_TRACE(type.name);
    const PackedModel file({type});
    expect_as_dequantised(file, 7 * kLayers + 1);
    const auto packed = file.load({.use_kernels = true}), plain = file.load({});
    EXPECT_LT(bytes(*packed), bytes(*plain) * (type.id == kQ8_0.id ? 0.35 : 0.25));
  }
}

TEST(Packed, TypesMayDiffer) {
  expect_as_dequantised(PackedModel({kQ8_0, kQ4_1, kQ4_0}), 7 * kLayers + 1);
  expect_as_dequantised(PackedModel({kQ8_0, kQ4_1, kQ4_0}, /*mixed=*/true), 6 * kLayers + 1);
  expect_as_dequantised(PackedModel({kQ4_1}, /*mixed=*/false, /*tied=*/false), 7 * kLayers + 1);
}

TEST(Packed, InBfloat16TheWeightsKeepTheirBits) {
  const PackedModel file({kQ4_1});
  const auto packed = file.load({.use_kernels = true, .dtype = "bfloat16"});
  EXPECT_EQ(packed->dtype(), at::kBFloat16);
  const Tensor want = logits(*file.load({}));
  // Two layers whose parts are rounded to bfloat16, a dozen roundings each; that of the weights is not among them.
  EXPECT_LE((logits(*packed).to(at::kFloat) - want).norm().item<double>(), 0x1p-6 * want.norm().item<double>());
  EXPECT_EQ(packed->generate(prompt(), {.max_new_tokens = 5}).size(1), 14);
}

// The same on a GPU: with float32 the sums' order differs, with bfloat16 also what is rounded on the way.
using PackedOnAGpu = test_support::OnGpu<>;
TEST_F(PackedOnAGpu, GivesWhatItsDequantisedFormGives) {
  const std::string gpu = test_support::gpu().str();
  for (const Type& type : {kQ4_0, kQ4_1, kQ8_0}) {
    const PackedModel file({type});
    const auto of = [](CausalLM& model) {
      const at::NoGradGuard no_grad;
      return model({.input_ids = prompt().to(model.device())}).logits.to(at::kCPU, at::kFloat);
    };
    const Tensor exact = of(*file.load({.device_map = gpu}));
    for (const auto* dtype : {"float32", "bfloat16"}) {
      SCOPED_TRACE(cat(type.name, " in ", dtype));
      const auto packed = file.load({.use_kernels = true, .dtype = dtype, .device_map = gpu, .keep_formats = true});
      const auto plain = file.load({.use_kernels = true, .dtype = dtype, .device_map = gpu, .keep_formats = false});
      EXPECT_EQ(bound(*packed, "PackedLinear"), 7 * kLayers + 1);
      // No further from float32's than with the rounded weights; the two of float32 differ by the order of sums.
      const double error = (of(*packed) - exact).norm().item<double>(),
                   plains = (of(*plain) - exact).norm().item<double>();
      EXPECT_LE(error, 1.25 * plains + 1e-4 * exact.norm().item<double>());
      if (std::string(dtype) != "float32") continue;  // of which two ways through attention round alike
      const auto ids = [&](const char* cache) {
        const GenerationConfig config{.max_new_tokens = 20, .cache_implementation = cache};
        return packed->generate(prompt().to(packed->device()), config).to(at::kCPU);
      };
      EXPECT_TRUE(at::equal(ids("static"), ids("dynamic")));  // captured, and not
    }
  }
}

TEST(Packed, StockLayersComputeTheSameAndUnkernelizeGoesBackToThem) {
  const PackedModel file({kQ4_1});
  const Tensor want = logits(*file.load({}));
  const auto stock = file.load({.keep_formats = true});
  EXPECT_TRUE(stock->has_encoded_weights());
  EXPECT_EQ(slots(*stock, "PackedLinear"), 7 * kLayers + 1);
  EXPECT_TRUE(at::equal(logits(*stock), want));
  const auto kernels = file.load({.use_kernels = true});
  kernels->unkernelize();
  EXPECT_TRUE(at::equal(logits(*kernels), want));
}

TEST(Packed, WhatHasNoKernelIsDequantised) {
  const PackedModel file({kQ4_1});
  const KernelConfig norms_alone{.kernel_mapping = {{"RMSNorm", KernelChoice("hotswap/norm:RMSNorm")}},
                                 .inherit_mapping = false};
  const auto model = file.load({.kernel_config = norms_alone});
  EXPECT_FALSE(model->has_encoded_weights());
  EXPECT_EQ(slots(*model, "Linear"), 7 * kLayers + 1);
  EXPECT_GT(bound(*model, "RMSNorm"), 0);
  const auto named = file.load({.kernel_config = KernelConfig{.kernel_mapping = {{"Linear", KernelChoice("")}}}});
  EXPECT_FALSE(named->has_encoded_weights());
}

TEST(Packed, IsNotTrainedButUnpacked) {
  const PackedModel file({kQ4_1});
  const auto model = file.load({.use_kernels = true}), plain = file.load({});
  const std::string error = message_of([&] { model->train(); });
  EXPECT_NE(error.find("keep_formats = false"), std::string::npos) << error;
  EXPECT_FALSE(model->training());
  EXPECT_EQ(bound(*model, "PackedLinear"), 7 * kLayers + 1);
  model->unpack();
  EXPECT_EQ(bound(*model, "Linear"), 7 * kLayers + 1);
  EXPECT_TRUE(at::equal(model->parameters()[0], plain->parameters()[0]));
  model->train();
  (*model)({.input_ids = prompt(), .labels = prompt()}).loss.backward();
  for (const Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TEST(Packed, ALossNeedsNoPlainHead) {
  const PackedModel file({kQ8_0});
  const auto model = file.load({.use_kernels = true}), plain = file.load({});
  const at::NoGradGuard no_grad;
  const auto loss = [](CausalLM& m) {
    return m({.input_ids = prompt(), .labels = prompt(), .need_logits = false}).loss.item<double>();
  };
  // Sums of another order: 16 of float32's roundings, 6e-8 each.
  const double want = loss(*plain);
  EXPECT_NEAR(loss(*model), want, 1e-6 * want);
}

TEST(Packed, IsSavedAsItIsDequantised) {
  const PackedModel file({kQ4_0, kQ8_0});
  const auto model = file.load({.use_kernels = true});
  model->save_pretrained(file.folder() / "saved");
  const auto saved = AutoModelForCausalLM::from_pretrained(file.folder() / "saved");
  EXPECT_TRUE(at::equal(logits(*saved), logits(*file.load({}))));
  const std::string error =
      message_of([&] { AutoModelForCausalLM::from_pretrained(file.folder() / "saved", {.keep_formats = true}); });
  EXPECT_NE(error.find("GGUF"), std::string::npos) << error;
}

}  // namespace
}  // namespace hotswap
