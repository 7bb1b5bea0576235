#include "hotswap/generation/guesser.h"

#include <ATen/ops/full.h>
#include <ATen/ops/softmax.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/engine/device_copy.h"
#include "hotswap/engine/kv_pool.h"
#include "hotswap/generation/generate_impl.h"
#include "hotswap/models/config.h"

namespace hotswap::generation {
namespace {

constexpr int64_t kNgram = 2, kAssistantTokens = 20;  // transformers' defaults
constexpr double kConfidence = 0.4;

int64_t require_guesses(int64_t value, const char* name) {
  if (value >= 1) return value;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(name, " of 1 or more"),
               .got = cat(value),
               .next = "change the generation settings"});
}

std::string checked_schedule(std::string name) {
  if (name == "constant" || name == "heuristic" || name == "heuristic_transient") return name;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "num_assistant_tokens_schedule: constant, heuristic or heuristic_transient",
               .got = cat('"', name, '"'),
               .next = "set it to one of them"});
}

// A smaller model's own text, greedy, as far as it is sure of it.
class Assistant : public Guesser {
 public:
  Assistant(const Call& call, Sampler& sampler)
      : model_(*call.arguments.assistant),
        sampler_(sampler),
        pool_(model_.device(), {.max_tokens = call.ids.size(1) + std::min(*call.config.max_new_tokens, kReserved)}),
        sequence_(pool_.acquire()),
        eos_(call.config.eos_token_id.value_or(std::vector<int64_t>())),
        prompt_(call.ids.size(1)) {
    const GenerationConfig own = merged(call.config, model_.generation_config());
    count_ = require_guesses(own.num_assistant_tokens.value_or(kAssistantTokens), "num_assistant_tokens");
    schedule_ = checked_schedule(own.num_assistant_tokens_schedule.value_or("constant"));
    threshold_ = own.assistant_confidence_threshold.value_or(kConfidence);
  }
  ~Assistant() override {
    if (schedule_ != "heuristic") return;
    GenerationConfig kept = model_.generation_config();
    kept.num_assistant_tokens = count_;
    model_.set_generation_config(std::move(kept));
  }

  std::vector<int64_t> guess(const std::vector<int64_t>& tokens, int64_t limit) override {
    const int64_t count = std::min(count_, limit);
    std::vector<int64_t> text = tokens, made;
    if (count < 1) return made;
    Tensor logits = run(text);
    for (;;) {
      const Tensor scores = sampler_.processed(logits, history(text), {}, made_of(text)).to(at::kFloat);
      const int64_t id = scores.argmax(1).item<int64_t>();
      if (std::find(eos_.begin(), eos_.end(), id) != eos_.end()) return made;
      made.push_back(id);
      text.push_back(id);
      const double sure = at::softmax(scores, -1)[0][id].item<double>();
      if (static_cast<int64_t>(made.size()) == count || sure < threshold_) return made;
      logits = run(text);
    }
  }

  void judge(int64_t verified, int64_t right) override {
    if (schedule_ == "constant") return;
    count_ = right == verified ? count_ + 2 : std::max<int64_t>(1, count_ - 1);
  }

 private:
  Tensor history(const std::vector<int64_t>& text) const {
    if (!sampler_.needs_history()) return {};
    return to_device(text, at::kLong, model_.device()).unsqueeze(0);
  }
  Tensor made_of(const std::vector<int64_t>& text) const {
    return at::full({1}, static_cast<int64_t>(text.size()) - prompt_,
                    at::TensorOptions(at::kLong).device(model_.device()));
  }
  // What it has not run of the text, from the first token on that is another than it ran. -> logits after the last one
  Tensor run(const std::vector<int64_t>& text) {
    const auto same = std::mismatch(ran_.begin(), ran_.end(), text.begin(), text.end() - 1).second - text.begin();
    pool_.rollback(sequence_, same);
    const std::vector<int64_t> rest(text.begin() + same, text.end());
    KvStep step(pool_, {{.sequence = sequence_, .tokens = rest}});
    const Tensor logits = model_({.step = &step.batch(), .memory = &step, .logits_to_keep = 1}).logits.select(1, 0);
    step.commit();
    if (pool_.recurs()) {
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = "an assistant whose layers keep keys and values only",
                   .got = cat(model_.config().model_type, ", whose recurrent states cannot go back"),
                   .next = "take an assistant of another family"});
    }
    ran_ = text;
    return logits;
  }

  CausalLM& model_;
  Sampler& sampler_;
  KvPool pool_;
  int64_t sequence_;
  std::vector<int64_t> eos_, ran_;
  int64_t prompt_, count_ = 0;
  std::string schedule_;
  double threshold_ = 0;
};

void refuse_guess(const std::string& expected, const std::string& got, const char* next) {
  throw Error({.kind = ErrorKind::kUnsupported, .wanted = expected, .got = got, .next = next});
}

void check_assistant(const CausalLM& model, const CausalLM& assistant) {
  const int64_t own = model.config().vocab_size, other = assistant.config().vocab_size;
  if (own != other) {
    refuse_guess("an assistant with the model's tokenizer", cat("a vocabulary of ", other, " beside one of ", own),
                 "take a smaller model of the same family");
  }
  if (model.device() != assistant.device()) {
    refuse_guess("the assistant on the model's device", cat(assistant.device(), " beside ", model.device()),
                 "load both on the same one");
  }
}

}  // namespace

PromptLookup::PromptLookup(const GenerationConfig& config)
    : count_(require_guesses(*config.prompt_lookup_num_tokens, "prompt_lookup_num_tokens")),
      ngram_(require_guesses(config.max_matching_ngram_size.value_or(kNgram), "max_matching_ngram_size")),
      eos_(config.eos_token_id.value_or(std::vector<int64_t>())) {}

std::vector<int64_t> PromptLookup::guess(const std::vector<int64_t>& tokens, int64_t limit) {
  const auto length = static_cast<int64_t>(tokens.size()), count = std::min(count_, limit);
  if (count < 1) return {};
  for (int64_t ngram = std::min(ngram_, length - 1); ngram > 0; --ngram) {
    const auto last = tokens.end() - ngram;
    const auto found = std::search(tokens.begin(), tokens.end() - 1, last, tokens.end());
    if (found == tokens.end() - 1) continue;
    const auto first = found + ngram;
    const auto end = tokens.end() - first < count ? tokens.end() : first + count;
    return {first, std::find_first_of(first, end, eos_.begin(), eos_.end())};
  }
  return {};
}

std::unique_ptr<Guesser> make_guesser(const Call& call, Sampler& sampler) {
  const bool looks_up = call.config.prompt_lookup_num_tokens.has_value();
  CausalLM* assistant = call.arguments.assistant;
  if (call.batch() != 1) {
    refuse_guess("one prompt where tokens are guessed (prompt_lookup_num_tokens or an assistant)",
                 cat("a batch of ", call.batch()), "generate from one prompt at a time, as in transformers");
  }
  if (looks_up && assistant != nullptr) {
    refuse_guess("guesses by prompt lookup or by an assistant", "both", "leave one of them out");
  }
  if (looks_up) return std::make_unique<PromptLookup>(call.config);
  check_assistant(call.model, *assistant);
  return std::make_unique<Assistant>(call, sampler);
}

}  // namespace hotswap::generation
