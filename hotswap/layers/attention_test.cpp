// Stock attention against loops in float64, and caches against what they were given.
#include "hotswap/layers/attention.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/base/test_support.h"
#include "hotswap/layers/cache.h"

namespace hotswap {
namespace {

class Attention : public testing::Test {
 protected:
  Attention() : seed_(test_support::test_seed()), trace_(__FILE__, __LINE__, cat("seed ", seed_)) {
    generator_ = at::make_generator<at::CPUGeneratorImpl>(seed_);
  }
  Tensor random(at::IntArrayRef shape) { return at::zeros(shape).normal_(0, 1, generator_); }

 private:
  uint64_t seed_;
  testing::ScopedTrace trace_;
  at::Generator generator_;
};

double relative_l2(const Tensor& got, const Tensor& want) {
  const Tensor a = got.to(at::kDouble), b = want.to(at::kDouble);
  return ((a - b).norm() / b.norm().clamp_min(1e-30)).item<double>();
}

// Whether query i of row b sees key j, and where both stand: the rules of the contract as they read.
struct Rule {
  const AttentionOptions& o;
  const SequenceInfo& s;
  int64_t time, kv_time;
  int64_t place(int64_t i) const { return s.positions.defined() ? s.positions[i].item<int64_t>() : i + kv_time - time; }
  int64_t real_before(int64_t b, int64_t j) const {
    return s.padding.defined() ? s.padding[b].narrow(0, 0, j).sum().item<int64_t>() : j;
  }
  int64_t sequence(int64_t j) const {
    int64_t n = 0;
    while (s.cu_seqlens[n + 1].item<int64_t>() <= j) ++n;
    return n;
  }
  bool sees(int64_t b, int64_t i, int64_t j) const {
    const int64_t q = place(i);
    if (s.padding.defined() && !s.padding[b][j].item<bool>()) return false;
    if (o.causal && j > q) return false;
    if (o.window_left >= 0 && j < q - o.window_left) return false;
    if (!o.causal && o.window_right >= 0 && j > q + o.window_right) return false;
    if (o.chunk > 0 && real_before(b, j) / o.chunk != real_before(b, q) / o.chunk) return false;
    return !s.cu_seqlens.defined() || sequence(j) == sequence(q);
  }
};

// One query and head after another, in float64. A query that sees nothing gives zeros.
Tensor by_loops(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o, const SequenceInfo& s) {
  const int64_t batch = q.size(0), time = q.size(1), heads = q.size(2), kv_time = k.size(1);
  const Rule rule{o, s, time, kv_time};
  Tensor out = at::zeros(q.sizes(), at::kDouble);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv_head = h / (heads / k.size(2));
      for (int64_t i = 0; i < time; ++i) {
        Tensor sum = at::zeros({q.size(3)}, at::kDouble);
        double total = o.sinks.defined() ? std::exp(o.sinks[h].item<double>()) : 0;
        for (int64_t j = 0; j < kv_time; ++j) {
          if (!rule.sees(b, i, j)) continue;
          double score = (q[b][i][h].to(at::kDouble) * k[b][j][kv_head].to(at::kDouble)).sum().item<double>() * o.scale;
          if (o.softcap != 0) score = o.softcap * std::tanh(score / o.softcap);
          if (o.alibi_slopes.defined()) {
            score -= o.alibi_slopes[h].item<double>() * static_cast<double>(std::abs(j - rule.place(i)));
          }
          total += std::exp(score);
          sum += v[b][j][kv_head].to(at::kDouble) * std::exp(score);
        }
        if (total > 0) out[b][i][h].copy_(sum / total);
      }
    }
  }
  return out;
}

struct Shape {
  int64_t time, kv_time, heads, kv_heads;
};

TEST_F(Attention, FollowsEveryRule) {
  const at::NoGradGuard no_grad;
  const std::vector<AttentionOptions> all = {
      {.scale = 0.3},
      {.scale = 0.3, .causal = false},
      {.scale = 0.3, .window_left = 2},
      {.scale = 0.3, .window_left = 0},
      {.scale = 0.3, .window_left = 99},
      {.scale = 0.3, .causal = false, .window_left = 1, .window_right = 2},
      {.scale = 0.3, .chunk = 3},
      {.scale = 0.3, .window_left = 3, .softcap = 2},
      {.scale = 0.3, .window_left = 3, .sinks = random({6})},
      {.scale = 0.3, .alibi_slopes = random({6}).abs()},
      {.scale = 0.3, .causal = false, .alibi_slopes = random({6}).abs()},
  };
  for (const AttentionKind* kind : {&attention_kind("sdpa"), &attention_kind("eager")}) {
    for (size_t n = 0; n < all.size(); ++n) {
      const AttentionOptions& o = all[n];
      const bool lacks = o.softcap != 0 || o.sinks.defined() || o.alibi_slopes.defined();
      for (const Shape& shape : std::vector<Shape>{{1, 1, 6, 1}, {1, 7, 6, 2}, {5, 5, 6, 6}, {3, 8, 6, 2}}) {
        for (const bool padded : {false, true}) {
          SCOPED_TRACE(
              cat(kind->name, " options ", n, " time ", shape.time, " of ", shape.kv_time, " padded ", padded));
          const Tensor q = random({2, shape.time, shape.heads, 4}), k = random({2, shape.kv_time, shape.kv_heads, 4});
          const Tensor v = random(k.sizes());
          SequenceInfo sequence{.start = shape.kv_time - shape.time};
          if (padded) {
            sequence.padding = at::ones({2, shape.kv_time}, at::kBool);
            sequence.padding.narrow(0, 1, 1).narrow(1, 0, shape.kv_time - shape.time).zero_();
          }
          if (lacks && kind->forward == stock::sdpa) {
            EXPECT_THROW(stock::sdpa(q, k, v, o, AttentionMetadata(sequence)), Error);
            continue;
          }
          const Tensor got = kind->forward(q, k, v, o, AttentionMetadata(sequence));
          EXPECT_EQ(got.sizes(), q.sizes());
          // A real query always sees itself; 1e-6: float32 sums of a few products.
          EXPECT_LE(relative_l2(got, by_loops(q, k, v, o, sequence)), 2e-6);
        }
      }
    }
  }
  EXPECT_THROW(attention_kind("flash_attention_9"), Error);
}

TEST_F(Attention, ABiasIsAddedToScaledScores) {
  const at::NoGradGuard no_grad;
  const Tensor q = random({2, 5, 4, 3}), k = random(q.sizes()), v = random(q.sizes()), bias = random({2, 4, 5, 5});
  const AttentionOptions o{.scale = 0.3, .causal = false, .bias = bias};
  const auto heads_first = [](const Tensor& x) { return x.to(at::kDouble).transpose(1, 2); };
  const Tensor scores = heads_first(q).matmul(heads_first(k).transpose(2, 3)) * 0.3 + bias;
  const Tensor expected = (scores.exp() / scores.exp().sum(-1, true)).matmul(heads_first(v)).transpose(1, 2);
  EXPECT_LE(relative_l2(stock::eager(q, k, v, o, {}), expected), 2e-6);
  EXPECT_THROW(stock::sdpa(q, k, v, o, {}), Error);
}

TEST_F(Attention, PackedSequencesAndStaticPositions) {
  const at::NoGradGuard no_grad;
  const Tensor q = random({1, 7, 4, 4}), k = random({1, 7, 2, 4}), v = random(k.sizes());
  const SequenceInfo packed{.cu_seqlens = at::tensor({0, 3, 3, 7}, at::kInt), .max_seqlen = 4};
  const Tensor late = q.narrow(1, 0, 2);  // at places 3 and 4 of seven, the last two of which hold nothing yet
  const SequenceInfo fixed{.start = 3, .positions = at::tensor({3, 4}, at::kLong)};
  for (const char* name : {"sdpa", "eager"}) {
    for (const int64_t window : {-1, 1}) {
      const AttentionOptions o{.scale = 0.5, .window_left = window};
      const auto attend = attention_kind(name).forward;
      EXPECT_LE(relative_l2(attend(q, k, v, o, AttentionMetadata(packed)), by_loops(q, k, v, o, packed)), 2e-6) << name;
      EXPECT_LE(relative_l2(attend(late, k, v, o, AttentionMetadata(fixed)), by_loops(late, k, v, o, fixed)), 2e-6);
      EXPECT_LE(relative_l2(attend(late, k, v, o, AttentionMetadata(fixed)),
                            attend(late, k.narrow(1, 0, 5), v.narrow(1, 0, 5), o, AttentionMetadata({.start = 3}))),
                2e-6);
    }
  }
}

TEST_F(Attention, AMaskIsMadeOncePerKindOfLayer) {
  const Tensor k = random({1, 6, 1, 4});
  const AttentionMetadata metadata({.padding = at::ones({1, 6}, at::kBool)});
  const Tensor full = metadata.visible(6, k, {}), sliding = metadata.visible(6, k, {.window_left = 2});
  EXPECT_TRUE(full.is_same(metadata.visible(6, random({1, 6, 1, 4}), {.scale = 3})));
  EXPECT_TRUE(sliding.is_same(metadata.visible(6, k, {.window_left = 2})));
  EXPECT_FALSE(full.equal(sliding));
  EXPECT_TRUE(metadata.bias(6, k, {}).is_same(metadata.bias(6, k, {})));
  EXPECT_FALSE(AttentionMetadata().hides(6, 6, {.window_left = 5}));
  EXPECT_TRUE(AttentionMetadata().hides(6, 6, {.window_left = 4}));
}

TEST_F(Attention, GradientsOfBothAgree) {
  for (const bool padded : {false, true}) {
    for (const int64_t window : {-1, 2}) {
      std::vector<Tensor> gradients;
      const Tensor q0 = random({2, 5, 4, 8}), k0 = random({2, 5, 2, 8}), v0 = random({2, 5, 2, 8});
      SequenceInfo sequence;
      if (padded) {
        sequence.padding = at::ones({2, 5}, at::kBool);
        sequence.padding[1][0] = false;
      }
      for (const char* name : {"sdpa", "eager"}) {
        Tensor q = q0.clone().set_requires_grad(true), k = k0.clone().set_requires_grad(true);
        Tensor v = v0.clone().set_requires_grad(true);
        const Tensor out =
            attention_kind(name).forward(q, k, v, {.scale = 0.3, .window_left = window}, AttentionMetadata(sequence));
        out.narrow(1, 1, 4).square().sum().backward();  // a row that sees nothing is left out
        for (const Tensor& t : {q, k, v}) gradients.push_back(t.grad());
      }
      for (size_t i = 0; i < 3; ++i) EXPECT_LE(relative_l2(gradients[i], gradients[i + 3]), 1e-5) << i;
    }
  }
}

std::unique_ptr<Cache> cache_of(int64_t layers, int64_t reserve, int64_t window = 0) {
  std::vector<std::unique_ptr<CacheLayer>> parts;
  for (int64_t i = 0; i < layers; ++i) parts.push_back(make_key_value_layer(reserve, window));
  return std::make_unique<Cache>(std::move(parts));
}

TEST_F(Attention, DynamicCacheGrowsInPlace) {
  const at::NoGradGuard no_grad;
  const auto cache = cache_of(2, 4);
  const Tensor k = random({2, 150, 3, 8}), v = random({2, 150, 3, 8});
  const void* before = nullptr;
  int64_t moves = 0;
  for (int64_t t = 0; t < 150; ++t) {
    for (const int64_t layer : {0, 1}) {
      const auto [keys, values] = cache->update(layer, k.narrow(1, t, 1), v.narrow(1, t, 1));
      ASSERT_TRUE(at::equal(keys, k.narrow(1, 0, t + 1)));
      ASSERT_TRUE(at::equal(values, v.narrow(1, 0, t + 1)));
      if (layer == 0) moves += keys.const_data_ptr() != before, before = keys.const_data_ptr();
    }
    cache->advance(1);
  }
  EXPECT_EQ(moves, 3);  // 64, 128, 256
  EXPECT_EQ(cache->length(), 150);
  cache->crop(10);
  EXPECT_EQ(cache->length(), 10);
  EXPECT_TRUE(at::equal(cache->update(0, k.narrow(1, 20, 2), v.narrow(1, 20, 2)).first,
                        at::cat({k.narrow(1, 0, 10), k.narrow(1, 20, 2)}, 1)));
  EXPECT_THROW(cache->update(0, random({1, 1, 3, 8}), random({1, 1, 3, 8})), Error);
  const at::AutoGradMode grad(true);
  EXPECT_THROW(cache->update(0, random({2, 1, 3, 8}).set_requires_grad(true), random({2, 1, 3, 8})), Error);
}

TEST_F(Attention, SlidingCacheKeepsItsWindow) {
  const at::NoGradGuard no_grad;
  for (const int64_t window : {1, 4, 40}) {
    const auto cache = cache_of(1, 0, window);
    const Tensor k = random({1, 60, 2, 4}), v = random({1, 60, 2, 4});
    int64_t seen = 0;
    for (const int64_t added : {1, 7, 1, 1, 1, 1, 1, 20, 1, 1, 1, 1, 1, 1}) {
      const auto [keys, values] = cache->update(0, k.narrow(1, seen, added), v.narrow(1, seen, added));
      const int64_t kept = std::min(seen, window - 1);
      ASSERT_TRUE(at::equal(keys, k.narrow(1, seen - kept, kept + added))) << window << " " << seen;
      ASSERT_TRUE(at::equal(values, v.narrow(1, seen - kept, kept + added))) << window << " " << seen;
      seen += added;
    }
    cache->advance(seen);
    if (window < 40) {
      EXPECT_THROW(cache->crop(3), Error);  // what stood before token 3 is forgotten
    } else {
      cache->crop(3);
      EXPECT_TRUE(at::equal(cache->update(0, k.narrow(1, 9, 1), v.narrow(1, 9, 1)).first,
                            at::cat({k.narrow(1, 0, 3), k.narrow(1, 9, 1)}, 1)));
    }
    cache->crop(0);
    EXPECT_EQ(cache->length(), 0);
    EXPECT_TRUE(at::equal(cache->update(0, k.narrow(1, 5, 2), v.narrow(1, 5, 2)).first, k.narrow(1, 5, 2)));
  }
}

}  // namespace
}  // namespace hotswap
