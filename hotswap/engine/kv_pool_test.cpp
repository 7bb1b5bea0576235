// Rows of a pool: sequences of one company are side by side, whatever joins and leaves, and keep what they have.
#include "hotswap/engine/kv_pool.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "hotswap/base/error.h"
#include "hotswap/engine/guess_step.h"

namespace hotswap {
namespace {

TEST(KvPoolRows, OfOneCompanyAreSideBySide) {
  const c10::InferenceMode inference;
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(cat("seed ", seed));
  std::mt19937_64 random(seed);
  KvPool pool(at::kCPU, {.max_sequences = 9});
  std::map<int64_t, int64_t> companies;  // of the sequences that are there
  const auto tokens_of = [](int64_t sequence) {
    const auto value = static_cast<double>(sequence);
    return KvTokens{at::full({1 + sequence % 3, 2, 4}, value), at::full({1 + sequence % 3, 2, 4}, value + 0.5)};
  };
  for (int event = 0; event < 400; ++event) {
    if (pool.free_sequences() > 0 && random() % 2 == 0) {
      const auto company = static_cast<int64_t>(random() % 3);
      const int64_t sequence = pool.acquire(company);
      companies[sequence] = company;
      pool.append(sequence, 1 + sequence % 3, {tokens_of(sequence)});
    } else if (!companies.empty()) {
      const auto gone = std::next(companies.begin(), static_cast<ptrdiff_t>(random() % companies.size()));
      pool.release(gone->first);
      companies.erase(gone);
    }
    std::map<int64_t, int64_t> by_row;
    for (const auto& [sequence, company] : companies) {
      by_row[pool.row(sequence)] = company;
      const KvTokens kept = pool.tokens_of(sequence, 0, 1 + sequence % 3).at(0), own = tokens_of(sequence);
      ASSERT_TRUE(at::equal(kept.k, own.k) && at::equal(kept.v, own.v)) << sequence << " after " << event;
    }
    ASSERT_EQ(by_row.size(), companies.size());
    if (by_row.empty()) continue;
    ASSERT_EQ(by_row.rbegin()->first + 1, static_cast<int64_t>(companies.size())) << "rows have no gaps";
    int64_t last = 0;
    for (const auto& [row, company] : by_row) {
      ASSERT_GE(company, last) << "row " << row;
      last = company;
    }
  }
}

// Gradients would be recorded through memory that later steps overwrite: no step takes keys that have any.
TEST(KvPoolSteps, RefuseGradients) {
  KvPool pool(at::kCPU, {.max_sequences = 2});
  const int64_t sequence = pool.acquire(0);
  {
    const c10::InferenceMode inference;
    pool.append(sequence, 3, {KvTokens{at::full({3, 2, 4}, 1.0), at::full({3, 2, 4}, 2.0)}});
  }
  const Tensor k = at::full({1, 1, 2, 4}, 1.0).requires_grad_(), v = at::full({1, 1, 2, 4}, 2.0);
  KvStep step(pool, {{.sequence = sequence, .tokens = {7}}});
  EXPECT_THROW(step.update(0, k, v), Error);
  GuessStep guesses(pool, sequence, {7});
  EXPECT_THROW(guesses.update(0, k, v), Error);
}

}  // namespace
}  // namespace hotswap
