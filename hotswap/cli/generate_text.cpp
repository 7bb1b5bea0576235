#include "hotswap/cli/generate_text.h"

#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/generation/generate.h"
#include "hotswap/tokenizers/stream_decoder.h"

namespace hotswap {

TimedText generate_text(CausalLM& model, const Tokenizer* tokenizer, const std::vector<int64_t>& prompt,
                        const GenerationConfig& config, const TextCallback& on_text) {
  const Tensor ids = row_tensor(prompt).to(model.device());
  GenerateArguments arguments{.input_ids = ids, .config = config, .tokenizer = tokenizer};
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
  TimedText made{.prefill_ms = result.prefill_ms,
                 .decode_ms = result.decode_ms,
                 .prefill_tokens_per_second = result.prefill_tokens_per_second(),
                 .decode_tokens_per_second = result.decode_tokens_per_second()};
  made.ids = std::move(result.new_ids[0]);
  if (tokenizer != nullptr) made.text = tokenizer->decode(made.ids, /*skip_special_tokens=*/true);
  return made;
}

}  // namespace hotswap
