// For tests: a server of a tiny model whose tokens are bytes, and a client of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <nlohmann/json.hpp>

#include "hotswap/base/test_support.h"
#include "hotswap/engine/test_families.h"
#include "hotswap/serve/server.h"
#include "hotswap/tokenizers/byte_level.h"

namespace hotswap::test_support {

using OutJson = nlohmann::ordered_json;

inline constexpr int64_t kEnd = 256;  // <|end|>, the token that ends a text
inline constexpr int64_t kLength = 256;

// 256 bytes, then the special tokens.
inline Tokenizer byte_tokenizer() {
  OutJson vocabulary = OutJson::object();
  for (size_t byte = 0; byte < 256; ++byte) vocabulary[tokenizers::byte_characters()[byte]] = byte;
  OutJson added = OutJson::array();
  for (const char* token : {"<|end|>", "<|user|>", "<|assistant|>", "<|system|>"}) {
    added.push_back({{"id", kEnd + static_cast<int64_t>(added.size())},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const OutJson byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const OutJson file = {{"version", "1.0"},
                        {"truncation", nullptr},
                        {"padding", nullptr},
                        {"added_tokens", added},
                        {"normalizer", nullptr},
                        {"pre_tokenizer", byte_level},
                        {"post_processor", nullptr},
                        {"decoder", byte_level},
                        {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", OutJson::array()}}}};
  return Tokenizer::from_json(file.dump(), "tokenizer.json");
}

inline std::shared_ptr<CausalLM> byte_model() {
  const OutJson config = {{"model_type", "llama"},
                          {"vocab_size", 260},
                          {"hidden_size", 32},
                          {"num_hidden_layers", 2},
                          {"num_attention_heads", 4},
                          {"num_key_value_heads", 2},
                          {"intermediate_size", 48},
                          {"rms_norm_eps", 1e-5},
                          {"initializer_range", 0.4},
                          {"max_position_embeddings", kLength},
                          {"tie_word_embeddings", false},
                          {"eos_token_id", kEnd}};
  auto model = AutoModelForCausalLM::from_config(Json::parse(config.dump(), "config.json"));
  model->init_weights(5, at::kFloat, at::kCPU);
  // Greedy texts are printable: all other tokens have a logit of 0.
  const c10::InferenceMode inference;
  model->each_tensor([](const std::string& name, Tensor& tensor) {
    if (!name.ends_with("lm_head.weight")) return;
    tensor.narrow(0, 0, ' ').zero_();
    tensor.narrow(0, '~' + 1, tensor.size(0) - '~' - 1).zero_();
  });
  model->eval();
  model->set_generation_config({.eos_token_id = std::vector<int64_t>{kEnd}});
  return model;
}

inline ChatTemplate byte_template() {
  return ChatTemplate(
      {{"default",
        "{% for m in messages %}{% if m.role == 'refused' %}{{ raise_exception('no such role') }}{% endif %}"
        "<|{{ m.role }}|>{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}"
        "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"}},
      OutJson::object());
}

inline serve::ServedModel byte_served(std::optional<ChatTemplate> chat_template = byte_template()) {
  return {.model = byte_model(),
          .tokenizer = byte_tokenizer(),
          .chat_template = std::move(chat_template),
          .names = {"tiny", "alias"},
          .max_model_len = kLength};
}

class Served : public testing::Test {
 protected:
  void SetUp() override { start({}); }
  void start(const serve::ServerOptions& options, std::optional<ChatTemplate> chat_template = byte_template()) {
    server = std::make_unique<serve::Server>(byte_served(std::move(chat_template)), options);
    server->start();
  }
  httplib::Client client() const {
    httplib::Client out(server->url());
    out.set_read_timeout(60);
    return out;
  }
  static std::string text_of(const OutJson& json) {
    return json.dump(-1, ' ', false, OutJson::error_handler_t::replace);
  }
  // The answer's JSON, or that of an error; `status` expected.
  OutJson post(const std::string& path, const OutJson& body, int status = 200) const {
    auto http = client();
    const auto result = http.Post(path, text_of(body), "application/json");
    EXPECT_TRUE(result) << path;
    if (!result) return {};
    EXPECT_EQ(result->status, status) << path << " " << text_of(body) << "\n" << result->body;
    return OutJson::parse(result->body, nullptr, false);
  }
  OutJson chat(OutJson more, int status = 200) const {
    OutJson body = {{"model", "tiny"}, {"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
    if (!more.is_null()) body.update(more);
    return post("/v1/chat/completions", body, status);
  }
  OutJson complete(const std::string& prompt, const OutJson& more = OutJson::object(), int status = 200) const {
    OutJson body = {{"model", "tiny"}, {"prompt", prompt}, {"temperature", 0}};
    if (!more.is_null()) body.update(more);
    return post("/v1/completions", body, status);
  }
  // The events of a stream, [DONE] left out; whether it came: `done`.
  std::vector<OutJson> events(const std::string& path, const OutJson& body, bool* done = nullptr) const {
    auto http = client();
    const auto result = http.Post(path, text_of(body), "application/json");
    std::vector<OutJson> all;
    if (!result) return all;
    EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream") << result->body;
    for (size_t begin = 0, end; (end = result->body.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
      const std::string event = result->body.substr(begin, end - begin);
      if (event == "data: [DONE]" && done != nullptr) *done = true;
      if (event.starts_with("data: {")) all.push_back(OutJson::parse(event.substr(6)));
    }
    return all;
  }
  // Waits until nothing runs, and expects that nothing is kept.
  void expect_nothing_left() const {
    for (int i = 0; i < 500 && !(server->engine().idle() && pages() == 0); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(pages(), 0);
    EXPECT_TRUE(server->engine().idle());
  }
  int64_t pages() const { return server->engine().gauges().kv_pages_in_use; }

  std::unique_ptr<serve::Server> server;
};

}  // namespace hotswap::test_support
