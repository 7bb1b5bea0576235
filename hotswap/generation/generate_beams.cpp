// generate() by beam search: of each prompt the num_beams best texts so far go on, and those that have ended are kept
// while none that goes on can become better. Scores, choices and ends are transformers'.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/isin.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/engine/scheduler.h"
#include "hotswap/generation/generate_impl.h"
#include "hotswap/models/config.h"

namespace hotswap::generation {
namespace {

constexpr double kNever = -1e9;  // the score of what must not be chosen

// All on the host but the model's own: a step's choices are few values. Tensors of texts begin with [prompts, beams].
struct Beams {
  Tensor tokens;  // [prompts, n, new tokens] int64, of which `made` count
  Tensor scores;  // [prompts, n] float32
  Tensor made;    // [prompts, n] int64

  Beams of(const Tensor& index) const {  // [prompts, m]
    const Tensor wide = index.unsqueeze(2).expand({index.size(0), index.size(1), tokens.size(2)});
    return {at::gather(tokens, 1, wide), at::gather(scores, 1, index), at::gather(made, 1, index)};
  }
};

Tensor best_of(const Tensor& scores, int64_t count) { return std::get<1>(at::topk(scores, count)); }

class BeamSearch {
 public:
  explicit BeamSearch(const Call& call)
      : call_(call),
        prompts_(prompts_of(call.ids, call.mask)),
        batch_(call.batch()),
        beams_(*call.config.num_beams),
        max_new_(*call.config.max_new_tokens),
        penalty_(call.config.length_penalty.value_or(1)),
        stops_(call.config.early_stopping.value_or(EarlyStopping::kFalse)),
        eos_(at::tensor(call.config.eos_token_id.value_or(std::vector<int64_t>()), at::kLong)),
        candidates_(std::max<int64_t>(2, 1 + eos_.numel()) * beams_),
        sampler_(make_sampler(call)),
        pool_(call.model.device(), {.max_sequences = batch_ * beams_, .max_tokens = longest_prompt() + max_new_ - 1}),
        runner_(call.model, pool_, {}, /*capture=*/false) {
    const auto none = at::zeros({batch_, beams_, max_new_}, at::kLong), zero = at::zeros({batch_, beams_}, at::kLong);
    running_ = {none.clone(), at::zeros({batch_, beams_}), zero.clone()};
    running_.scores.narrow(1, 1, beams_ - 1).fill_(kNever);  // at first all beams are the same
    ended_ = {none, at::full({batch_, beams_}, kNever, at::kFloat), zero};
    has_ended_ = at::zeros({batch_, beams_}, at::kBool);
    can_improve_ = at::ones({batch_, 1}, at::kBool);
  }

  GenerateResult run() {
    Tensor logits = run_prompts();
    while (step(logits)) logits = run_last_tokens();
    return result();
  }

 private:
  int64_t longest_prompt() const {
    size_t longest = 0;
    for (const auto& prompt : prompts_) longest = std::max(longest, prompt.size());
    return static_cast<int64_t>(longest);
  }

  // Each prompt runs once, and all beams of it are copies. -> [prompts * beams, vocab]
  Tensor run_prompts() {
    std::vector<StepRow> rows;
    std::vector<int64_t> first;
    for (int64_t i = 0; i < batch_ * beams_; ++i) {
      sequences_.push_back(pool_.acquire());
      first.push_back(i / beams_ * beams_);
      if (i % beams_ == 0) rows.push_back({.sequence = sequences_.back(), .tokens = prompts_[i / beams_]});
    }
    const Tensor logits = runner_.run(std::move(rows));
    pool_.reorder(first);
    ++steps_;
    prefill_ms_ = call_.ms();
    return logits.repeat_interleave(beams_, 0);
  }

  Tensor run_last_tokens() {
    std::vector<StepRow> rows;
    const Tensor last = running_.tokens.select(2, steps_ - 1).contiguous();
    for (int64_t i = 0; i < batch_ * beams_; ++i) {
      rows.push_back({.sequence = sequences_[i], .tokens = {last.const_data_ptr<int64_t>()[i]}});
    }
    ++steps_;
    return runner_.run(std::move(rows));
  }

  // Log-probabilities of what may follow each beam, with the settings' rules. -> [prompts, beams * vocab] on the host
  Tensor continued(const Tensor& logits) {
    Tensor logs = at::log_softmax(logits.to(at::kFloat), -1);
    std::vector<Tensor> parts;  // of each prompt, since rules read texts of one length
    for (int64_t i = 0; i < batch_; ++i) {
      Tensor text;
      if (sampler_->needs_history()) {
        const Tensor prompt = at::tensor(prompts_[i], at::kLong).unsqueeze(0).expand({beams_, -1});
        text = at::cat({prompt, running_.tokens[i].narrow(1, 0, steps_ - 1)}, 1).to(logs.device());
      }
      const Tensor made = at::full({beams_}, steps_ - 1, at::TensorOptions(at::kLong).device(logs.device()));
      parts.push_back(sampler_->processed(logs.narrow(0, i * beams_, beams_), text, {}, made));
    }
    logs = at::cat(parts).view({batch_, beams_, -1}).to(at::kCPU) + running_.scores.unsqueeze(2);
    return logs.view({batch_, -1});
  }

  // -> whether the search goes on
  bool step(const Tensor& logits) {
    const int64_t vocab = logits.size(1);
    const auto [scores, index] = at::topk(continued(logits), candidates_);
    const Tensor beam = index.div(vocab, "floor"), token = index.remainder(vocab);
    Beams next = running_.of(beam);
    next.scores = scores;
    next.tokens.select(2, steps_ - 1).copy_(token);
    next.made.fill_(steps_);
    const Tensor ends = steps_ == max_new_ ? at::ones_like(token, at::kBool) : at::isin(token, eos_);
    keep_ended(next, ends);
    go_on(next, beam, ends);
    can_improve_ = can_improve_ & can_beat_ended();
    const bool open = stops_ != EarlyStopping::kTrue || !has_ended_.all().item<bool>();
    return can_improve_.any().item<bool>() && open && !ends.all().item<bool>();
  }

  // The best that have not ended, and their memory.
  void go_on(const Beams& next, const Tensor& beam, const Tensor& ends) {
    Beams open = next;
    open.scores = next.scores + ends.to(at::kFloat) * kNever;
    const Tensor index = best_of(open.scores, beams_);
    running_ = open.of(index);
    const Tensor row = at::gather(beam, 1, index) + (at::arange(batch_) * beams_).unsqueeze(1);
    const Tensor flat = row.contiguous();
    pool_.reorder({flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()});
  }

  // Of what ends now only the best num_beams candidates count.
  void keep_ended(const Beams& next, const Tensor& ends) {
    Tensor counts = ends.clone();
    counts.narrow(1, beams_, candidates_ - beams_).fill_(false);
    Beams now = next;
    now.scores = next.scores / std::pow(static_cast<double>(steps_), penalty_);
    if (stops_ == EarlyStopping::kTrue) now.scores = now.scores + has_ended_.all(1, true).to(at::kFloat) * kNever;
    now.scores = now.scores + (~can_improve_).to(at::kFloat) * kNever + (~counts).to(at::kFloat) * kNever;
    const Beams all = {at::cat({ended_.tokens, now.tokens}, 1), at::cat({ended_.scores, now.scores}, 1),
                       at::cat({ended_.made, now.made}, 1)};
    const Tensor index = best_of(all.scores, beams_);
    ended_ = all.of(index);
    has_ended_ = at::gather(at::cat({has_ended_, counts}, 1), 1, index);
  }

  // Whether the best that goes on may become better than the worst that has ended. [prompts, 1] bool
  Tensor can_beat_ended() const {
    const bool to_the_end = stops_ == EarlyStopping::kNever && penalty_ > 0;
    const auto length = static_cast<double>(to_the_end ? max_new_ : steps_);
    const Tensor possible = running_.scores.narrow(1, 0, 1) / std::pow(length, penalty_);
    const Tensor worst = at::where(has_ended_, ended_.scores.amin(1, true), kNever);
    return (possible > worst).any(1, true);
  }

  GenerateResult result() {
    const int64_t returned = call_.config.num_return_sequences.value_or(1), rows = batch_ * returned;
    const Tensor made = ended_.made.narrow(1, 0, returned).reshape({rows});
    const int64_t longest = std::max<int64_t>(made.max().item<int64_t>(), 1);
    Tensor tokens = ended_.tokens.narrow(1, 0, returned).reshape({rows, -1}).narrow(1, 0, longest).clone();
    GenerateResult out{.steps = steps_, .why_not_captured = "beams are reordered from step to step"};
    for (int64_t row = 0; row < rows; ++row) {
      const auto count = made[row].item<int64_t>();
      const int64_t* first = tokens.const_data_ptr<int64_t>() + row * longest;
      out.new_ids.emplace_back(first, first + count);
      tokens[row].narrow(0, count, longest - count).fill_(padding());
    }
    const c10::InferenceMode off(false);
    out.ids = at::cat({call_.ids.repeat_interleave(returned, 0), tokens.to(call_.ids.device())}, 1);
    for (const auto& prompt : prompts_) out.prompt_tokens += static_cast<int64_t>(prompt.size());
    warn_beyond_positions(call_.model, longest_prompt() + longest);
    report(tokens);
    out.prefill_ms = prefill_ms_;
    out.decode_ms = call_.ms() - prefill_ms_;
    return out;
  }

  // A pad of 0 is the first end, as in transformers.
  int64_t padding() const {
    if (eos_.numel() == 0) return -1;
    const int64_t pad = call_.config.pad_token_id.value_or(0);
    return pad != 0 ? pad : eos_[0].item<int64_t>();
  }

  // Only now is the text certain.
  void report(const Tensor& tokens) const {
    const auto& on_tokens = call_.arguments.on_tokens;
    for (int64_t step = 0; on_tokens && step < tokens.size(1); ++step) {
      const Tensor column = tokens.select(1, step).contiguous();
      if (!on_tokens({column.const_data_ptr<int64_t>(), column.const_data_ptr<int64_t>() + column.numel()})) return;
    }
  }

  const Call& call_;
  std::vector<std::vector<int64_t>> prompts_;
  int64_t batch_, beams_, max_new_;
  double penalty_;
  EarlyStopping stops_;
  Tensor eos_;
  int64_t candidates_;
  std::shared_ptr<Sampler> sampler_;
  KvPool pool_;
  StepRunner runner_;
  std::vector<int64_t> sequences_;
  Beams running_, ended_;
  Tensor has_ended_, can_improve_;
  int64_t steps_ = 0;
  double prefill_ms_ = 0;
};

void refuse_beams(const char* expected, const std::string& got, const char* next) {
  throw Error({.kind = ErrorKind::kUnsupported, .wanted = expected, .got = got, .next = next});
}

}  // namespace

GenerateResult generate_beams(const Call& call) {
  const GenerationConfig& c = call.config;
  const int64_t beams = *c.num_beams, returned = c.num_return_sequences.value_or(1);
  if (c.do_sample.value_or(false)) {
    refuse_beams("beam search without sampling", cat("num_beams = ", beams, " and do_sample = true"),
                 "set do_sample = false, or num_beams = 1");
  }
  if (guesses(call)) {
    refuse_beams("one text at a time where tokens are guessed", cat("num_beams = ", beams),
                 "leave out prompt_lookup_num_tokens and the assistant, or set num_beams = 1");
  }
  if (c.stop_strings && !c.stop_strings->empty()) {
    refuse_beams("beam search that ends by tokens", "stop_strings", "set stop_strings = {}, or num_beams = 1");
  }
  if (restart_length(call.model, call.ids.size(1)) > 0 &&
      call.ids.size(1) + *c.max_new_tokens >= restart_length(call.model, call.ids.size(1))) {
    refuse_beams("beam search within the length for which the first frequencies hold",
                 cat(*c.max_new_tokens, " new tokens"), "request fewer tokens, or set num_beams = 1");
  }
  if (returned > beams) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("at most num_beams = ", beams, " texts of a prompt"),
                 .got = cat("num_return_sequences = ", returned),
                 .next = "set more num_beams, or fewer num_return_sequences"});
  }
  return BeamSearch(call).run();
}

}  // namespace hotswap::generation
