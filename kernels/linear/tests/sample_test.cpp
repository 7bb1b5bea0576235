#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/common/testing/testing.h"

namespace kernels::testing {
namespace {

constexpr at::ScalarType kSampleDTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

struct Settings {
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1, min_p = 0, uniform = 0;
};

Tensor tensor_of(const std::vector<Settings>& rows) {
  const Tensor out = at::empty({static_cast<int64_t>(rows.size()), 5}, at::kDouble);
  auto* to = out.mutable_data_ptr<double>();
  for (const Settings& s : rows) {
    for (const double x : {1 / s.temperature, static_cast<double>(s.top_k), s.top_p, std::log(s.min_p), s.uniform})
      *to++ = x;
  }
  return out.to(device());
}

// By the definition: everything is sorted, and nothing is skipped.
int64_t drawn(const float* x, int64_t cols, const Settings& s) {
  struct One {
    int64_t id;
    float score;
    int64_t weight;
  };
  std::vector<One> all;
  const float scale = static_cast<float>(1 / s.temperature);
  for (int64_t i = 0; i < cols; ++i) all.push_back({i, x[i] * scale, 0});
  std::stable_sort(all.begin(), all.end(), [](const One& a, const One& b) { return a.score > b.score; });
  const float best = all[0].score, least = best + static_cast<float>(std::log(s.min_p));
  for (One& one : all) {
    if (one.score < least) continue;
    one.weight = std::llrint(std::exp(static_cast<double>(one.score - best)) * 0x1p44);
  }
  if (s.top_k > 0 && s.top_k < cols) all.resize(static_cast<size_t>(s.top_k));
  const auto total = [&] {
    int64_t sum = 0;
    for (const One& one : all) sum += one.weight;
    return sum;
  };
  if (s.top_p < 1) {
    const auto needed = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(static_cast<double>(total()) * s.top_p)));
    int64_t sum = 0;
    size_t kept = 0;
    while (kept < all.size() && sum < needed) sum += all[kept++].weight;
    all.resize(kept);
  }
  std::sort(all.begin(), all.end(), [](const One& a, const One& b) { return a.id < b.id; });
  const auto point = static_cast<int64_t>(static_cast<double>(total()) * s.uniform);
  int64_t sum = 0;
  for (const One& one : all) {
    if ((sum += one.weight) > point) return one.id;
  }
  return all.back().id;
}

Tensor drawn(const Tensor& x, const std::vector<Settings>& settings) {
  const Tensor wide = x.to(at::kCPU, at::kFloat).contiguous(), out = at::empty({x.size(0)}, at::kLong);
  for (int64_t row = 0; row < x.size(0); ++row) {
    out[row] = drawn(wide.const_data_ptr<float>() + row * x.size(1), x.size(1), settings[static_cast<size_t>(row)]);
  }
  return out.to(device());
}

std::vector<Settings> some_settings(std::mt19937_64& random, int64_t rows) {
  const auto one_of = [&](std::initializer_list<double> values) { return values.begin()[random() % values.size()]; };
  std::vector<Settings> out;
  for (int64_t i = 0; i < rows; ++i) {
    out.push_back({.temperature = one_of({0.3, 0.7, 1, 1, 1.7, 1e-5}),
                   .top_k = static_cast<int64_t>(one_of({0, 0, 1, 3, 40, 1000, 1e6})),
                   .top_p = one_of({1, 1, 0.9, 0.53, 0.9999, 1e-6}),
                   .min_p = one_of({0, 0, 0.07, 1}),
                   .uniform = std::uniform_real_distribution<double>(0, 1)(random)});
  }
  return out;
}

Tensor sample(const Tensor& x, const std::vector<Settings>& settings) {
  const int64_t before = package().call_count("sample");
  const Tensor ids = package().call("sample", x, tensor_of(settings))[0];
  EXPECT_EQ(package().call_count("sample"), before + 1);
  return ids;
}

// Widths below and beyond a vector, a warp's part and what a block holds; logits that differ, and such that many are
// equal; the distributions of a model (few likely ones) and of a random one (all alike).
TEST(Sample, IsWhatTheDefinitionSays) {
  std::mt19937_64 random(seed());
  for (const auto dtype : kSampleDTypes) {
    for (const int64_t cols : {1, 2, 7, 31, 130, 1027, 4096, 50257, 151936, 460001}) {
      for (const int64_t rows : {1, 5}) {
        for (const double spread : {0.02, 4.0}) {
          if (cols > 100000 && (rows > 1 || spread < 1)) continue;  // the definition sorts all of a row
          const std::string what =
              std::to_string(rows) + " x " + std::to_string(cols) + ", spread " + std::to_string(spread);
          const auto settings = some_settings(random, rows);
          const Tensor x = random_tensor({rows, cols}, dtype, spread);
          expect_equal(sample(x, settings), drawn(x, settings), what);
          if (spread < 1) continue;
          const Tensor coarse = (x * 2).round() / 2;
          expect_equal(sample(coarse, settings), drawn(coarse, settings), what + " rounded");
          if (cols == 1) continue;
          const Tensor narrow = x.narrow(1, 1, cols - 1);
          expect_equal(sample(narrow, settings), drawn(narrow, settings), what + " from the second on");
        }
      }
    }
  }
}

TEST(Sample, EveryPartOfTheUnitIntervalIsAToken) {
  const std::vector<double> probabilities = {0.5, 0.25, 0.125, 0.125};
  Tensor x = at::tensor(probabilities, at::kDouble).log().to(device(), at::kFloat).unsqueeze(0).expand({9, 4});
  std::vector<Settings> settings;
  for (const double uniform : {0.0, 0.49, 0.51, 0.74, 0.76, 0.874, 0.876, 0.99, 1 - 0x1p-53})
    settings.push_back({.uniform = uniform});
  expect_equal(sample(x, settings), at::tensor({0, 0, 1, 1, 2, 2, 3, 3, 3}, at::kLong).to(device()), "of all");
  for (Settings& s : settings) s.top_p = 0.75;
  expect_equal(sample(x, settings), at::tensor({0, 0, 0, 1, 1, 1, 1, 1, 1}, at::kLong).to(device()), "of a nucleus");
}

TEST(Sample, EqualOnesAreKeptInTheOrderOfIds) {
  for (const int64_t cols : {100, 5000}) {
    const Tensor x = zeros({3, cols}).to(device());
    const double last = 1 - 0x1p-53;
    const std::vector<Settings> settings = {
        {.top_k = 7, .uniform = last}, {.top_p = 0.25, .uniform = last}, {.top_k = 10, .top_p = 0.31, .uniform = last}};
    expect_equal(sample(x, settings), at::tensor({int64_t{6}, cols / 4 - 1, int64_t{3}}, at::kLong).to(device()),
                 std::to_string(cols));
  }
}

// A row has the same token by itself, among others and in another row; with any number of threads.
TEST(Sample, ARowDoesNotDependOnItsCompany) {
  std::mt19937_64 random(seed());
  constexpr int64_t kRows = 70, kCols = 32003;
  const auto settings = some_settings(random, kRows);
  const Tensor x = random_tensor({kRows, kCols}, at::kBFloat16, 3.0);
  const Tensor all = sample(x, settings);
  for (int64_t i = 0; i < kRows; i += 9) {
    expect_equal(sample(x.narrow(0, i, 1), {settings[static_cast<size_t>(i)]}), all.narrow(0, i, 1),
                 "row " + std::to_string(i));
  }
  expect_same_with_any_threads([&] { return Tensors{sample(x, settings)}; }, "sample");
}

TEST(Sample, ARowWithoutAFiniteMaximumGivesTheFirstId) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  for (const double wrong : {kInf, kNan}) {
    Tensor x = random_tensor({2, 300}, at::kFloat);
    x[0][200] = wrong;
    const Tensor ids = sample(x, {{.top_p = 0.9, .uniform = 0.7}, {.uniform = 0}});
    EXPECT_EQ(ids[0].item<int64_t>(), 0) << wrong;
  }
  expect_equal(sample(at::full({1, 300}, -kInf).to(device()), {{.uniform = 0.7}}), zeros({1}, at::kLong).to(device()),
               "-inf");
  Tensor masked = at::full({1, 300}, -kInf).to(device());
  masked[0][123] = -7;
  expect_equal(sample(masked, {{.top_k = 5, .top_p = 0.5, .uniform = 0.9}}), at::full({1}, 123, at::kLong).to(device()),
               "one");
  EXPECT_EQ(sample(at::zeros({0, 5}).to(device()), {}).numel(), 0);
}

TEST(Sample, RefusesWhatDoesNotFit) {
  const auto call = [](const Tensor& x, const Tensor& settings) {
    return [=] { package().call("sample", x, settings); };
  };
  const Tensor x = zeros({2, 4}).to(device()), settings = at::zeros({2, 5}, at::kDouble).to(device());
  expect_refusal(call(zeros({2, 0}).to(device()), settings), {"at least one id", "[2, 0]"});
  expect_refusal(call(zeros({4}).to(device()), settings), {"x [rows, ids]", "[4]"});
  expect_refusal(call(x, settings.narrow(0, 0, 1)), {"settings [2, 5]", "[1, 5]"});
  expect_refusal(call(x, settings.to(at::kFloat)), {"float64", "float32"});
  expect_refusal(call(x, settings.t().contiguous().t()), {"without gaps"});
}

}  // namespace
}  // namespace kernels::testing
