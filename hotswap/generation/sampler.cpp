#include "hotswap/generation/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/div.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/le.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

void require(bool holds, const char* wanted, const char* name, double got) {
  if (!holds) throw Error({.wanted = wanted, .got = cat(name, " = ", got), .next = "change the generation settings"});
}

}  // namespace

Sampler::Sampler(const GenerationConfig& c, at::Device device)
    : do_sample_(c.do_sample.value_or(false)),
      temperature_(c.temperature.value_or(1.0)),
      top_p_(c.top_p.value_or(1.0)),
      repetition_penalty_(c.repetition_penalty.value_or(1.0)),
      top_k_(c.top_k.value_or(50)) {  // transformers' default where sampling is on
  require(!do_sample_ || (temperature_ > 0 && std::isfinite(temperature_)),
          "a temperature above 0 (for greedy decoding set do_sample = false)", "temperature", temperature_);
  require(top_p_ > 0 && top_p_ <= 1, "a top_p in (0, 1]", "top_p", top_p_);
  require(top_k_ >= 0, "a top_k of 0 (off) or more", "top_k", static_cast<double>(top_k_));
  require(repetition_penalty_ > 0 && std::isfinite(repetition_penalty_), "a repetition_penalty above 0",
          "repetition_penalty", repetition_penalty_);
  if (!c.seed) return;
  generator_ = device.is_cpu() ? at::make_generator<at::CPUGeneratorImpl>(*c.seed)
                               : at::globalContext().defaultGenerator(device).clone();
  generator_->set_current_seed(*c.seed);
}

Tensor Sampler::next(const Tensor& logits, const Tensor& so_far) {
  if (!do_sample_ && repetition_penalty_ == 1) return at::argmax(logits, -1);  // rounding to float32 keeps the order
  Tensor scores = logits.to(at::kFloat);
  if (repetition_penalty_ != 1) {
    const Tensor seen = at::gather(scores, 1, so_far);
    const Tensor penalised =
        at::where(at::lt(seen, 0), at::mul(seen, repetition_penalty_), at::div(seen, repetition_penalty_));
    scores = at::scatter(scores, 1, so_far, penalised);
  }
  if (!do_sample_) return at::argmax(scores, -1);
  return at::multinomial(at::softmax(warp(scores), -1), 1, /*replacement=*/false, generator_).squeeze(1);
}

Tensor Sampler::warp(Tensor scores) const {
  if (temperature_ != 1) scores = at::div(scores, temperature_);
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
  return scores;
}

}  // namespace hotswap
