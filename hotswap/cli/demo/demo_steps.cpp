#include <cstdio>
#include <iostream>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/cli/demo/demo_parts.h"
#include "hotswap/cli/generate_text.h"
#include "hotswap/models/formats/gguf_model.h"
#include "hotswap/tokenizers/export.h"
#include "hotswap/training/trainer.h"

namespace hotswap {
namespace {

using OutJson = nlohmann::ordered_json;

void emit(const OutJson& event) {
  std::printf("%s\n", event.dump(-1, ' ', false, OutJson::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

void wait_for_turn() {
  emit({{"event", "ready"}});
  std::string line;
  if (!std::getline(std::cin, line)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a line on stdin for the next turn",
                 .got = "its end",
                 .next = "run `hotswap demo` without --step"});
  }
}

std::shared_ptr<CausalLM> load(const DemoOptions& options, const char* packed) {
  ModelFlags flags = options.model;
  flags.packed = packed;
  auto model = load_model(flags, {.use_kernels = options.kernels});
  emit({{"event", "load"}, {"bound", model->kernel_report().bound()}});
  return model;
}

// A model that came from a GGUF file has no tokenizer files that could be copied with it.
void save_tokenizer(const std::filesystem::path& folder, const ModelFlags& flags) {
  const auto path = gguf_path(flags);
  if (!path || std::filesystem::is_regular_file(folder / "tokenizer.json")) return;
  const GgufFile file(*path);
  write_tokenizer(folder, vocabulary_from_gguf(file), chat_template_from_gguf(file));
}

// One user turn by the model's own chat template; a model without one gets the plain prompt.
std::vector<int64_t> prompt_ids(const Tokenizer& tokenizer, const std::optional<ChatTemplate>& chat,
                                const std::string& prompt) {
  if (!chat) return tokenizer.ids(prompt);
  const OutJson turn = {{"role", "user"}, {"content", prompt}};
  return chat->ids(tokenizer, {.messages = OutJson::array({turn}), .add_generation_prompt = true});
}

}  // namespace

const std::vector<std::string>& demo_prompts() {
  static const std::vector<std::string> prompts = {"What is the capital of France, and what is it known for?",
                                                   "Write a short story about a robot who learns to paint."};
  return prompts;
}

void demo_answer(const DemoOptions& options) {
  const auto model = load(options, "auto");
  const Tokenizer tokenizer = load_tokenizer(options.model);
  const auto chat = find_chat_template(options.model);
  const GenerationConfig config{.max_new_tokens = options.new_tokens, .do_sample = false};
  generate_text(*model, nullptr, tokenizer.ids("Hello"), {.max_new_tokens = 4, .do_sample = false});  // warms up
  for (const std::string& prompt : demo_prompts()) {
    wait_for_turn();
    const TimedText result =
        generate_text(*model, &tokenizer, prompt_ids(tokenizer, chat, prompt), config, [](const std::string& piece) {
          emit({{"event", "text"}, {"piece", piece}});
        });
    emit({{"event", "answer"},
          {"text", result.text},
          {"ids", result.ids},
          {"prefill_ms", result.prefill_ms},
          {"decode_tokens_per_second", result.decode_tokens_per_second}});
  }
}

void demo_train(const DemoOptions& options) {
  const Tokenizer tokenizer = load_tokenizer(options.model);
  std::vector<int64_t> stream;
  for (const std::string& file : options.data) {
    const auto ids = tokenizer.ids(read_file(file));
    stream.insert(stream.end(), ids.begin(), ids.end());
    if (tokenizer.special_ids().eos) stream.push_back(*tokenizer.special_ids().eos);
  }
  const auto dataset = std::make_shared<PackedDataset>(std::move(stream), options.columns);
  const auto model = load(options, "off");  // packed weights have no gradient
  // A step's time ends before this is called: waiting is nobody's.
  const auto on_step_end = [&](const TrainingStep& step) {
    emit({{"event", "step"}, {"step", step.step}, {"loss", step.loss}, {"grad_norm", step.grad_norm}});
    if (step.step + 1 < options.steps) wait_for_turn();
  };
  Trainer trainer(model,
                  {.per_device_train_batch_size = options.rows,
                   .max_steps = options.steps,
                   .learning_rate = options.learning_rate,
                   .weight_decay = 0.01,
                   .warmup_steps = static_cast<double>(std::min<int64_t>(4, options.steps / 4)),
                   .train_sampling_strategy = "sequential"},
                  dataset, {.on_step_end = on_step_end});
  wait_for_turn();
  const TrainOutput result = trainer.train();
  emit({{"event", "train"},
        {"train_tokens_per_second", result.train_tokens_per_second()},
        {"peak_memory", result.peak_memory}});
  if (options.save_to.empty()) return;
  model->save_pretrained(options.save_to);
  save_tokenizer(options.save_to, options.model);
}

}  // namespace hotswap
