#include "hotswap/cli/generate_text.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/generation/generate.h"
#include "hotswap/tokenizers/stream_decoder.h"

namespace hotswap {
namespace {

// Prompts on the right of a rectangle, and where they are.
struct PaddedPrompts {
  Tensor ids, mask;  // [rows, longest] int64
};
PaddedPrompts padded(const std::vector<std::vector<int64_t>>& prompts) {
  size_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  const std::vector<int64_t> shape{static_cast<int64_t>(prompts.size()), static_cast<int64_t>(longest)};
  PaddedPrompts out{at::zeros(shape, at::kLong), at::zeros(shape, at::kLong)};
  for (size_t row = 0; row < prompts.size(); ++row) {
    const auto first = static_cast<ptrdiff_t>(row * longest + longest - prompts[row].size());
    std::copy(prompts[row].begin(), prompts[row].end(), out.ids.mutable_data_ptr<int64_t>() + first);
    std::fill_n(out.mask.mutable_data_ptr<int64_t>() + first, prompts[row].size(), 1);
  }
  return out;
}

TimedText text_of(GenerateResult& result, size_t row, const Tokenizer* tokenizer) {
  TimedText made{.prefill_ms = result.prefill_ms,
                 .decode_ms = result.decode_ms,
                 .prefill_tokens_per_second = result.prefill_tokens_per_second(),
                 .decode_tokens_per_second = result.decode_tokens_per_second(),
                 .accepted = std::move(result.accepted),
                 .guessed_tokens = result.guessed_tokens,
                 .repeated_tokens = result.repeated_tokens};
  made.ids = result.new_ids[row];
  if (tokenizer != nullptr) made.text = tokenizer->decode(made.ids, /*skip_special_tokens=*/true);
  return made;
}

}  // namespace

TimedText generate_text(CausalLM& model, const Tokenizer* tokenizer, const std::vector<int64_t>& prompt,
                        const GenerationConfig& config, const TextCallback& on_text, CausalLM* assistant) {
  const Tensor ids = row_tensor(prompt).to(model.device());
  GenerateArguments arguments{.input_ids = ids, .config = config, .tokenizer = tokenizer, .assistant = assistant};
  std::optional<StreamDecoder> stream;
  if (on_text && tokenizer != nullptr) {
    stream.emplace(*tokenizer);
    arguments.on_tokens = [&](const std::vector<int64_t>& tokens) {
      const std::string piece = stream->push(tokens[0]);
      if (!piece.empty()) on_text(piece);
      return true;
    };
  }
  GenerateResult result = generate(model, arguments);
  if (stream) {
    const std::string rest = stream->finish();
    if (!rest.empty()) on_text(rest);
  }
  return text_of(result, 0, tokenizer);
}

std::vector<TimedText> generate_texts(CausalLM& model, const Tokenizer* tokenizer,
                                      const std::vector<std::vector<int64_t>>& prompts,
                                      const GenerationConfig& config) {
  const PaddedPrompts in = padded(prompts);
  GenerateResult result = generate(model, {.input_ids = in.ids.to(model.device()),
                                           .config = config,
                                           .attention_mask = in.mask.to(model.device()),
                                           .tokenizer = tokenizer});
  std::vector<TimedText> texts;
  for (size_t row = 0; row < prompts.size(); ++row) texts.push_back(text_of(result, row, tokenizer));
  return texts;
}

}  // namespace hotswap
