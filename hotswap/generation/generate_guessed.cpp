// generate() where tokens are guessed: the model verifies several in one step, and the text is that of single steps.
#include <ATen/ops/full.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cmath>

#include "hotswap/engine/device_copy.h"
#include "hotswap/engine/scheduler.h"
#include "hotswap/engine/verified_steps.h"
#include "hotswap/generation/generate_impl.h"
#include "hotswap/generation/guesser.h"

namespace hotswap::generation {
namespace {

class GuessedText {
 public:
  explicit GuessedText(const Call& call)
      : call_(call),
        max_new_(*call.config.max_new_tokens),
        eos_(call.config.eos_token_id.value_or(std::vector<int64_t>())),
        sampler_(make_sampler(call)),
        guesser_(make_guesser(call, *sampler_)),
        stops_(stop_strings(call)),
        room_(call.ids.size(1) + std::min(max_new_, kReserved) - 1),
        pool_(call.model.device(), {.max_tokens = room_}),
        steps_(call.model, pool_, is_static(call.model, call.config) ? room_ : 0),
        restart_(restart_length(call.model, call.ids.size(1))),
        tokens_(prompts_of(call.ids, call.mask).front()),
        prompt_(length()) {}

  GenerateResult run() {
    result_.prompt_tokens = prompt_;
    VerifiedSteps::Logits logits = steps_.begin(tokens_);
    bool goes_on = append(chosen(logits, 0));
    result_.prefill_ms = call_.ms();
    std::vector<int64_t> guess;
    while (goes_on) {
      if (restart_ > 0 && length() >= restart_) {  // keys of a longer text need other frequencies
        restart_ = 0;
        goes_on = append(chosen(steps_.begin(tokens_), 0));
        result_.accepted.push_back(1);
        continue;
      }
      if (guess.empty()) guess = guesser_->guess(tokens_, max_guesses());
      goes_on = verify(guess);
    }
    finish();
    return std::move(result_);
  }

 private:
  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t made() const { return length() - prompt_; }
  // The last token needs no guess, and none is verified beyond a restart.
  int64_t max_guesses() const {
    const int64_t left = max_new_ - made() - 1;
    return restart_ > 0 ? std::min(left, restart_ - length() - 1) : left;
  }

  // One step: the last token and as many guesses as it takes. What is left of a guess that is right so far stays in it.
  // -> whether the text goes on
  bool verify(std::vector<int64_t>& guess) {
    std::vector<int64_t> rows = {tokens_.back()};
    rows.insert(rows.end(), guess.begin(), guess.end());
    rows.resize(static_cast<size_t>(steps_.max_rows(static_cast<int64_t>(rows.size()))));
    VerifiedSteps::Logits logits = steps_.run(rows);
    const auto tried = static_cast<size_t>(logits.rows.size(0)) - 1;
    int64_t count = 0, right = 0;
    bool goes_on = true, matches = true;
    const bool near = !logits.exact;
    for (size_t row = 0; row <= tried && matches && goes_on; ++row) {
      const int64_t id = chosen(logits, static_cast<int64_t>(row));
      goes_on = append(id);
      ++count;
      matches = row < guess.size() && id == guess[row];
      if (matches) ++right;
      if (near && logits.exact) break;  // it was chosen by a repeated step, and later rows are gone
    }
    result_.accepted.push_back(count);
    result_.guessed_tokens += static_cast<int64_t>(tried);
    if (tried > 0) guesser_->judge(static_cast<int64_t>(tried), std::min(right, static_cast<int64_t>(tried)));
    guess.erase(guess.begin(), matches ? guess.begin() + right : guess.end());
    steps_.keep(length() - 1);
    return goes_on;
  }

  // The token after a row. Where logits are near ones and two tokens are close, the row is run by itself; logits is
  // exact then.
  int64_t chosen(VerifiedSteps::Logits& logits, int64_t row) {
    Tensor scores = processed(logits.rows.narrow(0, row, 1));
    if (!logits.exact && !sampler_->draws() && is_close(scores)) {
      scores = processed(steps_.repeat(tokens_));
      logits.exact = true;
    }
    return sampler_->choose(scores).item<int64_t>();
  }
  int64_t chosen(VerifiedSteps::Logits&& logits, int64_t row) { return chosen(logits, row); }

  Tensor processed(const Tensor& logits) {
    const at::Device device = call_.model.device();
    const Tensor history = sampler_->needs_history() ? to_device(tokens_, at::kLong, device).unsqueeze(0) : Tensor();
    return sampler_->processed(logits, history, {}, at::full({1}, made(), at::TensorOptions(at::kLong).device(device)));
  }

  bool is_close(const Tensor& scores) const {
    const Tensor best = std::get<0>(at::topk(scores, 2)).to(at::kCPU, at::kDouble);  // [1, 2]
    const double first = best[0][0].item<double>(), second = best[0][1].item<double>();
    return first - second <= steps_.rounding(call_.model.dtype()) * std::max(std::abs(first), std::abs(second));
  }

  // -> whether the text goes on
  bool append(int64_t id) {
    tokens_.push_back(id);
    bool ends = made() == max_new_ || std::find(eos_.begin(), eos_.end(), id) != eos_.end();
    if (stops_ && stops_->end(0, id)) ends = true;
    const auto& report = call_.arguments.on_tokens;
    return (!report || report({id})) && !ends;
  }

  void finish() {
    std::vector<int64_t> all(tokens_.begin() + prompt_, tokens_.end());
    result_.ids = with_new_tokens(call_.ids, all);
    result_.new_ids = {std::move(all)};
    result_.steps = steps_.forwards();
    result_.repeated_tokens = steps_.repeated_tokens();
    result_.why_not_captured = "steps with guessed tokens are of changing shape";
    warn_beyond_positions(call_.model, length());
    result_.decode_ms = call_.ms() - result_.prefill_ms;
  }

  const Call& call_;
  const int64_t max_new_;
  std::vector<int64_t> eos_;
  std::shared_ptr<Sampler> sampler_;
  std::unique_ptr<Guesser> guesser_;
  std::unique_ptr<StopStrings> stops_;
  int64_t room_;
  KvPool pool_;
  VerifiedSteps steps_;
  int64_t restart_;
  std::vector<int64_t> tokens_;
  const int64_t prompt_;
  GenerateResult result_;
};

}  // namespace

bool guesses(const Call& call) {
  return call.config.prompt_lookup_num_tokens.has_value() || call.arguments.assistant != nullptr;
}

GenerateResult generate_guessed(const Call& call) { return GuessedText(call).run(); }

}  // namespace hotswap::generation
