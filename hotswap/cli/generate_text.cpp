#include "hotswap/cli/answer.h"

#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/generation/generate.h"
#include "hotswap/tokenizers/stream_decoder.h"

namespace hotswap {

double Answer::tokens_per_second() const {
  const auto count = static_cast<double>(ids.size());
  if (count > 1 && decode_ms > 0) return 1e3 * (count - 1) / decode_ms;
  return prefill_ms > 0 ? 1e3 * count / prefill_ms : 0;
}

Answer answer(CausalLM& model, const Tokenizer* tokenizer, const std::vector<int64_t>& prompt,
              const GenerationConfig& config, const TextCallback& on_text) {
  const Tensor ids = row_tensor(prompt).to(model.device());
  GenerateArguments arguments{.input_ids = ids, .config = config};
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
  Answer answer{.ids = std::move(result.new_ids[0]), .prefill_ms = result.prefill_ms, .decode_ms = result.decode_ms};
  if (tokenizer != nullptr) answer.text = tokenizer->decode(answer.ids, /*skip_special_tokens=*/true);
  return answer;
}

}  // namespace hotswap
