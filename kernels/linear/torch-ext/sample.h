// sample.h's draw on the CPU.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/linear/sample.h"

namespace linear::cpu {

// exp(x) for x in [-32, 0], to 2^-51 of its value. Not libm's: its symbol is newer than manylinux_2_28 (manylinux.cpp).
inline double exp_below_zero(double x) {
  constexpr double kLog2e = 0x1.71547652b82fep+0, kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr int kTerms = 13;  // |r| <= ln(2) / 2: the next one is below 2^-57
  constexpr auto kInverseFactorials = [] {
    std::array<double, kTerms + 1> out{};
    double factorial = 1;
    for (int k = 0; k <= kTerms; ++k) factorial *= k > 0 ? k : 1, out[size_t(k)] = 1 / factorial;
    return out;
  }();
  const double n = std::nearbyint(x * kLog2e), r = (x - n * kLn2High) - n * kLn2Low;
  double sum = kInverseFactorials[kTerms];
  for (int k = kTerms - 1; k >= 0; --k) sum = sum * r + kInverseFactorials[size_t(k)];
  return sum * std::bit_cast<double>(uint64_t(1023 + int64_t(n)) << 52);  // 2^n
}

struct Candidate {
  float score;
  int64_t id;
  uint64_t weight;
};
using Candidates = std::vector<Candidate>;

inline bool better(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score > b.score : a.id < b.id;
}

// The `count` best of them, best first.
inline void keep_best(Candidates& all, size_t count) {
  if (count < all.size()) {
    std::nth_element(all.begin(), all.begin() + std::ptrdiff_t(count), all.end(), better);
    all.resize(count);
  }
  std::sort(all.begin(), all.end(), better);
}

inline uint64_t total_of(const Candidates& all) {
  uint64_t total = 0;
  for (const Candidate& c : all) total += c.weight;
  return total;
}

// The fewest that have top_p of the total. They are nearly always among the first few: only those are sorted.
inline void keep_nucleus(Candidates& all, double top_p) {
  const uint64_t needed = nucleus_weight(total_of(all), top_p);
  for (size_t count = 256;; count *= 16) {
    Candidates best = all;
    keep_best(best, count);
    uint64_t sum = 0;
    size_t kept = 0;
    while (kept < best.size() && sum < needed) sum += best[kept++].weight;
    if (sum < needed) continue;
    best.resize(kept);
    all = std::move(best);
    return;
  }
}

// scores: a row of logits, which become its scores; settings: [kSettings]
inline int64_t draw(std::vector<float>& scores, const double* settings) {
  const auto scale = float(settings[kScale]);
  float best = -INFINITY;
  bool has_nan = false;
  for (float& s : scores) {
    s *= scale;
    best = std::max(best, s);
    has_nan = has_nan || s != s;
  }
  if (has_nan || !std::isfinite(best)) return 0;
  const float least = std::max(best + float(settings[kLogMinP]), best - kNoWeight);
  Candidates all;
  for (size_t id = 0; id < scores.size(); ++id) {
    if (scores[id] >= least) all.push_back({scores[id], int64_t(id), 0});
  }
  if (settings[kTopK] > 0 && settings[kTopK] < double(all.size())) keep_best(all, size_t(settings[kTopK]));
  for (Candidate& c : all) c.weight = uint64_t(std::llrint(exp_below_zero(double(c.score - best)) * kMaxWeight));
  if (settings[kTopP] < 1) keep_nucleus(all, settings[kTopP]);
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  const uint64_t total = total_of(all), point = std::min(uint64_t(double(total) * settings[kUniform]), total - 1);
  uint64_t sum = 0;
  for (const Candidate& c : all) {
    if ((sum += c.weight) > point) return c.id;
  }
  return all.back().id;
}

}  // namespace linear::cpu
