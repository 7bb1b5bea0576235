#include "hotswap/engine/batch_sampler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "hotswap/engine/argmax_temperature.h"
#include "hotswap/engine/device_copy.h"

namespace hotswap {
namespace {

constexpr double kExcluded = -std::numeric_limits<double>::infinity();
constexpr int64_t kScoresAtOnce = int64_t{1} << 23;  // a draw has several tensors of eight bytes a score
constexpr int kKeyBits = 32;

using Rows = TokenCounts::Rows;

// How tokens are chosen. Rows of one kind are drawn in one call, so that a row runs the same whatever the others are.
enum class DrawKind { kArgmax, kOfAll, kOfTopK, kOfTopP };
constexpr DrawKind kDraws[] = {DrawKind::kArgmax, DrawKind::kOfAll, DrawKind::kOfTopK, DrawKind::kOfTopP};

DrawKind draw_of(const RowSampling& s, int64_t vocab) {
  if (s.temperature < kArgmaxTemperature) return DrawKind::kArgmax;
  if (s.top_k > 0 && s.top_k < vocab) return DrawKind::kOfTopK;  // and top_p of those
  return s.top_p < 1 ? DrawKind::kOfTopP : DrawKind::kOfAll;
}

// A number of each row, on the scores' device: [rows, 1] float64.
template <typename Number>
Tensor column(const Rows& rows, const Tensor& scores, const Number& number) {
  std::vector<int64_t> bits;
  for (const DrawRow* row : rows) bits.push_back(std::bit_cast<int64_t>(static_cast<double>(number(*row))));
  return to_device(bits, at::kLong, scores.device()).view(at::kDouble).unsqueeze(1);
}

// Ids of rows as elements of the scores.
struct Elements {
  std::vector<int64_t> flat;
  bool add(size_t row, int64_t id, const Tensor& scores) {
    const bool is_one = id >= 0 && id < scores.size(1);
    if (is_one) flat.push_back(static_cast<int64_t>(row) * scores.size(1) + id);
    return is_one;
  }
  Tensor on(const Tensor& scores) const { return to_device(flat, at::kLong, scores.device()); }
};

Tensor biased(const Rows& rows, const Tensor& scores) {
  Elements elements;
  std::vector<int64_t> bits;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const auto& [id, bias] : rows[i]->settings->logit_bias) {
      if (elements.add(i, id, scores)) bits.push_back(std::bit_cast<int64_t>(bias));
    }
  }
  if (bits.empty()) return scores;
  const Tensor biases = to_device(bits, at::kLong, scores.device()).view(at::kDouble).to(at::kFloat);
  return scores.reshape({-1}).index_add(0, elements.on(scores), biases).view(scores.sizes());
}

// Where a sequence may not end yet, and something else is left.
Tensor without_ends(const Rows& rows, const Tensor& scores) {
  Elements elements;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i]->length - rows[i]->prompt_length >= rows[i]->settings->min_new_tokens) continue;
    for (const int64_t id : rows[i]->settings->ends) elements.add(i, id, scores);
  }
  if (elements.flat.empty()) return scores;
  const Tensor others = scores.reshape({-1}).index_fill(0, elements.on(scores), kExcluded).view(scores.sizes());
  return at::where(others.amax(1, /*keepdim=*/true) > kExcluded, others, scores);
}

// As draw_weight(): [rows, n] float32 -> int64. best: [rows, 1]
Tensor weights_of(const Tensor& scores, const Tensor& best) {
  const Tensor exponent = at::nan_to_num(scores - best, /*nan=*/kExcluded).to(at::kDouble);
  return at::exp(exponent).mul(kMaxWeight).round().to(at::kLong);
}

// As nucleus_weight(): [rows, 1] int64.
Tensor least_weights(const Tensor& total, const Tensor& top_p) {
  return at::minimum(total.to(at::kDouble).mul(top_p).ceil().to(at::kLong), total).clamp_min(1);
}

// What is kept of a row: scores above `least`, and the first `equal` of those that are equal to it.
struct Cut {
  Tensor least;  // [rows, 1] float32
  Tensor equal;  // [rows, 1] int64
};

Tensor kept(const Tensor& weights, const Tensor& scores, const Cut& cut) {
  const Tensor is_least = scores == cut.least;
  const Tensor first = at::logical_and(is_least, is_least.cumsum(1, at::kLong) <= cut.equal);
  return at::where(at::logical_or(scores > cut.least, first), weights, 0);
}

// Of the top_k best ones of each row the fewest whose weights add up to top_p. smallest: that min_p keeps, [rows, 1]
Cut best_ones(const Rows& rows, const Tensor& scores, const Tensor& best, const Tensor& smallest, const Tensor& top_p) {
  int64_t most = 0;
  for (const DrawRow* row : rows) most = std::max(most, row->settings->top_k);
  const Tensor sorted = std::get<0>(at::topk(scores, most, /*dim=*/1));  // [rows, most], falling
  const Tensor top_k = column(rows, scores, [](const DrawRow& row) { return row.settings->top_k; });
  const Tensor stays = at::logical_and(at::arange(most, top_k.options()) < top_k, sorted >= smallest);
  const Tensor sums = at::where(stays, weights_of(sorted, best), 0).cumsum(1);
  const Tensor needed = least_weights(sums.narrow(1, most - 1, 1), top_p);
  const Tensor last = (sums < needed).sum(1, /*keepdim=*/true).clamp_max(most - 1);
  const Tensor least = sorted.gather(1, last);
  return {least, last + 1 - (sorted > least).sum(1, /*keepdim=*/true)};
}

// float32 as int32 in the same order, and back: it undoes itself.
Tensor in_order(const Tensor& bits) {
  return at::where(bits < 0, at::bitwise_xor(bits, std::numeric_limits<int32_t>::max()), bits);
}

// The fewest whose weights add up to top_p. The least of them is searched bit by bit: sorting all costs more.
Cut nucleus(const Tensor& scores, const Tensor& weights, const Tensor& top_p) {
  const Tensor keys = in_order((scores + 0.0).view(at::kInt));  // + 0: -0 becomes the 0 that it is equal to
  const auto weight_where = [&](const Tensor& is_one) {
    return at::where(is_one, weights, 0).sum(1, /*keepdim=*/true);
  };
  const Tensor needed = least_weights(weights.sum(1, /*keepdim=*/true), top_p);
  Tensor low = at::full({scores.size(0), 1}, std::numeric_limits<int32_t>::min(), keys.options());
  Tensor high = keys.amax(1, /*keepdim=*/true);
  for (int bit = 0; bit < kKeyBits; ++bit) {
    const Tensor middle = at::bitwise_or(low, high) - at::bitwise_xor(low, high).bitwise_right_shift(1);  // rounded up
    const Tensor enough = weight_where(keys >= middle) >= needed;
    low = at::where(enough, middle, low);
    high = at::where(enough, high, middle - 1);
  }
  const Tensor one = at::where(keys == low, weights, 0).amax(1, /*keepdim=*/true).clamp_min(1);
  const Tensor missing = needed - weight_where(keys > low);
  return {in_order(low).view(at::kFloat), at::div(missing + one - 1, one, "floor")};
}

// scores: [rows, vocab] float32, of rows that are drawn alike -> [rows] int64
Tensor drawn(DrawKind draw, const Rows& rows, const Tensor& scores) {
  if (draw == DrawKind::kArgmax) return at::argmax(scores, 1);
  const auto number = [&](const auto& of) { return column(rows, scores, of); };
  const Tensor scale = number([](const DrawRow& row) { return 1 / row.settings->temperature; }).to(at::kFloat);
  const Tensor scaled = scores * scale, best = scaled.amax(1, /*keepdim=*/true);
  const Tensor log_min_p = number([](const DrawRow& row) { return std::log(row.settings->min_p); }).to(at::kFloat);
  const Tensor smallest = best + log_min_p;  // of min_p 0: minus infinity
  Tensor weights = at::where(scaled >= smallest, weights_of(scaled, best), 0);
  const Tensor top_p = number([](const DrawRow& row) { return row.settings->top_p; });
  if (draw == DrawKind::kOfTopK) weights = kept(weights, scaled, best_ones(rows, scaled, best, smallest, top_p));
  if (draw == DrawKind::kOfTopP) weights = kept(weights, scaled, nucleus(scaled, weights, top_p));
  const Tensor sums = weights.cumsum(1), total = sums.narrow(1, sums.size(1) - 1, 1);
  const Tensor uniform =
      number([](const DrawRow& row) { return uniform_draw(row.settings->seed, static_cast<uint64_t>(row.length)); });
  const Tensor point = at::minimum(total.to(at::kDouble).mul(uniform).to(at::kLong), total - 1);  // [rows, 1]
  return at::searchsorted(sums, point, /*out_int32=*/false, /*right=*/true).squeeze(1);
}

// All that are no argmax: [rows, kSampleSettings] float64 on the scores' device.
Tensor sample_settings(const Rows& rows, at::Device device) {
  std::vector<int64_t> bits;
  for (const DrawRow* row : rows) {
    const RowSampling& s = *row->settings;
    const double uniform = uniform_draw(s.seed, static_cast<uint64_t>(row->length));
    for (const double x : {1 / s.temperature, static_cast<double>(s.top_k), s.top_p, std::log(s.min_p), uniform}) {
      bits.push_back(std::bit_cast<int64_t>(x));
    }
  }
  return to_device(bits, at::kLong, device).view(at::kDouble).view({-1, kSampleSettings});
}

// Those that are to be drawn alike, at most `at_once` of them in a call of next(rows, their scores).
template <class IsOne, class Next>
void draw_into(const Tensor& ids, const Rows& rows, const Tensor& scores, size_t at_once, const IsOne& is_one,
               const Next& next) {
  std::vector<int64_t> members;
  Rows own;
  const auto flush = [&] {
    if (own.empty()) return;
    if (own.size() == rows.size()) {
      Tensor(ids).copy_(next(own, scores));
    } else {
      const Tensor index = to_device(members, at::kLong, scores.device());
      Tensor(ids).index_copy_(0, index, next(own, scores.index_select(0, index)));
    }
    members.clear();
    own.clear();
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!is_one(*rows[i])) continue;
    members.push_back(static_cast<int64_t>(i));
    own.push_back(rows[i]);
    if (own.size() == at_once) flush();
  }
  flush();
}

// Those that are counted, and which of all they are.
struct Penalised {
  Rows rows;
  std::vector<int64_t> members;
};

bool is_penalised(const RowSampling& s) {
  return s.repetition_penalty != 1 || s.presence_penalty != 0 || s.frequency_penalty != 0;
}

Penalised penalised_of(const Rows& rows) {
  Penalised out;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!is_penalised(*rows[i]->settings)) continue;
    out.rows.push_back(rows[i]);
    out.members.push_back(static_cast<int64_t>(i));
  }
  return out;
}

bool changes_scores(const Rows& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const DrawRow* row) {
    const RowSampling& s = *row->settings;
    return is_penalised(s) || !s.logit_bias.empty() || row->length - row->prompt_length < s.min_new_tokens;
  });
}

// scores, counts: [rows, vocab]
Tensor less_likely(const Rows& rows, const Tensor& scores, const Tensor& counts) {
  const auto number = [&](const auto& of) { return column(rows, scores, of); };
  const Tensor repetition = number([](const DrawRow& row) { return row.settings->repetition_penalty; });
  const Tensor presence = number([](const DrawRow& row) { return row.settings->presence_penalty; });
  const Tensor frequency = number([](const DrawRow& row) { return row.settings->frequency_penalty; });
  const Tensor wide = scores.to(at::kDouble), times = counts.bitwise_right_shift(1);
  const Tensor repeated = at::where(scores < 0, wide * repetition, wide / repetition).to(at::kFloat);
  const Tensor again = at::where(times > 0, presence + frequency * times, 0.0).to(at::kFloat);
  return at::where(counts > 0, repeated - again, scores);
}

}  // namespace

Tensor BatchSampler::allowed_scores(const Rows& rows, const Tensor& scores, const Tensor& allowed) {
  if (!allowed.defined() || allowed.size(0) == 0) return scores;
  if (!bits_of_byte_.defined()) {
    const auto counted = [&](int64_t end) { return at::arange(end, at::TensorOptions(at::kInt)); };
    bits_of_byte_ = counted(256).unsqueeze(1).bitwise_right_shift(counted(8)).bitwise_and(1).to(at::kBool);
    bits_of_byte_ = bits_of_byte_.view(at::kLong).reshape({-1}).to(scores.device());
  }
  const Tensor bytes = copy_.to(scores.device(), allowed).view(at::kByte).reshape({-1}).to(at::kInt);
  const Tensor bits = bits_of_byte_.index_select(0, bytes).view(at::kBool).view({allowed.size(0), -1});
  const Tensor may = bits.narrow(1, 0, scores.size(1));
  std::vector<int64_t> own;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i]->constrained) own.push_back(static_cast<int64_t>(i));
  }
  if (own.size() == rows.size()) return at::where(may, scores, kExcluded);
  const Tensor index = to_device(own, at::kLong, scores.device());
  return scores.index_copy(0, index, at::where(may, scores.index_select(0, index), kExcluded));
}

Tensor BatchSampler::next(const std::vector<DrawRow>& draws, const Tensor& logits, const Tensor& allowed) {
  Rows rows;
  for (const DrawRow& row : draws) rows.push_back(&row);
  Tensor scores = logits, index;
  const Penalised penalised = penalised_of(rows);
  const bool by_head = head_ != nullptr && head_->sample();
  if (!by_head || changes_scores(rows)) scores = scores.to(at::kFloat);
  if (!penalised.rows.empty()) {
    index = to_device(penalised.members, at::kLong, logits.device());
    const Tensor counts = counts_.of(penalised.rows, scores.size(1), scores.device());
    scores = scores.index_copy(0, index, less_likely(penalised.rows, scores.index_select(0, index), counts));
  }
  scores = without_ends(rows, allowed_scores(rows, biased(rows, scores), allowed));
  const Tensor ids = at::empty({logits.size(0)}, logits.options().dtype(at::kLong));
  const auto all = rows.size();
  if (by_head) {
    const auto is_argmax = [](const DrawRow& row) { return row.settings->temperature < kArgmaxTemperature; };
    draw_into(ids, rows, scores, all, is_argmax, [&](const Rows&, const Tensor& part) { return head_->largest(part); });
    draw_into(ids, rows, scores, all, std::not_fn(is_argmax), [&](const Rows& own, const Tensor& part) {
      return head_->sample()(part, sample_settings(own, part.device()));
    });
  } else {
    const int64_t vocab = scores.size(1), at_once = std::max<int64_t>(1, kScoresAtOnce / vocab);
    for (const DrawKind draw : kDraws) {
      draw_into(
          ids, rows, scores, static_cast<size_t>(at_once),
          [&](const DrawRow& row) { return draw_of(*row.settings, vocab) == draw; },
          [&](const Rows& own, const Tensor& part) { return drawn(draw, own, part); });
    }
  }
  if (index.defined()) counts_.add(penalised.rows, ids.index_select(0, index));
  return ids;
}

}  // namespace hotswap
