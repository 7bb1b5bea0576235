// config.json that is wrong, incomplete or asks for what is not implemented.
#include "hotswap/models/config.h"

#include <gtest/gtest.h>

#include "hotswap/models/auto.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::TempFolder;
using Object = nlohmann::ordered_json;

Object good() {
  return {{"model_type", "llama"},   {"vocab_size", 32},           {"hidden_size", 16},
          {"num_hidden_layers", 2},  {"num_attention_heads", 4},   {"num_key_value_heads", 2},
          {"intermediate_size", 24}, {"rms_norm_eps", 1e-5},       {"max_position_embeddings", 64},
          {"hidden_act", "silu"},    {"tie_word_embeddings", true}};
}

Json json(const Object& object) { return Json::parse(object.dump(), "config.json"); }

TEST(Config, ReadsBothForms) {
  Object old_form = good(), new_form = good();
  old_form["rope_theta"] = 5000.0;
  old_form["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  new_form["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5000.0}};
  for (const auto& object : {old_form, new_form}) {
    const ModelConfig c = read_decoder_config(json(object));
    EXPECT_EQ(c.rope_parameters.type, "linear");
    EXPECT_EQ(c.rope_parameters.theta, 5000.0);
    EXPECT_EQ(c.rope_parameters.factor, 2.0);
    EXPECT_EQ(c.head_dim, 4);
    EXPECT_TRUE(c.tie_word_embeddings);
  }
  Object more = good();
  more["eos_token_id"] = {2, 3};
  more["head_dim"] = 10;
  more["num_key_value_heads"] = nullptr;
  more["rope_scaling"] = nullptr;
  const ModelConfig c = read_decoder_config(json(more));
  EXPECT_EQ(c.eos_token_id, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(c.head_dim, 10);
  EXPECT_EQ(c.num_key_value_heads, 4);
  EXPECT_EQ(c.rope_parameters.type, "default");
}

struct Bad {
  const char* key;
  Object value;      // discarded: the key is removed
  const char* told;  // what the Error's message must hold
};

TEST(Config, HostileOnesAreRefusedByName) {
  const Object removed = Object(Object::value_t::discarded);
  const std::vector<Bad> all = {
      {"model_type", removed, "model_type"},
      {"model_type", "rwkv", "mistral, mixtral, nemotron_h, olmo"},
      {"model_type", 7, "model_type"},
      {"vocab_size", removed, "vocab_size"},
      {"vocab_size", 0, "vocab_size"},
      {"vocab_size", -4, "vocab_size"},
      {"vocab_size", 1e30, "vocab_size"},
      {"vocab_size", "32", "vocab_size"},
      {"hidden_size", 4611686018427387904, "hidden_size"},
      {"hidden_size", 18, "head_dim"},
      {"num_hidden_layers", 0, "num_hidden_layers"},
      {"num_hidden_layers", 2000000000, "num_hidden_layers"},
      {"num_key_value_heads", 3, "num_key_value_heads"},
      {"head_dim", 5, "even"},
      {"rms_norm_eps", removed, "rms_norm_eps"},
      {"rms_norm_eps", -1e-5, "rms_norm_eps"},
      {"hidden_act", "relu7", "relu7"},
      {"max_position_embeddings", removed, "max_position_embeddings"},
      {"rope_theta", 0.0, "rope_theta"},
      {"rope_scaling", "linear", "rope_scaling"},
      {"rope_scaling", {{"rope_type", "spiral"}, {"factor", 2.0}}, "spiral"},
      {"rope_scaling", {{"rope_type", "linear"}}, "factor"},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", "two"}}, "factor"},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 2.0}}, "low_freq_factor"},
      {"rope_scaling",
       {{"rope_type", "llama3"}, {"factor", 2.0}, {"low_freq_factor", 4.0}, {"high_freq_factor", 1.0}},
       "high_freq_factor"},
      {"rope_scaling",
       {{"rope_type", "longrope"}, {"factor", 2.0}, {"short_factor", {1.0}}, {"long_factor", {1.0, 2.0}}},
       "short_factor"},
      {"rope_parameters", {{"rope_type", "yarn"}, {"factor", 2.0}, {"partial_rotary_factor", 0.5}}, "partial_rotary"},
      {"partial_rotary_factor", 0.5, "partial_rotary_factor"},
      {"use_sliding_window", true, "use_sliding_window"},
      {"is_causal", false, "is_causal"},
      {"layer_types", {"full_attention", "sliding_attention"}, "sliding_attention"},
      {"quantization_config", {{"bits", 4}}, "quantization_config"},
      {"attention_dropout", 1.5, "attention_dropout"},
      {"eos_token_id", "end", "eos_token_id"},
  };
  for (const Bad& bad : all) {
    Object object = good();
    if (bad.value.is_discarded()) {
      object.erase(bad.key);
    } else {
      object[bad.key] = bad.value;
    }
    const std::string message = test_support::message_of([&] { AutoModelForCausalLM::from_config(json(object)); });
    EXPECT_NE(message.find(bad.told), std::string::npos) << bad.key << ": " << message;
    EXPECT_NE(message.find("config.json"), std::string::npos) << bad.key << ": " << message;
  }
}

TEST(Config, Qwen3NeverGuessesItsHeads) {
  Object object = good();
  object["model_type"] = "qwen3";
  EXPECT_EQ(AutoModelForCausalLM::from_config(json(object))->config().head_dim, 128);  // the family's default
  object.erase("num_key_value_heads");
  EXPECT_NE(
      test_support::message_of([&] { AutoModelForCausalLM::from_config(json(object)); }).find("num_key_value_heads"),
      std::string::npos);
}

TEST(Config, WhichLayersSlide) {
  const auto config_of = [](const char* type, const Object& more) {
    Object object = good();
    object["model_type"] = type;
    object.update(more);
    return AutoModelForCausalLM::from_config(json(object))->config();
  };
  const auto windows = [&](const char* type, const Object& more) {
    const ModelConfig c = config_of(type, more);
    return std::vector<int64_t>{c.window_of(0), c.window_of(1)};
  };
  using Two = std::vector<int64_t>;
  EXPECT_EQ(windows("mistral", {{"sliding_window", 7}}), (Two{7, 7}));
  EXPECT_EQ(windows("mistral", {{"sliding_window", nullptr}}), (Two{0, 0}));
  EXPECT_EQ(windows("mistral", Object::object()), (Two{4096, 4096})) << "the class's default";
  EXPECT_EQ(windows("qwen2", {{"sliding_window", 7}}), (Two{0, 0})) << "not in use";
  EXPECT_EQ(windows("qwen2", {{"sliding_window", 7}, {"use_sliding_window", true}, {"max_window_layers", 1}}),
            (Two{0, 7}));
  EXPECT_EQ(windows("qwen3", {{"sliding_window", 7},
                              {"use_sliding_window", true},
                              {"layer_types", {"sliding_attention", "full_attention"}}}),
            (Two{7, 0}));
  const auto refused = [&](const char* type, const Object& more) {
    return test_support::message_of([&] { config_of(type, more); });
  };
  test_support::expect_has(refused("qwen2", {{"layer_types", {"sliding_attention", "full_attention"}}}),
                           {"no sliding_window is in use", "sliding_attention"});
  test_support::expect_has(refused("qwen2", {{"layer_types", {"full_attention"}}}), {"2 layer_types", "got 1"});
  test_support::expect_has(refused("qwen2", {{"layer_types", {"full_attention", "chunked_attention"}}}),
                           {"chunked_attention"});
  test_support::expect_has(
      refused("mistral", {{"sliding_window", 7}, {"layer_types", {"sliding_attention", "full_attention"}}}),
      {"layers of one type", "sliding_attention"});
  test_support::expect_has(refused("mistral", {{"sliding_window", 0}}), {"sliding_window"});
}

TEST(Config, DtypesByName) {
  EXPECT_EQ(dtype_from("torch.bfloat16", "test"), at::kBFloat16);
  EXPECT_EQ(dtype_from("float16", "test"), at::kHalf);
  EXPECT_THROW(dtype_from("int8", "test"), Error);
  Object object = good();
  EXPECT_FALSE(config_dtype(json(object)));
  object["torch_dtype"] = "bfloat16";
  EXPECT_EQ(config_dtype(json(object)), at::kBFloat16);
}

TEST(Auto, FoldersThatAreNoModel) {
  const TempFolder folder;
  const auto load = [&](const PretrainedOptions& options = {}) {
    return test_support::message_of([&] { AutoModelForCausalLM::from_pretrained(folder.path(), options); });
  };
  EXPECT_NE(load().find("config.json"), std::string::npos);
  write_file(folder / "config.json", "{");
  EXPECT_NE(load().find("config.json"), std::string::npos);
  write_file(folder / "config.json", good().dump());
  EXPECT_NE(load().find("model.safetensors"), std::string::npos);
  const auto model = AutoModelForCausalLM::from_config(json(good()));
  model->init_weights(1);
  model->save_pretrained(folder.path());
  EXPECT_EQ(load(), "no error");
  EXPECT_NE(load({.attn_implementation = "flash"}).find("flash"), std::string::npos);
  {
    const test_support::TempFolder cache;
    const test_support::ScopedEnv offline("HF_HUB_OFFLINE", "1"), cached("HF_HUB_CACHE", cache.path().string());
    const test_support::ScopedEnv kernels("KERNELS_CACHE", std::nullopt);
    EXPECT_NE(load({.attn_implementation = "acme/attn@v2"}).find("acme/attn"), std::string::npos);
    EXPECT_NE(test_support::message_of([&] { model->set_attn_implementation("acme/attn"); }).find("acme/attn"),
              std::string::npos);
    EXPECT_EQ(model->attn_implementation(), "sdpa") << "as it was";
  }
  EXPECT_NE(load({.dtype = "int4"}).find("int4"), std::string::npos);
  EXPECT_NE(load({.gguf_file = "none.gguf"}).find("none.gguf"), std::string::npos);
  Object wider = good();
  wider["intermediate_size"] = 25;
  write_file(folder / "config.json", wider.dump());
  EXPECT_NE(load().find("mlp.gate_proj"), std::string::npos);
  write_file(folder / "config.json", good().dump());
  write_file(folder / "generation_config.json", R"({"num_beams": "4"})");
  EXPECT_NE(load().find("num_beams"), std::string::npos);
}

TEST(Auto, FreshWeightsAreDrawnFromTheSeed) {
  const auto a = AutoModelForCausalLM::from_config(json(good())), b = AutoModelForCausalLM::from_config(json(good()));
  a->init_weights(7);
  b->init_weights(7);
  const auto pa = a->parameters(), pb = b->parameters();
  for (size_t i = 0; i < pa.size(); ++i) EXPECT_TRUE(pa[i].equal(pb[i]));
  b->init_weights(8);
  EXPECT_FALSE(pa[0].equal(b->parameters()[0]));
  EXPECT_NEAR(pa[0].std().item<double>(), 0.02, 0.005);
}

}  // namespace
}  // namespace hotswap
