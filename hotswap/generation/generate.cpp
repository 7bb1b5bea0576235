#include "hotswap/generation/generate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>

#include "hotswap/base/error.h"
#include "hotswap/base/log.h"
#include "hotswap/engine/decode_step.h"
#include "hotswap/engine/scheduler.h"
#include "hotswap/engine/token_reader.h"
#include "hotswap/generation/generate_impl.h"
#include "hotswap/models/config.h"

namespace hotswap {

using generation::Call;
using generation::kReserved;

namespace {

constexpr int64_t kNewTokens = 20;       // where nobody says how many, as transformers has it
constexpr int64_t kWorthCapturing = 16;  // steps: making a graph costs as much as a few of them

// The prompt's mask where it hides something, checked: padding on the right would put a gap before the new tokens.
Tensor left_padding(const GenerateArguments& a) {
  if (!a.attention_mask.defined()) return {};
  if (a.attention_mask.sizes() != a.input_ids.sizes()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("an attention_mask [", join(a.input_ids.sizes()), "]"),
                 .got = cat("[", join(a.attention_mask.sizes()), "]"),
                 .next = "give it the shape of input_ids"});
  }
  Tensor mask = a.attention_mask.to(at::kBool);
  if (mask.all().item<bool>()) return {};
  const int64_t time = mask.size(1);
  const bool rises = time == 1 || !(mask.narrow(1, 0, time - 1) & ~mask.narrow(1, 1, time - 1)).any().item<bool>();
  if (!rises || !mask.narrow(1, time - 1, 1).all().item<bool>()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "prompts padded on the left, with at least one token each",
                 .got = "an attention_mask with a 0 after a 1 (right padding), or with no 1 at all",
                 .next = "pad on the left: the new tokens follow the last column"});
  }
  return mask;
}

// Which rows go on, and the ids that they have.
class Rows {
 public:
  Rows(const Call& call, StopStrings* stops)
      : new_ids(call.batch()),
        eos_(call.config.eos_token_id.value_or(std::vector<int64_t>())),
        stops_(stops),
        padding_(generation::padding_token(call, stops)),
        running_(call.batch(), true) {}
  // Takes the step's tokens; those of ended rows become padding.
  void take(std::vector<int64_t>& tokens) {
    for (size_t row = 0; row < tokens.size(); ++row) {
      if (!running_[row]) {
        tokens[row] = padding_;
        continue;
      }
      new_ids[row].push_back(tokens[row]);
      running_[row] = std::find(eos_.begin(), eos_.end(), tokens[row]) == eos_.end();
      if (stops_ != nullptr && stops_->end(row, tokens[row])) running_[row] = false;
    }
  }
  bool any() const { return std::find(running_.begin(), running_.end(), true) != running_.end(); }
  std::vector<std::vector<int64_t>> new_ids;

 private:
  std::vector<int64_t> eos_;
  StopStrings* stops_;
  int64_t padding_;
  std::vector<bool> running_;
};

// With lengths as counts of new tokens.
GenerationConfig counted(GenerationConfig config, int64_t prompt) {
  if (!config.max_new_tokens) config.max_new_tokens = config.max_length ? *config.max_length - prompt : kNewTokens;
  const int64_t least = config.min_length.value_or(0) - prompt;
  if (least > config.min_new_tokens.value_or(0)) config.min_new_tokens = least;
  return config;
}

// The prompts of all rows, into an empty pool. -> logits of their last tokens, [batch, vocab]
Tensor run_prompts(CausalLM& model, KvPool& pool, const Tensor& ids) {
  std::vector<StepRow> rows;
  for (auto& tokens : generation::prompts_of(ids, {})) {
    rows.push_back({.sequence = pool.acquire(), .tokens = std::move(tokens)});
  }
  KvStep step(pool, std::move(rows));
  Tensor logits = model({.step = &step.batch(), .memory = &step, .logits_to_keep = 1}).logits.select(1, 0);
  step.commit();
  return logits;
}

}  // namespace

bool generation::captures(const CausalLM& model, const GenerationConfig& config) {
  return model.device().is_cuda() && config.cache_implementation.value_or("static") == "static" &&
         config.max_new_tokens >= kWorthCapturing && !ScoreRules::any(config);
}

// Whether steps run in memory of a fixed size: where they are captured, unless memory for all tokens at once is much.
bool generation::is_static(const CausalLM& model, const GenerationConfig& config) {
  if (!config.cache_implementation) return generation::captures(model, config) && config.max_new_tokens <= kReserved;
  const std::string& name = *config.cache_implementation;
  if (name == "static" || name == "dynamic") return name == "static";
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a cache implementation: dynamic or static",
               .got = cat('"', name, '"'),
               .next = "set cache_implementation to one of them"});
}

std::vector<std::vector<int64_t>> generation::prompts_of(const Tensor& ids, const Tensor& mask) {
  const Tensor here = ids.to(at::kCPU).contiguous();
  const Tensor kept = mask.defined() ? mask.to(at::kCPU, at::kLong).sum(1) : Tensor();  // [batch]
  std::vector<std::vector<int64_t>> rows;
  for (int64_t row = 0; row < here.size(0); ++row) {
    const int64_t count = kept.defined() ? kept[row].item<int64_t>() : here.size(1);
    const int64_t* end = here.const_data_ptr<int64_t>() + (row + 1) * here.size(1);
    rows.emplace_back(end - count, end);
  }
  return rows;
}

std::unique_ptr<StopStrings> generation::stop_strings(const Call& call) {
  const auto& texts = call.config.stop_strings;
  if (!texts || texts->empty()) return nullptr;
  if (call.arguments.tokenizer == nullptr) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a tokenizer beside stop_strings",
                 .got = "none",
                 .next = "give generate()'s arguments the tokenizer, or set stop_strings = {}"});
  }
  return std::make_unique<StopStrings>(*call.arguments.tokenizer, *texts, prompts_of(call.ids, call.mask));
}

int64_t generation::padding_token(const Call& call, const StopStrings* stops) {
  const GenerationConfig& config = call.config;
  const bool has_eos = config.eos_token_id && !config.eos_token_id->empty();
  if (call.batch() == 1 || (!has_eos && stops == nullptr)) return 0;
  if (!config.pad_token_id && !has_eos) {
    throw Error(
        {.kind = ErrorKind::kInvalidArgument,
         .wanted = "a pad_token_id or an eos_token_id, to pad sequences that a stop string ends before the others",
         .got = "neither",
         .next = "set pad_token_id"});
  }
  return config.pad_token_id ? *config.pad_token_id : config.eos_token_id->front();
}

std::shared_ptr<Sampler> generation::make_sampler(const Call& call) {
  CausalLM& model = call.model;
  return std::make_shared<Sampler>(call.config, model.device(),
                                   [&model](const Tensor& scores) { return model.largest(scores); });
}

Tensor generation::with_new_tokens(const Tensor& ids, std::vector<int64_t>& all) {
  const c10::InferenceMode off(false);  // the caller may train on the ids
  const int64_t batch = ids.size(0), steps = static_cast<int64_t>(all.size()) / batch;
  return at::cat({ids, at::from_blob(all.data(), {steps, batch}, at::kLong).t().to(ids.device())}, 1);
}

void generation::warn_beyond_positions(const CausalLM& model, int64_t length) {
  const RopeParameters& rope = model.config().rope_parameters;
  if (rope.dim == 0 || rope.type == "dynamic" || length <= rope.max_position_embeddings) return;
  log_warning(length, " tokens exceed the model's max_position_embeddings of ", rope.max_position_embeddings,
              ": text after that position may be wrong");
}

double GenerateResult::prefill_tokens_per_second() const {
  return prefill_ms > 0 ? static_cast<double>(prompt_tokens) * 1000 / prefill_ms : 0;
}

double GenerateResult::decode_tokens_per_second() const {
  int64_t further = 0;
  for (const auto& row : new_ids) further += static_cast<int64_t>(row.size()) - 1;
  return decode_ms > 0 ? static_cast<double>(further) * 1000 / decode_ms : 0;
}

namespace {

// Rows of one length in memory of a fixed size, whose steps run ahead of the host where a GPU captures them.
GenerateResult generate_static(const Call& call) {
  CausalLM& model = call.model;
  const int64_t most = *call.config.max_new_tokens, batch = call.batch();
  const Tensor& ids = call.ids;
  const auto sampler = generation::make_sampler(call);
  const auto stops = generation::stop_strings(call);
  Rows rows(call, stops.get());
  GenerateResult result{.prompt_tokens = ids.numel()};
  std::optional<KvPool> pool;
  std::optional<DecodeStep> step;
  // The first token after `text`, [batch, time]; `count`: how many are to come. Steps go on from there.
  const auto begin = [&](const Tensor& text, int64_t count) {
    GenerationConfig rest = call.config;
    rest.max_new_tokens = count;
    const int64_t room = text.size(1) + count - 1;  // the last token is never looked back at
    step.reset();
    pool.emplace(model.device(), KvPoolOptions{.max_sequences = batch, .max_tokens = room});
    const Tensor logits = run_prompts(model, *pool, text);
    step.emplace(model, *pool, room, *sampler, text);
    if (generation::captures(model, rest)) step->capture(count);
    return step->begin(logits);  // [batch]
  };
  std::vector<int64_t> all;  // [steps, batch]
  Tensor next = begin(ids, most);
  TokenReader reader(ids.device(), batch);
  reader.push(next);
  const int64_t restart = restart_length(model, ids.size(1));
  int64_t until = restart > 0 ? std::min(most, restart - ids.size(1)) : most;  // tokens before it begins again
  // A captured step is on its way before the tokens of the one before it are looked at: the device never waits for the
  // host, and after the last token that is wanted it has made one more, which nobody sees.
  const int64_t ahead = step->captures() ? 1 : 0;
  int64_t asked = 1;
  const auto ask_until = [&](int64_t wanted) {
    for (; asked < std::min(wanted, until); ++asked) {
      next = (*step)(next);
      reader.push(next, step->here());
    }
  };
  for (;;) {
    ask_until(result.steps + 1 + ahead);
    std::vector<int64_t> tokens = reader.pop();
    rows.take(tokens);
    all.insert(all.end(), tokens.begin(), tokens.end());
    if (++result.steps == 1) result.prefill_ms = call.ms();
    const bool go_on = !call.arguments.on_tokens || call.arguments.on_tokens(tokens);
    if (!go_on || !rows.any() || result.steps == most) break;
    if (result.steps == until) {
      until = most;
      next = begin(generation::with_new_tokens(ids, all), most - result.steps);
      reader.push(next);
      ++asked;
    }
  }
  result.captured = step->captured();
  if (!result.captured) result.why_not_captured = step->why_not_captured();
  result.ids = generation::with_new_tokens(ids, all);
  generation::warn_beyond_positions(model, result.ids.size(1));
  result.new_ids = std::move(rows.new_ids);
  result.decode_ms = call.ms() - result.prefill_ms;
  return result;
}

int64_t at_least_one(const std::optional<int64_t>& value, const char* name) {
  if (value.value_or(1) >= 1) return value.value_or(1);
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(name, " of 1 or more"),
               .got = cat(*value),
               .next = "change the generation settings"});
}

int64_t beams_of(const GenerationConfig& config) { return at_least_one(config.num_beams, "num_beams"); }

// Several texts of each prompt, which sampling makes different ones.
void repeat_prompts(Call& call) {
  const int64_t times = at_least_one(call.config.num_return_sequences, "num_return_sequences");
  if (times == 1) return;
  if (!call.config.do_sample.value_or(false)) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "one text of each prompt where neither beams nor sampling make others",
                 .got = cat("num_return_sequences = ", times),
                 .next = "set num_beams, or do_sample = true"});
  }
  call.ids = call.ids.repeat_interleave(times, 0);
  if (call.mask.defined()) call.mask = call.mask.repeat_interleave(times, 0);
}

// A learned embedding has no rows beyond the model's positions.
void check_positions(const CausalLM& model, int64_t prompt, int64_t max_new_tokens) {
  const int64_t positions = model.config().position_embeddings;
  if (positions == 0 || prompt + max_new_tokens <= positions + 1) return;  // the last token is never read
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("at most ", positions, " tokens of prompt and answer: the model has no further positions"),
               .got = cat(prompt, " and max_new_tokens ", max_new_tokens),
               .next = "set a smaller max_new_tokens, or shorten the prompt"});
}

}  // namespace

GenerateResult generate(CausalLM& model, const GenerateArguments& a) {
  const c10::InferenceMode inference;
  const auto start = generation::Clock::now();
  GenerationConfig config = merged(a.config, model.generation_config());
  require_implemented(config);
  const bool has_ids = a.input_ids.defined() && a.input_ids.dim() == 2 && a.input_ids.numel() > 0;
  if (has_ids) {
    config = counted(std::move(config), a.input_ids.size(1));
    check_positions(model, a.input_ids.size(1), *config.max_new_tokens);
  }
  if (!has_ids || *config.max_new_tokens < 1) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "input_ids [batch, time], not empty, and at least one new token",
                 .got = has_ids ? cat(*config.max_new_tokens, " new tokens after a prompt of ", a.input_ids.size(1))
                        : a.input_ids.defined() ? cat("[", join(a.input_ids.sizes()), "]")
                                                : "no input_ids",
                 .next = "give at least one token, and ask for at least one: max_new_tokens, or a longer max_length"});
  }
  const c10::DeviceGuard current(
      model.device());  // streams, graphs and events of the loop are those of the model's GPU
  Call call{model, a, std::move(config), a.input_ids.to(model.device()), left_padding(a), start};
  if (beams_of(call.config) > 1) return generation::generate_beams(call);
  repeat_prompts(call);
  const bool one_length = !call.mask.defined();
  if (generation::guesses(call)) return generation::generate_guessed(call);
  return generation::is_static(model, call.config) && one_length ? generate_static(call)
                                                                 : generation::generate_sequences(call);
}

Tensor CausalLM::generate(const Tensor& input_ids, const GenerationConfig& config, const Tensor& attention_mask) {
  return hotswap::generate(*this, {.input_ids = input_ids, .config = config, .attention_mask = attention_mask}).ids;
}

}  // namespace hotswap
