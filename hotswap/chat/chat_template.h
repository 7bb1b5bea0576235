// A model's chat template: messages to the text that the model was trained on, as transformers' apply_chat_template.
//
//   const auto chat = ChatTemplate::from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct");
//   const std::string text = chat.render({.messages = {{{"role", "user"}, {"content", "Hello"}}},
//                                         .add_generation_prompt = true});
//   const std::vector<int64_t> ids = chat.ids(tokenizer, request);   // without further special tokens
//
// A template is untrusted: it cannot read files or run code, and ends within jinja::Limits (chat/jinja/limits.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/chat/jinja/template.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {

struct ChatRequest {
  nlohmann::ordered_json messages;             // a list of {"role", "content", ...}
  nlohmann::ordered_json tools = nullptr;      // a list of JSON schemas, or null
  nlohmann::ordered_json documents = nullptr;  // a list of objects, or null
  bool add_generation_prompt = false;
  // The last message is continued, not ended: the text stops behind this field of it, "content" as a rule.
  std::optional<std::string> continue_final_message = std::nullopt;
  std::optional<std::string> name = std::nullopt;                       // of a model with several templates
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();  // further ones, over all others
};

struct RenderedChat {
  std::string text;
  std::vector<std::pair<size_t, size_t>> assistant;  // bytes [begin, end) of the {% generation %} blocks at the top
};

class ChatTemplate {
 public:
  // templates: by name, "default" where there is one alone. variables: what every request has, such as bos_token.
  ChatTemplate(std::map<std::string, std::string> templates, nlohmann::ordered_json variables);
  // chat_template.jinja, additional_chat_templates/NAME.jinja, or "chat_template" of tokenizer_config.json; none where
  // the folder has no template.
  static std::optional<ChatTemplate> find_in_folder(const std::filesystem::path& folder);
  static ChatTemplate from_folder(const std::filesystem::path& folder);  // Error where there is none
  // What Tokenizer::from_pretrained takes. Defined in models/chat_template.cpp, where the Hub and GGUF files are known.
  static std::optional<ChatTemplate> find_pretrained(const std::filesystem::path& name,
                                                     const TokenizerOptions& options = {});
  static ChatTemplate from_pretrained(const std::filesystem::path& name,
                                      const TokenizerOptions& options = {});  // Error

  // Error (jinja::TemplateError, Fault::kRaised, with the template's own words, where it refuses the messages).
  RenderedChat render_with_spans(const ChatRequest& request) const;
  std::string render(const ChatRequest& request) const { return render_with_spans(request).text; }
  std::vector<int64_t> ids(const Tokenizer& tokenizer, const ChatRequest& request) const;
  bool mentions(std::string_view text) const;  // whether one of the templates holds it, a role's name for example

 private:
  // Error where nothing was found in `name`.
  static ChatTemplate required(std::optional<ChatTemplate> found, const std::filesystem::path& name);

  struct Named {
    std::string source;
    jinja::Template compiled;
  };
  const Named& choose(const ChatRequest& request) const;

  std::map<std::string, Named> templates_;
  nlohmann::ordered_json variables_;
};

}  // namespace hotswap
