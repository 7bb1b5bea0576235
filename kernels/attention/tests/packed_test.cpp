// Sequences one behind the other, and caches: each sequence is what the dense ops, which attention_test.cpp holds
// against float64, make of it alone.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include "kernels/attention/tests/reference.h"

namespace kernels::testing {
namespace {

using Lengths = std::vector<int64_t>;

Tensor sums(const Lengths& lengths) {
  std::vector<int> all{0};
  for (const int64_t n : lengths) all.push_back(all.back() + int(n));
  return at::tensor(all, at::kInt).to(device());
}
int64_t total(const Lengths& lengths) {
  int64_t all = 0;
  for (const int64_t n : lengths) all += n;
  return all;
}
// Float32 sums in another order, where a dense call of one sequence divides its keys otherwise, or rows of a GPU's
// tiles; then 16 bits may round the other way.
double limit_of(at::ScalarType dtype) { return on_cuda() ? tolerance(dtype) : 2e-6; }

struct PackedCase {
  Lengths queries, keys, used;  // used: empty, all of them are
  Masks masks;
  int64_t dim = 24;
};

void check_packed(const PackedCase& c, at::ScalarType dtype) {
  constexpr int64_t kHeads = 4, kKeyHeads = 2, kValues = 16;
  if (!device_takes({.rows = 1, .keys = 1, .dim = c.dim, .value_dim = kValues}, dtype)) return;
  const std::string what = shown(c.masks) + " " + c10::toString(dtype);
  const int64_t queries = total(c.queries) + 2, keys = total(c.keys) + 3;  // rows of no sequence at the end
  Inputs in(
      {.rows = queries, .keys = keys, .heads = kHeads, .key_heads = kKeyHeads, .dim = c.dim, .value_dim = kValues},
      c.masks, dtype);
  in.q = in.q[0], in.k = in.k[0], in.v = in.v[0];
  const Lengths& used = c.used.empty() ? c.keys : c.used;
  int64_t at_key = 0;
  for (size_t n = 0; n < used.size(); ++n) {  // what nobody may read
    for (Tensor* t : {&in.k, &in.v}) t->narrow(0, at_key + used[n], c.keys[n] - used[n]).fill_(NAN);
    at_key += c.keys[n];
  }
  for (Tensor* t : {&in.k, &in.v}) t->narrow(0, at_key, keys - at_key).fill_(NAN);
  std::vector<c10::IValue> sequences{sums(c.queries), sums(c.keys), c10::IValue(), queries, keys};
  if (!c.used.empty()) {
    std::vector<int> numbers(c.used.begin(), c.used.end());
    sequences[2] = at::tensor(numbers, at::kInt).to(device());
  }
  const auto with = [&](std::vector<c10::IValue> stack) {
    stack.insert(stack.end(), sequences.begin(), sequences.end());
    return stack;
  };
  const auto got = in.call("attention_varlen_fwd", with({in.q, in.k, in.v}));
  expect_equal(in.call("attention_varlen", with({in.q, in.k, in.v}))[0], got[0], what);
  const Tensor dout = random_tensor(got[0].sizes(), dtype);
  const Tensor dlse = random_tensor(got[1].sizes(), at::kFloat);
  const auto gradients = in.call("attention_varlen_bwd", with({dout, in.q, in.k, in.v, got[0], got[1], dlse}), true);

  Tensor want_out = at::zeros_like(got[0]), want_lse = at::full_like(got[1], -std::numeric_limits<double>::infinity());
  Tensors want{at::zeros_like(in.q), at::zeros_like(in.k), at::zeros_like(in.v), at::zeros({kHeads}, dlse.options())};
  int64_t q = 0, k = 0;
  for (size_t n = 0; n < c.queries.size(); ++n) {
    const auto rows = [&](const Tensor& t) { return t.narrow(0, q, c.queries[n]).unsqueeze(0); };
    const auto seen = [&](const Tensor& t) { return t.narrow(0, k, used[n]).unsqueeze(0); };
    const auto one = in.call("attention_fwd", {rows(in.q), seen(in.k), seen(in.v)});
    rows(want_out).copy_(one[0]);
    want_lse.narrow(1, q, c.queries[n]).copy_(one[1][0]);
    const Tensor dl = dlse.narrow(1, q, c.queries[n]).unsqueeze(0);
    const auto g = in.call("attention_bwd", {rows(dout), rows(in.q), seen(in.k), seen(in.v), one[0], one[1], dl}, true);
    rows(want[0]).copy_(g[0]);
    seen(want[1]).copy_(g[1]);
    seen(want[2]).copy_(g[2]);
    if (in.sinks.defined()) want[3] += g[3];
    q += c.queries[n];
    k += c.keys[n];
  }
  expect_close(got[0], want_out, limit_of(dtype), what + " out");
  expect_equal(got[1] == -std::numeric_limits<double>::infinity(), want_lse == -std::numeric_limits<double>::infinity(),
               what + " rows that see nothing");
  expect_close(got[1].exp(), want_lse.exp(), 1e-5, what + " lse");
  const char* names[] = {" dq", " dk", " dv", " dsinks"};
  for (size_t n = 0; n < (in.sinks.defined() ? 4U : 3U); ++n)
    expect_close(gradients[n], want[n], 2 * limit_of(dtype), what + names[n]);
}

TEST(Packed, IsEachSequenceAlone) {
  const Masks masks[] = {
      {}, {.causal = true}, {.causal = true, .left = 6, .sinks = true}, {.causal = true, .chunk = 8}};
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Masks& m : masks) {
      check_packed({{3, 0, 40, 1}, {3, 0, 40, 1}, {}, m}, dtype);
      check_packed({{0, 2, 11, 0}, {5, 30, 0, 0}, {}, m}, dtype);
      check_packed({{30, 2, 5}, {50, 20, 9}, {33, 0, 9}, m}, dtype);
    }
  }
  check_packed({{}, {}, {}, {}}, exact_dtype());
}

// A backward on the CPU keeps keys as it has laid them out, for the rows to come of the same unit of work, which with
// so many sequences has all rows of one: all three tiles of keys, or two of them (cpu/problem.h). Alone, units have a
// tile of rows.
TEST(Packed, KeysAreKept) {
  if (on_cuda()) GTEST_SKIP() << "a GPU keeps none";
  const Lengths queries{100, 1, 1, 1, 1, 1, 1, 1}, keys{300, 1, 1, 1, 1, 1, 1, 1};
  for (const Masks& m : {Masks{.causal = true}, Masks{.causal = true, .left = 90}, Masks{.left = 20, .right = 150}}) {
    check_packed({queries, keys, {}, m}, at::kFloat);
    check_packed({queries, keys, {}, m, 3000}, at::kFloat);
  }
}

TEST(Packed, RefusesSumsThatAreNone) {
  if (on_cuda()) GTEST_SKIP() << "lengths are known to the GPU alone";
  Inputs in({.rows = 6, .keys = 6, .dim = 8}, {}, at::kFloat);
  const auto refused = [&](const Tensor& cu, const c10::IValue& used, const std::vector<std::string>& words) {
    expect_refusal(
        [&] {
          in.call("attention_varlen", {in.q[0], in.k[0], in.v[0], cu, cu, used, int64_t{6}, int64_t{6}});
        },
        words);
  };
  refused(at::tensor({0, 7}, at::kInt), {}, {"cu_seqlens_q", "ends at 6 at most", "7"});
  refused(at::tensor({0, 4, 3}, at::kInt), {}, {"never falls"});
  refused(at::tensor({1, 3}, at::kInt), {}, {"begins with 0"});
  refused(at::tensor({0, 3}, at::kLong), {}, {"int32"});
  refused(at::tensor({0, 3}, at::kInt), at::tensor({4}, at::kInt), {"seqused_k of 0 to 3", "4"});
}

// ---- decode

struct DecodeCase {
  int64_t rows, group;  // queries of a sequence, query heads of a key head
  std::vector<int> lengths;
  int64_t fresh;     // rows that are appended; 0: none
  int64_t page = 0;  // 0: no pages
  int64_t num_splits = 0;
  Masks masks = {.causal = true};
};

void check_packed(const DecodeCase& c, at::ScalarType dtype) {
  constexpr int64_t kKeyHeads = 2, kDim = 40, kValues = 24, kCapacity = 1536;
  if (!device_takes({.rows = 1, .keys = 1, .dim = kDim, .value_dim = kValues}, dtype)) return;
  const std::string what = "rows " + std::to_string(c.rows) + " group " + std::to_string(c.group) + " page " +
                           std::to_string(c.page) + " splits " + std::to_string(c.num_splits) + shown(c.masks) + " " +
                           c10::toString(dtype);
  const int64_t batch = int64_t(c.lengths.size()), heads = kKeyHeads * c.group;
  Inputs in({.batch = batch,
             .rows = c.rows,
             .keys = kCapacity,
             .heads = heads,
             .key_heads = kKeyHeads,
             .dim = kDim,
             .value_dim = kValues},
            c.masks, dtype);
  Tensor fresh_k, fresh_v;
  if (c.fresh > 0) {
    fresh_k = random_tensor({batch, kKeyHeads, c.fresh, kDim}, dtype).transpose(1, 2);
    fresh_v = random_tensor({batch, c.fresh, kKeyHeads, kValues}, dtype);
  }
  // The cache: all NaN but what it holds; in pages, in an order of their own, with two more that nobody has.
  const int64_t page = c.page == 0 ? kCapacity : c.page, blocks = kCapacity / page, pages = batch * blocks + 2;
  Tensor k = at::full({pages, page, kKeyHeads, kDim}, NAN, in.k.options());
  Tensor v = at::full({pages, page, kKeyHeads, kValues}, NAN, in.v.options());
  Tensor table = at::full({batch, blocks}, -1, at::TensorOptions().dtype(at::kInt));
  Tensor entries = at::zeros({batch}, at::TensorOptions().dtype(at::kInt));
  int64_t free = pages;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t total = c.lengths[b] < 0 ? 0 : c.lengths[b] + c.fresh;
    for (int64_t p = 0; p * page < total; ++p) {
      table[b][p] = --free;
      const int64_t held = std::max<int64_t>(0, std::min<int64_t>(page, c.lengths[b] - p * page));
      k[free].narrow(0, 0, held).copy_(in.k[b].narrow(0, p * page, held));
      v[free].narrow(0, 0, held).copy_(in.v[b].narrow(0, p * page, held));
    }
    if (c.page == 0 && total > 0) entries[b] = free;
  }
  std::vector<c10::IValue> stack{
      in.q, k, v, optional(fresh_k), optional(fresh_v), at::tensor(c.lengths, at::kInt).to(device())};
  stack.emplace_back(c.page == 0 ? c10::IValue() : c10::IValue(table.to(device())));
  stack.emplace_back(c.page == 0 ? c10::IValue(entries.to(device())) : c10::IValue());
  const auto got = in.call("attention_decode", stack, c.num_splits);
  EXPECT_FALSE(got[0].isnan().any().item<bool>()) << what;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t before = std::max(0, c.lengths[b]);
    const auto all = [&](const Tensor& held, const Tensor& added) {
      if (c.lengths[b] < 0) return held[b].narrow(0, 0, 0).unsqueeze(0);
      const Tensor old = held[b].narrow(0, 0, before);
      return (c.fresh > 0 ? at::cat({old, added[b]}) : old).unsqueeze(0);
    };
    const auto want = in.call("attention_fwd", {in.q.narrow(0, b, 1), all(in.k, fresh_k), all(in.v, fresh_v)});
    const auto limit = dtype == at::kFloat
                           ? 2e-6
                           : (on_cuda() ? 3 : 1) *
                                 tolerance(dtype);  // one rounding; a GPU rounds weights, relative to maxima of parts
    expect_close(got[0].narrow(0, b, 1), want[0], limit, what + " entry " + std::to_string(b));
    expect_close(got[1].narrow(0, b, 1).exp(), want[1].exp(), 1e-5, what + " lse");
  }
}

TEST(Decode, IsEachSequenceAlone) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t page : {0, 16, 64, 256}) {
      check_packed({1, 1, {5, 300, 0, 1400}, 0, page}, dtype);
      check_packed({1, 4, {5, 300, -1, 1400, 0}, 1, page}, dtype);
      check_packed({3, 4, {-1, 17, 1000}, 3, page, 0, {.causal = true, .left = 50, .sinks = true}}, dtype);
      check_packed({40, 2, {100, 60, 1490}, 40, page}, dtype);  // more rows than are streamed
      for (const int64_t splits : {1, 3, 17}) check_packed({1, 7, {1400, 9}, 1, page, splits, {.sinks = true}}, dtype);
    }
  }
}

TEST(Decode, RefusesWhatWouldReadBeyondTheCache) {
  if (on_cuda()) GTEST_SKIP() << "lengths are known to the GPU alone";
  Inputs in({.batch = 2, .rows = 1, .keys = 8, .dim = 8}, {}, at::kFloat);
  const auto refused = [&](const Tensor& lengths, const c10::IValue& table, const c10::IValue& entries,
                           const std::vector<std::string>& words) {
    expect_refusal(
        [&] {
          in.call("attention_decode", {in.q, in.k, in.v, c10::IValue(), c10::IValue(), lengths, table, entries},
                  int64_t{0});
        },
        words);
  };
  const Tensor fits = at::tensor({3, 8}, at::kInt);
  refused(at::tensor({3, 9}, at::kInt), {}, {}, {"at most 8 tokens in entry 1", "9"});
  refused(fits, {}, at::tensor({0, 2}, at::kInt), {"cache_batch_idx of 0 to 1", "2"});
  refused(fits, at::tensor({0, 2}, at::kInt).view({2, 1}), {}, {"pages of 0 to 1", "2"});
  refused(fits, at::tensor({0, 1}, at::kInt).view({2, 1}), at::tensor({0, 1}, at::kInt), {"both"});
  expect_refusal(
      [&] {
        in.call("attention_decode",
                {in.q, in.k, in.v, in.k.narrow(1, 0, 1), c10::IValue(), fits, c10::IValue(), c10::IValue()},
                int64_t{0});
      },
      {"k_new and v_new"});
}

}  // namespace
}  // namespace kernels::testing
