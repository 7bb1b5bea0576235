// Models of every family that is written, in every format: read again by this host, by transformers and by llama.cpp's
// Python package (quantize_models.py, quantize_readers.py).
#include "hotswap/models/quantize/quantize.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "hotswap/models/auto.h"
#include "hotswap/models/formats/gguf.h"
#include "hotswap/models/quantize/quantize_impl.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::made_data;
using test_support::message_of;
using test_support::put_file;
using test_support::TempFolder;

const fs::path& models() { return made_data("models/quantize/quantize_models.py"); }
constexpr const char* kFamilies[] = {"llama", "llama_odd", "qwen2", "qwen3"};

Tensor logits_of_folder(const fs::path& model, const Tensor& ids) {
  const at::NoGradGuard no_grad;
  return (*AutoModelForCausalLM::from_pretrained(model, {.dtype = "float32"}))({.input_ids = ids}).logits;
}

double norm_of(const Tensor& x) { return x.to(at::kDouble).norm().item<double>(); }

bool is_gguf(const std::string& format) { return format == "q8_0" || format == "q4_k_m"; }

// Every family in every format that fits it, made once.
struct WrittenFolders {
  TempFolder folder;
  std::map<std::string, QuantizeReport> reports;  // by name: "llama.q8_0.gguf", "llama.fp8_block"
  std::string failure;                            // of the readers' script
  static std::string name(const std::string& family, const std::string& format) {
    return family + "-" + format + (is_gguf(format) ? ".gguf" : "");
  }
};

const WrittenFolders& written() {
  static const auto all = [] {
    auto made = std::make_unique<WrittenFolders>();
    std::string arguments = made->folder.path().string();
    for (const char* family : kFamilies) {
      for (const QuantizeFormat& format : quantize_formats()) {
        if (std::string(family) == "llama_odd" && !format.is_gguf) continue;  // no multiple of 128
        const std::string name = WrittenFolders::name(family, format.name);
        made->reports[name] = quantize(models() / family, made->folder / name, {.format = format.name});
        // transformers reads no rotary divisors of a GGUF file.
        if (std::string(family) != "llama_odd") arguments += " " + (made->folder / name).string();
      }
    }
    save_safetensors(made->folder / "input_ids.safetensors",
                     {{"input_ids", SafetensorsFile(models() / "llama/plain.safetensors").tensor("input_ids")}});
    const auto script = test_support::source_folder() / "hotswap/models/quantize/quantize_readers.py";
    const auto run = test_support::run_script(script, arguments);
    if (run.status != 0) made->failure = run.output;
    return made;
  }();
  return *all;
}

class QuantizedModel : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  void SetUp() override {
    if (const auto why = test_support::lacking_imports("compressed_tensors, gguf, transformers")) GTEST_SKIP() << *why;
    std::tie(family_, format_) = GetParam();
    name_ = WrittenFolders::name(family_, format_);
  }
  std::string family_, format_, name_;
};

// Of the logits, and of the weights of one tensor: relative RMS. Measured: logits .015, .17, .057 and .21 at most, and
// weights .0054, .071, .027 and .098. A wrong order of rows or of codes is beyond 1.
struct ErrorLimits {
  double logits, weights;
};
const std::map<std::string, ErrorLimits> kLimits = {
    {"q8_0", {.03, .008}}, {"q4_k_m", {.3, .09}}, {"fp8_block", {.1, .04}}, {"int4_g128", {.35, .13}}};

TEST_P(QuantizedModel, ComputesNearlyWhatThePlainOneDoes) {
  const SafetensorsFile plain(models() / family_ / "plain.safetensors");
  const Tensor ids = plain.tensor("input_ids"), exact = plain.tensor("logits");
  const Tensor got = logits_of_folder(written().folder / name_, ids);
  ASSERT_EQ(got.sizes(), exact.sizes());
  const double error = norm_of(got - exact) / norm_of(exact);
  EXPECT_LT(error, kLimits.at(format_).logits);
  EXPECT_GT(error, 1e-5);  // something was quantised
  for (const QuantizedTensor& tensor : written().reports.at(name_).tensors) {
    EXPECT_LT(tensor.relative_rms(), kLimits.at(format_).weights) << tensor.name;
    EXPECT_EQ(tensor.relative_rms() > 1e-4, tensor.quantized) << tensor.name;
  }
}

TEST_P(QuantizedModel, IsReadAlikeByItsOwnReader) {
  ASSERT_TRUE(written().failure.empty()) << written().failure;
  const SafetensorsFile theirs(written().folder / (name_ + ".safetensors"));
  const Tensor ids = SafetensorsFile(written().folder / "input_ids.safetensors").tensor("input_ids");
  const Tensor expected = theirs.tensor("logits"), got = logits_of_folder(written().folder / name_, ids);
  // The same weights in float32, and the same operators: 0 where it was measured.
  EXPECT_LT((got - expected).abs().max().item<double>(), 1e-5 * expected.abs().max().item<double>());
  if (!is_gguf(format_)) return;
  const GgufFile file(written().folder / name_);
  for (const std::string& tensor : file.names()) {
    EXPECT_TRUE(file.tensor(tensor).equal(theirs.tensor(tensor))) << tensor;
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedModel,
                         testing::Combine(testing::Values("llama", "qwen2", "qwen3"),
                                          testing::Values("q8_0", "q4_k_m", "fp8_block", "int4_g128")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                         });

// Rows of 96 and of 172 weights, and Llama 3's rotary divisors.
TEST(Quantize, RowsThatNoBlockFitsFallBackAsInLlamaCpp) {
  const SafetensorsFile plain(models() / "llama_odd/plain.safetensors");
  const Tensor exact = plain.tensor("logits");
  for (const char* format : {"q8_0", "q4_k_m"}) {
    const std::string name = WrittenFolders::name("llama_odd", format);
    const Tensor got = logits_of_folder(written().folder / name, plain.tensor("input_ids"));
    EXPECT_LT(norm_of(got - exact) / norm_of(exact), kLimits.at(format).logits) << format;
    std::map<std::string, std::string> types;
    for (const QuantizedTensor& tensor : written().reports.at(name).tensors) types[tensor.name] = tensor.type;
    EXPECT_EQ(types["model.layers.1.mlp.down_proj.weight"], "F16");
    EXPECT_EQ(types["model.layers.0.self_attn.q_proj.weight"], std::string(format) == "q8_0" ? "Q8_0" : "Q5_0");
    EXPECT_EQ(types["model.layers.0.self_attn.q_proj.bias"], "F32");
    EXPECT_EQ(written().reports.at(name).left_plain.size(), 3U);  // a down_proj a layer
  }
  const std::string refusal = message_of([] {
    const TempFolder folder;
    quantize(models() / "llama_odd", folder / "x", {.format = "fp8_block"});
  });
  EXPECT_NE(refusal.find("multiples of 128, for fp8_block"), std::string::npos) << refusal;
}

// Those of Gemma 3 270M's published Q4_K_M: 18 layers, rows of 640 and 2048.
TEST(Quantize, Q4KMMixesTypesAsLlamaCppDoes) {
  std::map<std::string, int> counts;
  const auto count = [&](const std::string& tensor, const std::vector<int64_t>& shape) {
    ++counts[quantizing::gguf_type_of("q4_k_m", tensor, shape, {.layers = 18, .has_head = false})];
  };
  count("token_embd.weight", {262144, 640});
  for (int layer = 0; layer < 18; ++layer) {
    const std::string block = cat("blk.", layer, ".");
    for (const char* rows_of_640 : {"attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"})
      count(block + rows_of_640 + ".weight", {1024, 640});
    count(block + "attn_output.weight", {640, 1024});
    count(block + "ffn_down.weight", {640, 2048});
  }
  EXPECT_EQ(counts, (std::map<std::string, int>{{"Q5_0", 81}, {"Q4_K", 27}, {"Q8_0", 10}, {"Q6_K", 9}}));
  const quantizing::MixFacts wide{.layers = 80, .has_head = true, .shares_values_of_8 = true};
  EXPECT_EQ(quantizing::gguf_type_of("q4_k_m", "output.weight", {9, 8192}, wide), "Q6_K");
  EXPECT_EQ(quantizing::gguf_type_of("q4_k_m", "token_embd.weight", {9, 8192}, wide), "Q4_K");
  EXPECT_EQ(quantizing::gguf_type_of("q4_k_m", "blk.10.attn_v.weight", {9, 8192}, wide), "Q5_K");
  EXPECT_EQ(quantizing::gguf_type_of("q4_k_m", "blk.10.attn_v.weight", {9, 8000}, wide), "Q5_1");
  EXPECT_EQ(quantizing::gguf_type_of("q4_k_m", "blk.70.attn_v.weight", {9, 8192}, wide), "Q6_K");
}

// A copy of the tiny Llama that a test may spoil.
struct Copy {
  explicit Copy(const char* family = "llama") { fs::copy(models() / family, folder / "model"); }
  fs::path model() const { return folder / "model"; }
  fs::path out(const char* name = "x.gguf") const { return folder / name; }
  void set(const char* key, const nlohmann::ordered_json& value) const {
    auto config = nlohmann::ordered_json::parse(read_file(model() / "config.json"));
    config[key] = value;
    put_file(model() / "config.json", config.dump());
  }
  std::string refusal(const char* format, const char* name = "x.gguf", bool replace = false) const {
    return message_of([&] { quantize(model(), out(name), {.format = format, .replace = replace}); });
  }
  std::set<std::string> left() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.path())) names.insert(entry.path().filename().string());
    return names;
  }
  TempFolder folder;
};

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Quantize, RefusesWhatItCannotWriteAndLeavesNothing) {
  const Copy copy;
  expect_has(copy.refusal("q3"), "a format among q8_0, q4_k_m, fp8_block, int4_g128; got 'q3'");
  expect_has(copy.refusal("q8_0", "x"), "ends in .gguf for q8_0; got");
  expect_has(copy.refusal("fp8_block"), "a folder, without .gguf, for fp8_block; got");
  expect_has(copy.refusal("q8_0", "none/x.gguf"), "a folder for x.gguf; got none at");
  copy.set("rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2.0}, {"rope_theta", 10000.0}});
  expect_has(copy.refusal("q8_0"), "default, linear, yarn or llama3; got 'dynamic'");
  copy.set("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}});
  copy.set("hidden_act", "gelu");  // which GGUF's keys of Llama have no word for
  expect_has(copy.refusal("q8_0"), "states whole; got hidden_act gelu");
  copy.set("hidden_act", "silu");
  copy.set("quantization_config", {{"quant_method", "fp8"}});
  expect_has(copy.refusal("q8_0"), "plain weights to quantise; got quantization_config");
  copy.set("quantization_config", nullptr);
  copy.set("model_type", "mistral");
  expect_has(copy.refusal("q8_0"), "written quantised: llama, qwen2, qwen3; got \"mistral\"");
  EXPECT_EQ(copy.left(), (std::set<std::string>{"model"}));
}

TEST(Quantize, ATensorWithoutMeaningEndsItHalfWay) {
  for (const char* format : {"q8_0", "q4_k_m", "fp8_block", "int4_g128"}) {
    for (const double value : {double{INFINITY}, 1e30}) {
      if (value == 1e30 && (std::string(format) == "fp8_block" || std::string(format) == "int4_g128")) continue;
      const Copy copy;
      const SafetensorsFile file(copy.model() / "model.safetensors");
      TensorMap tensors;
      for (const std::string& name : file.names()) {
        tensors.emplace_back(name, file.tensor(name).clone());
        if (name == "model.layers.2.mlp.up_proj.weight") tensors.back().second[3][4] = value;
      }
      save_safetensors(copy.folder / "other", tensors, {{"format", "pt"}});
      fs::rename(copy.folder / "other", copy.model() / "model.safetensors");
      expect_has(copy.refusal(format, is_gguf(format) ? "x.gguf" : "x"),
                 value == 1e30 ? "within the range of Q" : "finite elements in the tensor");
      EXPECT_EQ(copy.left(), (std::set<std::string>{"model"})) << format;
    }
  }
}

TEST(Quantize, ReplacesWhereItIsAskedTo) {
  const Copy copy;
  for (const char* format : {"q8_0", "fp8_block"}) {
    const char* name = is_gguf(format) ? "x.gguf" : "x";
    ASSERT_EQ(copy.refusal(format, name), "no error");
    expect_has(copy.refusal(format, name), "a new name for the result; got");
    ASSERT_EQ(copy.refusal(format, name, /*replace=*/true), "no error");
  }
  expect_has(copy.refusal("fp8_block", "model", true), "without the model that is read");
  expect_has(copy.refusal("int4_g128", ".", true), "got");
  EXPECT_EQ(copy.left(), (std::set<std::string>{"model", "x", "x.gguf"}));
  EXPECT_TRUE(fs::exists(copy.model() / "model.safetensors"));
  EXPECT_TRUE(fs::exists(copy.out("x") / "tokenizer.json"));
}

}  // namespace
}  // namespace hotswap
