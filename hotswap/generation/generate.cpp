#include "hotswap/generation/generate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "hotswap/base/error.h"
#include "hotswap/base/log.h"
#include "hotswap/generation/decode_step.h"
#include "hotswap/generation/sampler.h"
#include "hotswap/generation/stop_strings.h"
#include "hotswap/generation/token_reader.h"

namespace hotswap {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kNewTokens = 20;       // where nobody says how many, as transformers has it
constexpr int64_t kReserved = 4096;      // tokens that a growing cache has room for at once
constexpr int64_t kWorthCapturing = 16;  // steps: making a graph costs as much as a few of them

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

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
                 .got = "an attention_mask with zeros behind ones, or all zeros",
                 .next = "pad on the left: the new tokens follow the last column"});
  }
  return mask;
}

// Which rows go on, and what they have said.
class Rows {
 public:
  Rows(int64_t batch, const GenerationConfig& config, StopStrings* stops)
      : new_ids(batch),
        eos_(config.eos_token_id.value_or(std::vector<int64_t>())),
        stops_(stops),
        running_(batch, true) {
    if (batch == 1 || (eos_.empty() && stops == nullptr)) return;
    if (!config.pad_token_id && eos_.empty()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "a pad_token_id or an eos_token_id, for rows that stop_strings end before others",
                   .got = "neither",
                   .next = "set pad_token_id"});
    }
    pad_ = config.pad_token_id ? *config.pad_token_id : eos_.front();
  }
  // Takes the step's tokens; those of ended rows become padding.
  void take(std::vector<int64_t>& tokens) {
    for (size_t row = 0; row < tokens.size(); ++row) {
      if (!running_[row]) {
        tokens[row] = pad_;
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
  int64_t pad_ = 0;
  std::vector<bool> running_;
};

// Null where no text ends a row.
std::unique_ptr<StopStrings> stop_strings(const GenerateArguments& a, const GenerationConfig& config,
                                          const Tensor& mask) {
  if (!config.stop_strings || config.stop_strings->empty()) return nullptr;
  if (a.tokenizer == nullptr) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a tokenizer beside stop_strings",
                 .got = "none",
                 .next = "give generate()'s arguments the tokenizer, or set stop_strings = {}"});
  }
  const Tensor ids = a.input_ids.to(at::kCPU).contiguous();
  const Tensor kept = mask.defined() ? mask.to(at::kCPU, at::kLong).sum(1) : Tensor();  // [batch]
  std::vector<std::vector<int64_t>> rows;
  for (int64_t row = 0; row < ids.size(0); ++row) {
    const int64_t count = kept.defined() ? kept[row].item<int64_t>() : ids.size(1);
    const int64_t* end = ids.const_data_ptr<int64_t>() + (row + 1) * ids.size(1);
    rows.emplace_back(end - count, end);
  }
  return std::make_unique<StopStrings>(*a.tokenizer, *config.stop_strings, std::move(rows));
}

// With lengths as counts of new tokens.
GenerationConfig counted(GenerationConfig config, int64_t prompt) {
  if (!config.max_new_tokens) config.max_new_tokens = config.max_length ? *config.max_length - prompt : kNewTokens;
  const int64_t least = config.min_length.value_or(0) - prompt;
  if (least > config.min_new_tokens.value_or(0)) config.min_new_tokens = least;
  return config;
}

bool captures(const CausalLM& model, const GenerationConfig& config) {
  return model.device().is_cuda() && config.cache_implementation.value_or("static") == "static" &&
         config.max_new_tokens >= kWorthCapturing;
}

// Static where steps are captured, unless memory for all tokens at once is much to ask for.
std::string cache_implementation(const CausalLM& model, const GenerationConfig& config) {
  if (config.cache_implementation) return *config.cache_implementation;
  return captures(model, config) && config.max_new_tokens <= kReserved ? "static" : "dynamic";
}

// The last token is never looked back at, so the cache needs no room for it.
std::unique_ptr<Cache> make_cache(const CausalLM& model, const GenerationConfig& config, int64_t prompt) {
  const std::string implementation = cache_implementation(model, config);
  const bool grows = implementation == "dynamic";
  const int64_t most = *config.max_new_tokens;
  const int64_t room = prompt + std::min(most, grows ? kReserved : most) - 1;
  return model.make_cache({.implementation = implementation, .max_cache_len = room});
}

// The length of text from which on a model computes all of it again, because the frequencies of its rotary embedding
// change there and the keys in the cache were turned by the old ones. 0: never.
int64_t restart_length(const CausalLM& model, int64_t prompt) {
  const RopeParameters& rope = model.config().rope_parameters;
  const bool restarts = model.config().model_type == "phi3" && rope.type == "longrope";  // as transformers
  return restarts && prompt <= rope.original_max_position_embeddings ? rope.original_max_position_embeddings + 1 : 0;
}

// As transformers warns. Frequencies of type dynamic follow the length.
void warn_beyond_positions(const CausalLM& model, int64_t length) {
  const RopeParameters& rope = model.config().rope_parameters;
  if (rope.dim == 0 || rope.type == "dynamic" || length <= rope.max_position_embeddings) return;
  log_warning(length, " tokens exceed the model's max_position_embeddings of ", rope.max_position_embeddings,
              ": text after that position may be wrong");
}

}  // namespace

double GenerateResult::prefill_tokens_per_second() const {
  return prefill_ms > 0 ? static_cast<double>(prompt_tokens) * 1000 / prefill_ms : 0;
}

double GenerateResult::decode_tokens_per_second() const {
  int64_t further = 0;
  for (const auto& row : new_ids) further += static_cast<int64_t>(row.size()) - 1;
  return decode_ms > 0 ? static_cast<double>(further) * 1000 / decode_ms : 0;
}

GenerateResult generate(CausalLM& model, const GenerateArguments& a) {
  const c10::InferenceMode inference;
  const auto start = Clock::now();
  GenerationConfig config = merged(a.config, model.generation_config());
  require_implemented(config);
  const bool has_ids = a.input_ids.defined() && a.input_ids.dim() == 2 && a.input_ids.numel() > 0;
  if (has_ids) config = counted(std::move(config), a.input_ids.size(1));
  if (!has_ids || *config.max_new_tokens < 1) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "input_ids [batch, time], not empty, and at least one new token",
                 .got = has_ids ? cat(*config.max_new_tokens, " of them behind a prompt of ", a.input_ids.size(1))
                        : a.input_ids.defined() ? cat("[", join(a.input_ids.sizes()), "]")
                                                : "no input_ids",
                 .next = "give at least one token, and ask for at least one: max_new_tokens, or a longer max_length"});
  }
  const int64_t most = *config.max_new_tokens;
  const at::Device device = model.device();
  const c10::DeviceGuard current(device);  // streams, graphs and events of the loop are those of the model's GPU
  Tensor ids = a.input_ids.to(device);
  const int64_t batch = ids.size(0);
  const Tensor prompt_mask = left_padding(a);  // [batch, prompt], or undefined
  Sampler sampler(config, device, [&](const Tensor& scores, const Choice& to) { return model.largest(scores, to); });
  const auto stops = stop_strings(a, config, prompt_mask);
  Rows rows(batch, config, stops.get());
  GenerateResult result{.prompt_tokens = prompt_mask.defined() ? prompt_mask.sum().item<int64_t>() : ids.numel()};
  std::unique_ptr<Cache> cache;
  std::optional<DecodeStep> step;
  // The first token behind `text`, [batch, time]; `count`: how many are to come. Steps go on from there.
  const auto begin = [&](const Tensor& text, int64_t count) {
    GenerationConfig rest = config;
    rest.max_new_tokens = count;
    step.reset();
    cache = make_cache(model, rest, text.size(1));
    Tensor mask, positions;  // [batch, time so far]; of the tokens of one forward where rows are padded
    if (prompt_mask.defined()) {
      mask = at::constant_pad_nd(prompt_mask.to(device), {0, text.size(1) - ids.size(1)}, true);
      positions = (at::cumsum(mask, 1) - 1).clamp_min(0);
      if (cache->capacity() > 0) {  // of a fixed size too: the tokens to come are none of padding
        mask = at::constant_pad_nd(mask, {0, cache->capacity() - mask.size(1)}, true);
      }
    }
    const Tensor logits = model({.input_ids = text,
                                 .attention_mask = mask,
                                 .position_ids = positions,
                                 .cache = cache.get(),
                                 .logits_to_keep = 1})
                              .logits.select(1, 0);  // [batch, vocab]
    step.emplace(model, *cache, sampler, DecodeInput{.mask = mask, .positions = positions, .prompt = text});
    if (cache->capacity() > 0 && captures(model, rest)) step->capture(count);
    return step->begin(logits);  // [batch]
  };
  std::vector<int64_t> all;  // [steps, batch]
  const auto said = [&] { return at::from_blob(all.data(), {result.steps, batch}, at::kLong).t().to(device); };
  Tensor next = begin(ids, most);
  TokenReader reader(device, batch);
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
    if (++result.steps == 1) result.prefill_ms = ms_since(start);
    const bool go_on = !a.on_tokens || a.on_tokens(tokens);
    if (!go_on || !rows.any() || result.steps == most) break;
    if (result.steps == until) {
      until = most;
      next = begin(at::cat({ids, said()}, 1), most - result.steps);
      reader.push(next);
      ++asked;
    }
  }
  result.captured = step->captured();
  if (!result.captured) result.why_not_captured = step->why_not_captured();
  {
    const c10::InferenceMode off(false);  // the caller may train on the ids
    result.ids = at::cat({ids, said()}, 1);
  }
  warn_beyond_positions(model, result.ids.size(1));
  result.new_ids = std::move(rows.new_ids);
  result.decode_ms = ms_since(start) - result.prefill_ms;
  return result;
}

Tensor CausalLM::generate(const Tensor& input_ids, const GenerationConfig& config, const Tensor& attention_mask) {
  return hotswap::generate(*this, {.input_ids = input_ids, .config = config, .attention_mask = attention_mask}).ids;
}

}  // namespace hotswap
