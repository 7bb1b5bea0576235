#include <cstdio>

#include "hotswap/base/error.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/flags/value_checks.h"
#include "hotswap/cli/generate_text.h"
#include "hotswap/cli/verbs.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

struct Flags {
  ModelFlags model;
  KernelFlags kernels;
  std::string prompt, ids, messages;
  int64_t max_new_tokens = 50;
  std::optional<double> temperature, top_p, min_p;
  std::vector<std::string> stop_strings;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
  bool stream = false, json = false;
};

GenerationConfig config_of(const Flags& flags) {
  GenerationConfig config{.max_new_tokens = flags.max_new_tokens,
                          .temperature = flags.temperature,
                          .top_k = flags.top_k,
                          .top_p = flags.top_p,
                          .min_p = flags.min_p,
                          .seed = flags.seed};
  // A flag of the sampler asks for sampling, temperature 0 for the greedy choice; without any it is greedy.
  const bool samples = flags.temperature || flags.top_k || flags.top_p || flags.min_p || flags.seed;
  config.do_sample = samples && flags.temperature != 0.0;
  if (!*config.do_sample) config.temperature = std::nullopt;
  if (!flags.stop_strings.empty()) config.stop_strings = flags.stop_strings;
  return config;
}

Rows prompt_rows(const Flags& flags, const ModelFlags& source, const Tokenizer* tokenizer, int64_t vocab) {
  if (!flags.ids.empty()) return read_rows(flags.ids, vocab);
  if (!flags.messages.empty()) {
    ChatRequest request = read_chat(flags.messages);
    request.add_generation_prompt = true;
    return {load_chat_template(source).ids(*tokenizer, request)};
  }
  Rows rows{tokenizer->ids(flags.prompt)};
  if (rows[0].empty()) {
    throw Error({.wanted = "a prompt of at least one token", .got = "an empty one", .next = "give --prompt some text"});
  }
  return rows;
}

bool has_tokenizer(const ModelFlags& flags) {
  return gguf_path(flags) || std::filesystem::is_regular_file(std::filesystem::path(flags.model) / "tokenizer.json");
}

// One row: plain values. Several: lists of them, row by row, and times that add up.
OutJson json_of(const Rows& prompts, const std::vector<TimedText>& texts) {
  OutJson out = {{"prompt_ids", prompts[0]},
                 {"token_ids", texts[0].ids},
                 {"text", texts[0].text},
                 {"prefill_ms", texts[0].prefill_ms},
                 {"decode_ms", texts[0].decode_ms},
                 {"prefill_tokens_per_second", texts[0].prefill_tokens_per_second},
                 {"decode_tokens_per_second", texts[0].decode_tokens_per_second}};
  if (texts.size() == 1) return out;
  double prefill_ms = 0, decode_ms = 0, prompt_tokens = 0, further_tokens = 0;
  out["prompt_ids"] = prompts;
  out["token_ids"] = OutJson::array();
  out["text"] = OutJson::array();
  for (size_t row = 0; row < texts.size(); ++row) {
    const TimedText& one = texts[row];
    out["token_ids"].push_back(one.ids);
    out["text"].push_back(one.text);
    prefill_ms += one.prefill_ms;
    decode_ms += one.decode_ms;
    prompt_tokens += static_cast<double>(prompts[row].size());
    further_tokens += static_cast<double>(one.ids.size()) - 1;
  }
  out["prefill_ms"] = prefill_ms;
  out["decode_ms"] = decode_ms;
  out["prefill_tokens_per_second"] = 1e3 * prompt_tokens / prefill_ms;
  out["decode_tokens_per_second"] = decode_ms > 0 ? 1e3 * further_tokens / decode_ms : 0;
  return out;
}

void generate_verb(const Flags& flags) {
  std::optional<Tokenizer> tokenizer;
  const ModelFlags source = located(flags.model);
  if (flags.ids.empty() || has_tokenizer(source)) tokenizer = load_tokenizer(source);
  const auto model = load_model(source, flags.kernels);
  const Rows prompts = prompt_rows(flags, source, tokenizer ? &*tokenizer : nullptr, model->config().vocab_size);
  const bool stream = flags.stream && !flags.json;
  const auto show = [&](const std::string& piece) {
    std::fputs(piece.c_str(), stdout);
    std::fflush(stdout);
  };
  std::vector<TimedText> texts;
  for (const auto& prompt : prompts) {
    texts.push_back(generate_text(*model, tokenizer ? &*tokenizer : nullptr, prompt, config_of(flags),
                                  stream ? TextCallback(show) : nullptr));
    if (flags.json) continue;
    const TimedText& last = texts.back();
    if (!tokenizer) {
      std::printf("%s\n", join(last.ids, " ").c_str());
    } else {
      std::printf("%s\n", stream ? "" : last.text.c_str());
    }
    std::fprintf(stderr, "%zu tokens, first after %.1f ms, then %.1f tokens/s\n", last.ids.size(), last.prefill_ms,
                 last.decode_tokens_per_second);
  }
  if (!flags.json) return;
  OutJson out = json_of(prompts, texts);
  out["kernels"] = kernels_json(model->kernel_report());
  std::printf("%s\n", out.dump(2, ' ', false, OutJson::error_handler_t::replace).c_str());
}

}  // namespace

void add_generate(CLI::App& app) {
  auto* verb = app.add_subcommand("generate", "Continue a prompt");
  auto flags = std::make_shared<Flags>();
  add_model_flags(*verb, flags->model);
  add_kernel_flags(*verb, flags->kernels);
  auto* what = verb->add_option_group("what");
  what->add_option("--prompt", flags->prompt, "Text; special tokens in it are recognised");
  what->add_option("--ids", flags->ids, "A JSON file: a list of token ids, or a list of such lists")->type_name("FILE");
  what->add_option("--messages", flags->messages,
                   "A JSON file of messages, rendered by the model's chat template; - is stdin")
      ->type_name("FILE");
  what->require_option(1);
  verb->add_option("--max-new-tokens", flags->max_new_tokens, "Maximum number of new tokens")
      ->check(above_zero())
      ->capture_default_str();
  verb->add_option("--temperature", flags->temperature, "Sample at this temperature; 0: greedy")->check(zero_or_more());
  verb->add_option("--top-k", flags->top_k, "Sample from the k most probable tokens")->check(zero_or_more());
  verb->add_option("--top-p", flags->top_p, "Sample from the most probable tokens whose probabilities sum to this")
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--min-p", flags->min_p, "Keep tokens whose probability is at least this times the maximum")
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--stop", flags->stop_strings, "A text that ends the answer; may be repeated")
      ->allow_extra_args(false);
  verb->add_option("--seed", flags->seed, "Seed of the sampler")->check(zero_or_more());
  verb->add_flag("--stream", flags->stream, "Print the text as it comes");
  verb->add_flag("--json", flags->json,
                 "Print JSON: prompt_ids, token_ids, text, prefill_ms, decode_ms, prefill_tokens_per_second, "
                 "decode_tokens_per_second, "
                 "kernels");
  verb->callback([flags] { generate_verb(*flags); });
}

}  // namespace hotswap
