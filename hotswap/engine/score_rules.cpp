#include "hotswap/engine/score_rules.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "hotswap/base/error.h"
#include "hotswap/engine/device_copy.h"

namespace hotswap {
namespace {

constexpr double kForbidden = -std::numeric_limits<double>::infinity();

void require_rule(bool holds, const char* expected, const std::string& got) {
  if (holds) return;
  throw Error(
      {.kind = ErrorKind::kInvalidArgument, .wanted = expected, .got = got, .next = "change the generation settings"});
}

std::vector<int64_t> checked_ids(const std::optional<std::vector<int64_t>>& ids, const char* name) {
  if (!ids) return {};
  const bool valid = std::all_of(ids->begin(), ids->end(), [](int64_t id) { return id >= 0; });
  require_rule(valid, "token ids of 0 or more", cat(name, " = ", join(*ids)));
  return *ids;
}

void require_within(const Tensor& scores, const std::vector<int64_t>& ids) {
  for (const int64_t id : ids) {
    require_rule(id < scores.size(1), "token ids of the vocabulary", cat(id, " of ", scores.size(1)));
  }
}

// The same number in these columns.
Tensor filled(const Tensor& scores, const std::vector<int64_t>& ids, double value) {
  if (ids.empty()) return scores;
  require_within(scores, ids);
  return scores.index_fill(1, to_device(ids, at::kLong, scores.device()), value);
}

Tensor forced(const Tensor& scores, const std::vector<int64_t>& ids) {
  return filled(at::full_like(scores, kForbidden), ids, 0);
}

std::vector<std::vector<int64_t>> host_rows(const Tensor& ids) {
  const Tensor here = ids.to(at::kCPU).contiguous();
  std::vector<std::vector<int64_t>> rows;
  for (int64_t row = 0; row < here.size(0); ++row) {
    const int64_t* first = here.const_data_ptr<int64_t>() + row * here.size(1);
    rows.emplace_back(first, first + here.size(1));
  }
  return rows;
}

}  // namespace

Tensor penalised(const Tensor& scores, const Tensor& ids, double penalty) {
  const Tensor seen = at::gather(scores, 1, ids);
  return at::scatter(scores, 1, ids, at::where(seen < 0, seen * penalty, seen / penalty));
}

ScoreRules::ScoreRules(const GenerationConfig& c)
    : removes_invalid_(c.remove_invalid_values.value_or(false)),
      prompt_penalty_(c.encoder_repetition_penalty.value_or(1)),
      prompt_ngram_(c.encoder_no_repeat_ngram_size.value_or(0)),
      last_(c.max_new_tokens.value_or(0) - 1),
      eos_(c.eos_token_id.value_or(std::vector<int64_t>())),
      suppressed_(checked_ids(c.suppress_tokens, "suppress_tokens")),
      suppressed_first_(checked_ids(c.begin_suppress_tokens, "begin_suppress_tokens")),
      forced_last_(checked_ids(c.forced_eos_token_id, "forced_eos_token_id")),
      forced_first_(c.forced_bos_token_id),
      decay_(c.exponential_decay_length_penalty) {
  require_rule(prompt_penalty_ > 0 && std::isfinite(prompt_penalty_), "an encoder_repetition_penalty above 0",
               cat(prompt_penalty_));
  require_rule(prompt_ngram_ >= 0, "an encoder_no_repeat_ngram_size of 0 (off) or more", cat(prompt_ngram_));
  require_rule(forced_first_.value_or(0) >= 0, "a forced_bos_token_id of 0 or more", cat(forced_first_.value_or(0)));
  const auto check_run = [](const std::vector<int64_t>& run, const char* name) {
    require_rule(!run.empty(), "runs of at least one token", cat("an empty one in ", name));
    checked_ids(run, name);
  };
  for (const auto& [run, bias] : c.sequence_bias.value_or(std::vector<Run>())) {
    check_run(run, "sequence_bias");
    biases_.emplace_back(run, bias);
  }
  for (const auto& run : c.bad_words_ids.value_or(std::vector<std::vector<int64_t>>())) {
    check_run(run, "bad_words_ids");
    const bool ends = run.size() == 1 && std::find(eos_.begin(), eos_.end(), run[0]) != eos_.end();
    if (!ends) bad_words_.emplace_back(run, kForbidden);
  }
  any_ = removes_invalid_ || prompt_penalty_ != 1 || prompt_ngram_ > 0 || !suppressed_.empty() ||
         !suppressed_first_.empty() || !forced_last_.empty() || forced_first_ || (decay_ && !eos_.empty()) ||
         !biases_.empty() || !bad_words_.empty();
}

// The run's last token, where the others of it are the last of the text.
Tensor ScoreRules::biased(const Tensor& scores, const Tensor& so_far, const std::vector<Run>& runs) const {
  if (runs.empty()) return scores;
  const Tensor bias = at::zeros_like(scores, at::TensorOptions().device(at::kCPU));  // [batch, vocab]
  const auto rows = host_rows(so_far);
  const auto sums = bias.mutable_data_ptr<float>();
  for (const auto& [run, value] : runs) {
    require_within(scores, run);
    for (size_t row = 0; row < rows.size(); ++row) {
      const auto& text = rows[row];
      if (run.size() > 1 &&
          (run.size() > text.size() ||
           !std::equal(run.begin(), run.end() - 1, text.end() - static_cast<ptrdiff_t>(run.size() - 1)))) {
        continue;
      }
      sums[static_cast<int64_t>(row) * scores.size(1) + run.back()] += static_cast<float>(value);
    }
  }
  return scores + bias.to(scores.device());
}

Tensor ScoreRules::first(const Tensor& scores, const RuledText& text) const {
  const Tensor out = biased(scores, text.so_far, biases_);
  return prompt_penalty_ == 1 ? out : penalised(out, text.so_far.narrow(1, 0, text.prompt()), 1 / prompt_penalty_);
}

Tensor ScoreRules::second(const Tensor& scores, const RuledText& text) const {
  Tensor out = scores;
  if (prompt_ngram_ > 0 && text.prompt() >= prompt_ngram_) {
    std::vector<Tensor> parts;
    const auto rows = host_rows(text.so_far);
    for (size_t row = 0; row < rows.size(); ++row) {
      std::vector<int64_t> banned;
      const auto tail = rows[row].end() - (prompt_ngram_ - 1);
      for (auto at = rows[row].begin(); at + prompt_ngram_ <= rows[row].begin() + text.prompt(); ++at) {
        if (std::equal(tail, rows[row].end(), at)) banned.push_back(*(at + prompt_ngram_ - 1));
      }
      parts.push_back(filled(out.narrow(0, static_cast<int64_t>(row), 1), banned, kForbidden));
    }
    out = at::cat(parts, 0);
  }
  return biased(out, text.so_far, bad_words_);
}

Tensor ScoreRules::ends_likelier(const Tensor& scores, int64_t made) const {
  if (!decay_ || eos_.empty() || made <= decay_->first) return scores;
  require_within(scores, eos_);
  const Tensor index = to_device(eos_, at::kLong, scores.device());
  const Tensor likelier =
      scores.index_select(1, index).abs() * (std::pow(decay_->second, static_cast<double>(made - decay_->first)) - 1);
  return scores + at::zeros_like(scores).index_copy(1, index, likelier);
}

Tensor ScoreRules::third(const Tensor& scores, const RuledText& text) const {
  Tensor out = scores;
  if (forced_first_ && text.so_far.size(1) == 1) out = forced(out, {*forced_first_});
  if (!forced_last_.empty() && text.made == last_) out = forced(out, forced_last_);
  if (removes_invalid_) out = at::nan_to_num(out);
  out = filled(ends_likelier(out, text.made), suppressed_, kForbidden);
  const int64_t begin = text.prompt() == 1 && forced_first_ ? 1 : 0;
  return text.made == begin ? filled(out, suppressed_first_, kForbidden) : out;
}

}  // namespace hotswap
