#include "hotswap/engine/row_sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "hotswap/base/error.h"
#include "hotswap/engine/argmax_temperature.h"

namespace hotswap {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr size_t kLikely = 256;  // candidates that are sorted first: they nearly always hold top_p of the probability

void require_setting(bool holds, const char* wanted, const char* name, double got) {
  if (holds) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(name, " ", wanted),
               .got = cat(got),
               .next = cat("change ", name)});
}

struct Candidate {
  int64_t id;
  float score;
};

bool better(const Candidate& a, const Candidate& b) { return a.score != b.score ? a.score > b.score : a.id < b.id; }

// The `count` best of them, best first.
void keep_best(std::vector<Candidate>& all, size_t count) {
  if (count < all.size()) {
    std::nth_element(all.begin(), all.begin() + static_cast<ptrdiff_t>(count), all.end(), better);
    all.resize(count);
  }
  std::sort(all.begin(), all.end(), better);
}

// Of candidates, best first: the fewest that have the weight in total. None where all have less.
std::optional<size_t> fewest(const std::vector<Candidate>& sorted, float best, int64_t weight) {
  int64_t sum = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    sum += draw_weight(sorted[i].score - best);
    if (sum >= weight) return i + 1;
  }
  return std::nullopt;
}

void keep_nucleus(std::vector<Candidate>& all, float best, double top_p) {
  int64_t total = 0;
  for (const Candidate& c : all) total += draw_weight(c.score - best);
  const int64_t weight = nucleus_weight(total, top_p);
  for (size_t count = kLikely;; count *= 16) {
    std::vector<Candidate> likely = all;
    keep_best(likely, count);
    const auto kept = fewest(likely, best, weight);
    if (!kept && likely.size() < all.size()) continue;
    likely.resize(kept.value_or(likely.size()));
    all = std::move(likely);
    return;
  }
}

bool is_set(std::span<const int32_t> words, size_t id) {
  return (static_cast<uint32_t>(words[id / 32]) >> (id % 32) & 1) != 0;
}

void keep_allowed(std::vector<float>& scores, TokenConstraint& constraint) {
  const auto vocab = static_cast<int64_t>(scores.size());
  std::vector<int32_t> words(static_cast<size_t>(constraint_words(vocab)));
  write_allowed(constraint, vocab, words);
  for (size_t id = 0; id < scores.size(); ++id) {
    if (!is_set(words, id)) scores[id] = kNever;
  }
}

}  // namespace

void write_allowed(TokenConstraint& constraint, int64_t vocab, std::span<int32_t> words) {
  constraint.allowed(words);
  const size_t whole = static_cast<size_t>(vocab) / 32;
  bool any =
      std::any_of(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(whole), [](int32_t w) { return w; });
  for (size_t id = whole * 32; id < static_cast<size_t>(vocab); ++id) any = any || is_set(words, id);
  if (any) return;
  throw Error({.kind = ErrorKind::kInternal,
               .wanted = "a grammar that allows some token to come next",
               .got = "none",
               .next = "this is a fault of hotswap: please report it, with the request"});
}

bool RowSampling::is_argmax() const {
  return temperature < kArgmaxTemperature && repetition_penalty == 1 && presence_penalty == 0 &&
         frequency_penalty == 0 && logit_bias.empty() && (min_new_tokens == 0 || ends.empty()) && !logprobs;
}

RowSampler::RowSampler(RowSampling settings, int64_t vocab) : settings_(std::move(settings)) {
  const RowSampling& s = settings_;
  require_setting(s.temperature >= 0 && std::isfinite(s.temperature), "of 0 or more", "temperature", s.temperature);
  require_setting(s.top_k >= 0, "of 0 (off) or more", "top_k", static_cast<double>(s.top_k));
  require_setting(s.top_p > 0 && s.top_p <= 1, "in (0, 1]", "top_p", s.top_p);
  require_setting(s.min_p >= 0 && s.min_p <= 1, "in [0, 1]", "min_p", s.min_p);
  require_setting(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty), "above 0", "repetition_penalty",
                  s.repetition_penalty);
  require_setting(std::isfinite(s.presence_penalty), "as a finite number", "presence_penalty", s.presence_penalty);
  require_setting(std::isfinite(s.frequency_penalty), "as a finite number", "frequency_penalty", s.frequency_penalty);
  require_setting(s.min_new_tokens >= 0, "of 0 or more", "min_tokens", static_cast<double>(s.min_new_tokens));
  for (const auto& [id, bias] : s.logit_bias) {
    require_setting(id >= 0 && id < vocab, "with ids of the vocabulary", "logit_bias", static_cast<double>(id));
    require_setting(std::isfinite(bias), "with finite values", "logit_bias", bias);
  }
}

std::vector<float> RowSampler::adjusted(std::span<const float> logits, std::span<const int64_t> tokens,
                                        int64_t prompt) const {
  const RowSampling& s = settings_;
  std::vector<float> scores(logits.begin(), logits.end());
  const auto vocab = static_cast<int64_t>(scores.size());
  if (s.repetition_penalty != 1 || s.presence_penalty != 0 || s.frequency_penalty != 0) {
    std::unordered_map<int64_t, int64_t> made;  // of each token so far: how often it is a new one
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < vocab) made[tokens[i]] += static_cast<int64_t>(i) >= prompt ? 1 : 0;
    }
    for (const auto& [id, times] : made) {
      float& score = scores[id];
      score = static_cast<float>(score < 0 ? score * s.repetition_penalty : score / s.repetition_penalty);
      if (times > 0) {
        score -= static_cast<float>(s.presence_penalty + s.frequency_penalty * static_cast<double>(times));
      }
    }
  }
  for (const auto& [id, bias] : s.logit_bias) scores[id] += static_cast<float>(bias);
  return scores;
}

// Where something else is left: a grammar that must end here does.
void RowSampler::suppress_ends(std::vector<float>& scores) const {
  std::vector<float> others = scores;
  for (const int64_t id : settings_.ends) {
    if (id >= 0 && id < static_cast<int64_t>(others.size())) others[id] = kNever;
  }
  if (std::any_of(others.begin(), others.end(), [](float score) { return score > kNever; })) scores = std::move(others);
}

int64_t RowSampler::draw(std::vector<float>& scores, int64_t position) const {
  const RowSampling& s = settings_;
  const auto first = std::max_element(scores.begin(), scores.end());
  if (s.temperature < kArgmaxTemperature) return first - scores.begin();
  const auto scale = static_cast<float>(1 / s.temperature);
  const float best = *first * scale, least = s.min_p > 0 ? best + static_cast<float>(std::log(s.min_p)) : kNever;
  std::vector<Candidate> all;
  all.reserve(scores.size());
  for (size_t id = 0; id < scores.size(); ++id) {
    const float score = scores[id] * scale;
    if (score > kNever && score >= least) all.push_back({static_cast<int64_t>(id), score});
  }
  if (s.top_k > 0) keep_best(all, static_cast<size_t>(s.top_k));
  if (s.top_p < 1) keep_nucleus(all, best, s.top_p);
  if (s.top_k > 0 || s.top_p < 1) {
    std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  }
  std::vector<int64_t> sums(all.size());
  int64_t sum = 0;
  for (size_t i = 0; i < all.size(); ++i) sums[i] = sum += draw_weight(all[i].score - best);
  if (sum == 0) return first - scores.begin();
  const double uniform = uniform_draw(s.seed, static_cast<uint64_t>(position));
  const auto point = std::min(static_cast<int64_t>(static_cast<double>(sum) * uniform), sum - 1);
  return all[std::upper_bound(sums.begin(), sums.end(), point) - sums.begin()].id;
}

SampledToken RowSampler::next(std::span<const float> logits, std::span<const int64_t> tokens, int64_t prompt_length,
                              TokenConstraint* constraint) const {
  std::vector<float> scores = adjusted(logits, tokens, prompt_length);
  if (constraint != nullptr) keep_allowed(scores, *constraint);
  if (static_cast<int64_t>(tokens.size()) - prompt_length < settings_.min_new_tokens) suppress_ends(scores);
  SampledToken out{.id = draw(scores, static_cast<int64_t>(tokens.size())), .logprobs = std::nullopt};
  if (settings_.logprobs) out.logprobs = logprobs_of(logits, out.id, *settings_.logprobs);
  return out;
}

TokenLogprobs logprobs_of(std::span<const float> logits, int64_t id, int64_t top) {
  const float best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - best));
  const double log_sum = best + std::log(sum);
  TokenLogprobs out{.logprob = logits[id] - log_sum, .top = {}};
  if (top == 0) return out;
  std::vector<Candidate> all(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) all[i] = {static_cast<int64_t>(i), logits[i]};
  keep_best(all, static_cast<size_t>(top));
  for (const Candidate& c : all) out.top.emplace_back(c.id, c.score - log_sum);
  return out;
}

int64_t draw_weight(float score_less_best) {
  if (std::isnan(score_less_best)) return 0;
  return static_cast<int64_t>(std::nearbyint(std::exp(static_cast<double>(score_less_best)) * kMaxWeight));
}

int64_t nucleus_weight(int64_t total, double top_p) {
  const auto part = static_cast<int64_t>(std::ceil(static_cast<double>(total) * top_p));
  return std::max<int64_t>(1, std::min(part, total));
}

double uniform_draw(uint64_t seed, uint64_t position) {
  std::array<uint32_t, 4> counter = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  const uint64_t bits = (uint64_t{counter[0]} << 32 | counter[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace hotswap
