#include <cstdio>

#include "hotswap/base/error.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/flags/sampling_flags.h"
#include "hotswap/cli/generate_text.h"
#include "hotswap/cli/verbs.h"
#include "hotswap/models/config.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

struct GenerateFlags {
  ModelFlags model;
  KernelFlags kernels;
  std::string prompt, ids, messages;
  SamplingFlags sampling{50};
  GuessFlags guesses;
  bool stream = false, json = false;
};

// Greedy unless a sampler flag is present, whatever do_sample in generation_config.json is.
GenerationConfig config_of(const GenerateFlags& flags) {
  GenerationConfig config = generation_config_of(flags.sampling);
  config.do_sample = config.do_sample.value_or(false);
  set_guesses(config, flags.guesses);
  return config;
}

Rows prompt_rows(const GenerateFlags& flags, const ModelFlags& source, const Tokenizer* tokenizer, int64_t vocab) {
  if (!flags.ids.empty()) return read_rows(flags.ids, vocab);
  if (!flags.messages.empty()) {
    ChatRequest request = read_chat(flags.messages);
    request.add_generation_prompt = true;
    return {load_chat_template(source).ids(*tokenizer, request)};
  }
  Rows rows{tokenizer->ids(flags.prompt)};
  if (rows[0].empty()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a prompt of at least one token",
                 .got = "an empty one",
                 .next = "give --prompt some text"});
  }
  return rows;
}

bool has_tokenizer(const ModelFlags& flags) {
  return gguf_path(flags) || std::filesystem::is_regular_file(std::filesystem::path(flags.model) / "tokenizer.json");
}

// One row: plain values. Several: lists of them, row by row; times are of the batch, or of its rows in total.
OutJson json_of(const Rows& prompts, const std::vector<TimedText>& texts, bool one_batch) {
  OutJson out = {{"prompt_ids", prompts[0]},
                 {"token_ids", texts[0].ids},
                 {"text", texts[0].text},
                 {"prefill_ms", texts[0].prefill_ms},
                 {"decode_ms", texts[0].decode_ms},
                 {"prefill_tokens_per_second", texts[0].prefill_tokens_per_second},
                 {"decode_tokens_per_second", texts[0].decode_tokens_per_second}};
  if (texts.size() == 1 && !texts[0].accepted.empty()) {
    out["accepted"] = texts[0].accepted;
    out["guessed_tokens"] = texts[0].guessed_tokens;
    out["repeated_tokens"] = texts[0].repeated_tokens;
  }
  if (texts.size() == 1) return out;
  double prefill_ms = 0, decode_ms = 0, prompt_tokens = 0, further_tokens = 0;
  const double times = one_batch ? 1.0 / static_cast<double>(texts.size()) : 1;
  out["prompt_ids"] = prompts;
  out["token_ids"] = OutJson::array();
  out["text"] = OutJson::array();
  for (size_t row = 0; row < texts.size(); ++row) {
    const TimedText& one = texts[row];
    out["token_ids"].push_back(one.ids);
    out["text"].push_back(one.text);
    prefill_ms += one.prefill_ms * times;
    decode_ms += one.decode_ms * times;
    prompt_tokens += static_cast<double>(prompts[row].size());
    further_tokens += static_cast<double>(one.ids.size()) - 1;
  }
  out["prefill_ms"] = prefill_ms;
  out["decode_ms"] = decode_ms;
  out["prefill_tokens_per_second"] = 1e3 * prompt_tokens / prefill_ms;
  out["decode_tokens_per_second"] = decode_ms > 0 ? 1e3 * further_tokens / decode_ms : 0;
  return out;
}

void generate_verb(const GenerateFlags& flags) {
  std::optional<Tokenizer> tokenizer;
  ModelFlags source = located(flags.model);
  source.few_rows = true;
  if (flags.ids.empty() || has_tokenizer(source)) tokenizer = load_tokenizer(source);
  const auto model = load_model(source, flags.kernels);
  const auto assistant = load_beside(flags.guesses.assistant, source, flags.kernels);
  const Rows prompts = prompt_rows(flags, source, tokenizer ? &*tokenizer : nullptr, model->config().vocab_size);
  const bool stream = flags.stream && !flags.json;
  const auto show = [&](const std::string& piece) {
    std::fputs(piece.c_str(), stdout);
    std::fflush(stdout);
  };
  const Tokenizer* texts_by = tokenizer ? &*tokenizer : nullptr;
  const auto print = [&](const TimedText& last) {
    if (!tokenizer) {
      std::printf("%s\n", join(last.ids, " ").c_str());
    } else {
      std::printf("%s\n", stream ? "" : last.text.c_str());
    }
    std::fprintf(stderr, "%zu tokens, first after %.1f ms, then %.1f tokens/s\n", last.ids.size(), last.prefill_ms,
                 last.decode_tokens_per_second);
    if (!last.accepted.empty()) {
      std::fprintf(stderr, "%.2f tokens a step; %lld guesses verified\n",
                   static_cast<double>(last.ids.size() - 1) / static_cast<double>(last.accepted.size()),
                   static_cast<long long>(last.guessed_tokens));
    }
  };
  // What streams comes one text after another, and a captured batch has no rows of different length.
  const bool guesses = flags.guesses.prompt_lookup_num_tokens || assistant;
  const bool one_batch = prompts.size() > 1 && !stream && !guesses && model->device().is_cpu();
  std::vector<TimedText> texts;
  if (one_batch) texts = generate_texts(*model, texts_by, prompts, config_of(flags));
  for (size_t row = 0; row < prompts.size(); ++row) {
    if (!one_batch) {
      texts.push_back(generate_text(*model, texts_by, prompts[row], config_of(flags),
                                    stream ? TextCallback(show) : nullptr, assistant.get()));
    }
    if (!flags.json) print(texts[row]);
  }
  if (!flags.json) return;
  OutJson out = json_of(prompts, texts, one_batch);
  out["kernels"] = kernels_json(model->kernel_report());
  std::printf("%s\n", out.dump(2, ' ', false, OutJson::error_handler_t::replace).c_str());
}

}  // namespace

void add_generate(CLI::App& app) {
  auto* verb = app.add_subcommand("generate", "Continue a prompt");
  auto flags = std::make_shared<GenerateFlags>();
  add_model_flags(*verb, flags->model);
  add_kernel_flags(*verb, flags->kernels);
  auto* what = verb->add_option_group("what");
  what->add_option("--prompt", flags->prompt, "Text; special tokens in it are recognised");
  what->add_option("--ids", flags->ids, "A JSON file: a list of token ids, or a list of such lists")->type_name("FILE");
  what->add_option("--messages", flags->messages,
                   "A JSON file of messages, rendered by the model's chat template; - is stdin")
      ->type_name("FILE");
  what->require_option(1);
  add_sampling_flags(*verb, flags->sampling);
  add_guess_flags(*verb, flags->guesses);
  verb->add_flag("--stream", flags->stream, "Print the text as it comes");
  verb->add_flag("--json", flags->json,
                 "Print JSON: prompt_ids, token_ids, text, prefill_ms, decode_ms, prefill_tokens_per_second, "
                 "decode_tokens_per_second, "
                 "kernels; where tokens are guessed accepted, guessed_tokens and repeated_tokens");
  verb->callback([flags] { generate_verb(*flags); });
}

}  // namespace hotswap
