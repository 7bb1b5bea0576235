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

struct ServedModel {
  std::shared_ptr<CausalLM> model;
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat_template;
  std::vector<std::string> names;                       // the first is what answers carry
  int64_t max_model_len = 0;                            // of a prompt and its new tokens
  std::shared_ptr<GrammarCompiler> grammars = nullptr;  // made by the server

  int64_t vocab() const { return model->config().vocab_size; }
  // Tokens that end a text: generation_config.json's, else the tokenizer's eos.
  std::vector<int64_t> ends() const;
};

// The longest text that the model was made for; 0 where its config does not say.
int64_t max_positions(const CausalLM& model);

}  // namespace hotswap::serve
