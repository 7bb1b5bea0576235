#include "hotswap/engine/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/le.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/nansum.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "hotswap/base/error.h"
#include "hotswap/engine/argmax_temperature.h"

namespace hotswap {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

void require(bool holds, const char* wanted, const char* name, double got) {
  if (!holds)
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = wanted,
                 .got = cat(name, " = ", got),
                 .next = "change the generation settings"});
}

// logs: [rows, n] normalised -> [rows, 1]
Tensor entropy(const Tensor& logs) {
  constexpr double kLowest = std::numeric_limits<float>::lowest();  // times a probability of 0 it is 0
  return at::neg(at::mul(at::clamp_min(logs, kLowest), at::exp(logs)).sum(-1, /*keepdim=*/true));
}

// Without tokens less probable than `least`, [1 or rows, 1]; the best stays.
Tensor above(const Tensor& scores, const Tensor& least) {
  const Tensor small = at::lt(at::softmax(scores, -1), least);
  const Tensor best = scores.amax(-1, /*keepdim=*/true);
  return scores.masked_fill(at::logical_and(small, at::lt(scores, best)), kMinusInfinity);
}

// The tokens whose surprise is nearest to what is expected, until their probabilities sum to `mass`.
Tensor typical(const Tensor& scores, double mass) {
  const Tensor logs = at::log_softmax(scores, -1), p = at::exp(logs);
  const Tensor expected = at::neg(at::nansum(at::mul(logs, p), -1, /*keepdim=*/true));
  const auto [far, order] = at::sort(at::abs(at::sub(at::neg(logs), expected)), /*dim=*/-1, /*descending=*/false);
  const Tensor sums = at::cumsum(at::softmax(at::gather(scores, 1, order), -1), -1);
  const Tensor last = at::clamp_max(at::lt(sums, mass).sum(1, /*keepdim=*/true), scores.size(1) - 1);
  Tensor drop = at::gt(far, at::gather(far, 1, last));
  drop.narrow(1, 0, 1).fill_(false);
  return scores.masked_fill(at::scatter(drop, 1, order, drop), kMinusInfinity);
}

}  // namespace

Sampler::Sampler(const GenerationConfig& c, at::Device device, Largest largest)
    : rules_(c),
      largest_(std::move(largest)),
      do_sample_(c.do_sample.value_or(false)),
      renormalizes_(c.renormalize_logits.value_or(false)),
      temperature_(c.temperature.value_or(1.0)),
      top_p_(c.top_p.value_or(1.0)),
      min_p_(c.min_p.value_or(0.0)),
      typical_p_(c.typical_p.value_or(1.0)),
      epsilon_(c.epsilon_cutoff.value_or(0.0)),
      eta_(c.eta_cutoff.value_or(0.0)),
      top_h_(c.top_h.value_or(0.0)),
      repetition_penalty_(c.repetition_penalty.value_or(1.0)),
      top_k_(c.top_k.value_or(50)),  // transformers' default where sampling is on
      ngram_(c.no_repeat_ngram_size.value_or(0)),
      least_(c.min_new_tokens.value_or(0)),
      ends_(c.eos_token_id.value_or(std::vector<int64_t>())) {
  if (!largest_) largest_ = [](const Tensor& scores) { return at::argmax(scores, -1); };
  require(!do_sample_ || (temperature_ > 0 && std::isfinite(temperature_)),
          "a temperature above 0 (for greedy decoding set do_sample = false)", "temperature", temperature_);
  if (temperature_ < kArgmaxTemperature) do_sample_ = false;
  require(top_p_ > 0 && top_p_ <= 1, "a top_p in (0, 1]", "top_p", top_p_);
  require(min_p_ >= 0 && min_p_ <= 1, "a min_p in [0, 1]", "min_p", min_p_);
  require(typical_p_ > 0 && typical_p_ <= 1, "a typical_p in (0, 1]", "typical_p", typical_p_);
  require(epsilon_ >= 0 && epsilon_ < 1, "an epsilon_cutoff in [0, 1)", "epsilon_cutoff", epsilon_);
  require(eta_ >= 0 && eta_ < 1, "an eta_cutoff in [0, 1)", "eta_cutoff", eta_);
  require(top_h_ >= 0 && top_h_ <= 1, "a top_h in (0, 1]", "top_h", top_h_);
  require(top_k_ >= 0, "a top_k of 0 (off) or more", "top_k", static_cast<double>(top_k_));
  require(repetition_penalty_ > 0 && std::isfinite(repetition_penalty_), "a repetition_penalty above 0",
          "repetition_penalty", repetition_penalty_);
  require(ngram_ >= 0, "a no_repeat_ngram_size of 0 (off) or more", "no_repeat_ngram_size",
          static_cast<double>(ngram_));
  require(least_ >= 0, "min_new_tokens of 0 or more", "min_new_tokens", static_cast<double>(least_));
  if (least_ > 0 && !ends_.empty()) made_ = at::zeros({1}, at::TensorOptions(at::kLong).device(device));
  if (!c.seed) return;
  generator_ = device.is_cpu() ? at::make_generator<at::CPUGeneratorImpl>(*c.seed)
                               : at::globalContext().defaultGenerator(device).clone();
  generator_->set_current_seed(*c.seed);
}

Tensor Sampler::next(const Tensor& logits, const Tensor& so_far, const Tensor& length, const Tensor& made) {
  return choose(processed(logits, so_far, length, made));
}

Tensor Sampler::processed(const Tensor& logits, const Tensor& so_far, const Tensor& length, const Tensor& made) {
  if (is_argmax()) return logits;  // rounding to float32 keeps the order
  Tensor scores = logits.to(at::kFloat);
  const std::optional<RuledText> text = rules_.any() ? std::optional(text_of(so_far, made)) : std::nullopt;
  if (text) scores = rules_.first(scores, *text);
  if (repetition_penalty_ != 1) scores = penalised(scores, so_far, repetition_penalty_);
  if (ngram_ > 0 && so_far.size(1) >= ngram_) scores = without_repeats(scores, so_far, length);
  if (text) scores = rules_.second(scores, *text);
  if (made_.defined()) scores = without_ends(scores, made);
  if (text) scores = rules_.third(scores, *text);
  return renormalizes_ && !do_sample_ ? at::log_softmax(scores, -1) : scores;
}

RuledText Sampler::text_of(const Tensor& so_far, const Tensor& made) {
  if (!made.defined()) return {so_far, calls_++};
  return {so_far, made.select(0, 0).item<int64_t>()};
}

Tensor Sampler::choose(const Tensor& scores) {
  if (!do_sample_) return largest_(scores);
  return at::multinomial(at::softmax(warp(scores), -1), 1, /*replacement=*/false, generator_).squeeze(1);
}

// What followed each earlier run of ngram - 1 tokens that are the last ones again.
Tensor Sampler::without_repeats(const Tensor& scores, const Tensor& so_far, const Tensor& length) const {
  const int64_t runs = so_far.size(1) - ngram_ + 1;
  const Tensor said = length.defined() ? length : at::full({1}, so_far.size(1), so_far.options());
  // Of a run the last token was said; so the run that would now come is none of them.
  Tensor again = at::lt(at::arange(runs, so_far.options()), at::sub(said, ngram_ - 1)).unsqueeze(0);  // [1, runs]
  for (int64_t i = 0; i < ngram_ - 1; ++i) {
    const Tensor last = so_far.index_select(1, at::add(said, i - ngram_ + 1).clamp_min(0));  // [batch, 1]
    again = at::logical_and(again, at::eq(so_far.narrow(1, i, runs), last));
  }
  const Tensor follows = so_far.narrow(1, ngram_ - 1, runs), times = again.to(at::kInt).expand(follows.sizes());
  const Tensor banned = at::scatter_add(at::zeros(scores.sizes(), times.options()), 1, follows, times);
  return scores.masked_fill(at::gt(banned, 0), kMinusInfinity);
}

Tensor Sampler::without_ends(const Tensor& scores, const Tensor& made) {
  if (!is_end_.defined()) {
    Tensor is_end = at::zeros({scores.size(1)}, at::TensorOptions(at::kBool));
    for (const int64_t id : ends_) {
      if (id >= 0 && id < scores.size(1)) is_end.mutable_data_ptr<bool>()[id] = true;
    }
    is_end_ = is_end.to(scores.device());
  }
  if (made.defined())
    return scores.masked_fill(at::logical_and(is_end_, at::lt(made.unsqueeze(1), least_)), kMinusInfinity);
  const Tensor early = at::logical_and(is_end_, at::lt(made_, least_));
  made_.add_(1);  // in place: a graph does so again
  return scores.masked_fill(early, kMinusInfinity);
}

Tensor Sampler::warp(Tensor scores) const {
  if (temperature_ != 1) scores = at::div(scores, temperature_);
  if (top_h_ > 0) scores = of_entropy(scores);
  if (top_k_ > 0 && top_k_ < scores.size(1)) {
    const Tensor best = std::get<0>(at::topk(scores, top_k_));  // [batch, top_k], descending
    scores = scores.masked_fill(at::lt(scores, best.narrow(1, top_k_ - 1, 1)), kMinusInfinity);
  }
  if (top_p_ < 1) {
    const auto [sorted, order] = at::sort(scores, /*dim=*/-1, /*descending=*/false);
    Tensor drop = at::le(at::cumsum(at::softmax(sorted, -1), -1), 1 - top_p_);  // [batch, vocab], least likely first
    drop.narrow(1, drop.size(1) - 1, 1).fill_(false);                           // the best token always stays
    scores = scores.masked_fill(at::scatter(drop, 1, order, drop), kMinusInfinity);
  }
  if (min_p_ > 0) {
    const Tensor p = at::softmax(scores, -1);
    scores = scores.masked_fill(at::lt(p, at::mul(p.amax(-1, /*keepdim=*/true), min_p_)), kMinusInfinity);
  }
  if (typical_p_ < 1) scores = typical(scores, typical_p_);
  if (epsilon_ > 0) scores = above(scores, at::full({1, 1}, epsilon_, scores.options()));
  if (eta_ > 0) {
    const Tensor least = at::mul(at::exp(at::neg(entropy(at::log_softmax(scores, -1)))), std::sqrt(eta_));
    scores = above(scores, at::clamp_max(least, eta_));
  }
  return renormalizes_ ? at::log_softmax(scores, -1) : scores;
}

// Of the most probable tokens as many as have that share of their entropy.
Tensor Sampler::of_entropy(Tensor scores) const {
  constexpr int64_t kLooksAt = 100;  // as transformers
  const auto [best, index] = at::topk(scores, std::min(kLooksAt, scores.size(1)));
  const Tensor logs = at::log_softmax(best, -1), p = at::exp(logs);
  const Tensor sums = at::cumsum(at::neg(at::mul(p, at::log(p))), -1);
  Tensor keep = at::le(sums, at::mul(entropy(logs), top_h_));
  keep.narrow(1, 0, 1).fill_(true);
  const Tensor kept = at::scatter(at::zeros(scores.sizes(), keep.options()), 1, index, keep);
  return scores.masked_fill(at::logical_not(kept), kMinusInfinity);
}

}  // namespace hotswap
