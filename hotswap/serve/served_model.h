// A model as requests see it: its weights, tokenizer, chat template and defaults.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/chat/chat_template.h"
#include "hotswap/models/causal_lm.h"
#include "hotswap/models/config.h"
#include "hotswap/serve/grammar_compiler.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap::serve {

// A LoRA adapter that requests name as a model of its own.
struct ServedAdapter {
  std::string name;
  std::string root;  // where it came from
};

struct ServedModel {
  // What a request's `model` names.
  struct Named {
    std::string name;
    int64_t adapter = -1;  // its index in `adapters`; -1: the base model
  };
  std::shared_ptr<CausalLM> model;
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat_template;
  std::vector<std::string> names;                       // of the base model; a request without one gets the first
  int64_t max_model_len = 0;                            // of a prompt and its new tokens
  std::shared_ptr<GrammarCompiler> grammars = nullptr;  // made by the server
  std::vector<ServedAdapter> adapters = {};             // the model's row_adapters(), in their order

  int64_t vocab() const { return model->config().vocab_size; }
  std::optional<Named> find(const std::string& name) const;  // none: no model here has the name
  std::vector<std::string> all_names() const;
  // Tokens that end a text: generation_config.json's, else the tokenizer's eos.
  std::vector<int64_t> ends() const;
};

// The longest text that the model was made for; 0 where its config does not say.
int64_t max_positions(const CausalLM& model);

}  // namespace hotswap::serve
