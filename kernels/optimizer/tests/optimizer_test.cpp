// AdamW against its formula in float64, the rounding of each kind of state, and what it refuses.
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/nextafter.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/common/testing/testing.h"
#include "kernels/optimizer/philox.h"

namespace {

using namespace kernels::testing;
using kernels::package;

struct Form {
  const char* name;
  at::ScalarType parameter, state;
  bool master, stochastic;
};
const std::vector<Form> kForms = {
    {"float32", at::kFloat, at::kFloat, false, false},
    {"bfloat16", at::kBFloat16, at::kBFloat16, false, false},
    {"float16", at::kHalf, at::kHalf, false, false},
    {"bfloat16, master", at::kBFloat16, at::kFloat, true, false},
    {"float16, master", at::kHalf, at::kFloat, true, false},
    {"bfloat16, master, bfloat16 moments", at::kBFloat16, at::kBFloat16, true, true},
    {"float32, bfloat16 moments", at::kFloat, at::kBFloat16, false, true},
    {"bfloat16, stochastic", at::kBFloat16, at::kBFloat16, false, true},
};

struct Lists {
  Tensors parameters, gradients, averages, average_squares, masters, steps;
  Lists to(at::Device where) const {
    const auto moved = [&](const Tensors& list) {
      Tensors out;
      for (const Tensor& t : list) out.push_back(t.to(where, t.scalar_type(), false, /*copy=*/true));
      return out;
    };
    return {moved(parameters), moved(gradients), moved(averages), moved(average_squares), moved(masters), moved(steps)};
  }
  Lists clone() const { return to(parameters[0].device()); }
};

// A list in the middle of a run: every tensor has had `step` - 1 updates.
Lists random_lists(const Form& form, const std::vector<int64_t>& sizes, float step = 3) {
  Lists lists;
  for (const int64_t size : sizes) {
    const Tensor p = random_tensor({size}, at::kFloat);
    if (form.master) lists.masters.push_back(p);
    lists.parameters.push_back(p.to(form.parameter));
    lists.gradients.push_back(random_tensor({size}, form.parameter));
    lists.averages.push_back(random_tensor({size}, form.state, 0.1));
    lists.average_squares.push_back(random_tensor({size}, form.state, 0.1).square());
    lists.steps.push_back(at::full({}, step, p.options()));
  }
  return lists;
}

constexpr double kRate = 0.01, kBeta1 = 0.9, kBeta2 = 0.99, kEps = 1e-6, kDecay = 0.1;

void update(const Lists& l, const Tensor& scale, std::optional<int64_t> seed) {
  package().call("adamw_", scale, l.parameters, l.gradients, l.averages, l.average_squares, l.masters, l.steps, kRate,
                 kBeta1, kBeta2, kEps, kDecay, seed ? c10::IValue(*seed) : c10::IValue());
}
Tensor scale_of(double value, at::Device where = device()) {
  return at::full({}, value, at::TensorOptions(at::kFloat).device(where));
}
std::optional<int64_t> seed_of(const Form& form, int64_t seed = 5) {
  return form.stochastic ? std::optional(seed) : std::nullopt;
}

// p, m and v in float64.
Tensors formula(const Lists& l, size_t i, double scale) {
  const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
  const double t = l.steps[i].item<double>();
  const Tensor g = wide(l.gradients[i]) / scale;
  const Tensor m = wide(l.averages[i]) * kBeta1 + g * (1 - kBeta1);
  const Tensor v = wide(l.average_squares[i]) * kBeta2 + g * g * (1 - kBeta2);
  const Tensor p = wide(l.masters.empty() ? l.parameters[i] : l.masters[i]) * (1 - kRate * kDecay) -
                   kRate * (m / (1 - std::pow(kBeta1, t))) / ((v / (1 - std::pow(kBeta2, t))).sqrt() + kEps);
  return {p, m, v};
}

// Rounded to nearest half of the last bit is lost, by chance up to a whole one; float32: a few roundings on the way.
double rounding(at::ScalarType dtype, bool by_chance) {
  if (dtype == at::kFloat) return 1e-6;
  return (dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-11) * (by_chance ? 2 : 1) + 1e-6;
}

const std::vector<int64_t> kSizes = {0, 1, 7, 8, 64, 1001, 8192, 70000};

TEST(AdamW, EveryFormMatchesFloat64) {
  for (const Form& form : kForms) {
    for (const double scale : {1.0, 2.5}) {
      const Lists before = random_lists(form, kSizes), after = before.clone();
      update(after, scale_of(scale), seed_of(form));
      for (size_t i = 0; i < kSizes.size(); ++i) {
        const Tensors expected = formula(before, i, scale);
        const std::string what = std::string(form.name) + " size " + std::to_string(kSizes[i]);
        const bool narrow = form.stochastic && form.parameter == at::kBFloat16 && !form.master;
        // Terms of both signs may cancel in m and p: errors are held against the terms.
        const Tensor terms = before.averages[i].to(at::kDouble).abs() * kBeta1 +
                             before.gradients[i].to(at::kDouble).abs() * ((1 - kBeta1) / scale);
        if (form.master) {
          expect_close(after.masters[i], expected[0], 1e-6, what + " master", expected[0].abs() + 0.1);
          expect_equal(after.parameters[i], after.masters[i].to(form.parameter), what + " is the master rounded");
        } else {
          expect_close(after.parameters[i], expected[0], rounding(form.parameter, narrow), what + " p",
                       expected[0].abs() + 0.1);
        }
        expect_close(after.averages[i], expected[1], rounding(form.state, form.stochastic), what + " m", terms);
        expect_close(after.average_squares[i], expected[2], rounding(form.state, form.stochastic), what + " v",
                     expected[2].abs() + 1e-6);
      }
    }
  }
}

TEST(AdamW, TheFirstAndTheThousandthStep) {
  for (const float step : {1.f, 2.f, 1000.f, 100000.f}) {
    const Lists before = random_lists(kForms[0], {513}, step), after = before.clone();
    update(after, scale_of(1), std::nullopt);
    const Tensor expected = formula(before, 0, 1)[0];
    expect_close(after.parameters[0], expected, 2e-6, "step " + std::to_string(step), expected.abs() + 0.1);
  }
}

// More tensors than a launch's parameters hold, and the same tensors in lists of one.
TEST(AdamW, ManyTensorsAreUpdatedAsOneByOne) {
  const Form& form = kForms[3];
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < 1100; ++i) sizes.push_back(i % 29);
  const Lists listed = random_lists(form, sizes), single = listed.clone();
  update(listed, scale_of(1), std::nullopt);
  for (size_t i = 0; i < sizes.size(); ++i) {
    update({{single.parameters[i]},
            {single.gradients[i]},
            {single.averages[i]},
            {single.average_squares[i]},
            {single.masters[i]},
            {single.steps[i]}},
           scale_of(1), std::nullopt);
    expect_equal(listed.masters[i], single.masters[i], "tensor " + std::to_string(i));
  }
}

TEST(AdamW, AMisalignedTensorHasTheBitsOfAnAlignedOne) {
  for (const Form& form : kForms) {
    const Lists aligned = random_lists(form, {4099});
    Lists shifted = aligned.clone();
    for (Tensors* list : {&shifted.parameters, &shifted.gradients, &shifted.averages})
      (*list)[0] = misaligned((*list)[0]);
    update(aligned, scale_of(1), seed_of(form));
    update(shifted, scale_of(1), seed_of(form));
    expect_equal(shifted.parameters[0], aligned.parameters[0], form.name);
    expect_equal(shifted.averages[0], aligned.averages[0], form.name);
    expect_equal(shifted.average_squares[0], aligned.average_squares[0], form.name);
  }
}

TEST(AdamW, AScaleThatIsNotFiniteUpdatesNothing) {
  for (const Form& form : kForms) {
    for (const double scale : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      const Lists before = random_lists(form, {5, 300}), after = before.clone();
      update(after, scale_of(scale), seed_of(form));
      for (size_t i = 0; i < 2; ++i) {
        expect_equal(after.parameters[i], before.parameters[i], form.name);
        expect_equal(after.averages[i], before.averages[i], form.name);
        expect_equal(after.average_squares[i], before.average_squares[i], form.name);
      }
    }
  }
}

// Of 2^18 equal elements a fraction goes up, so that the mean is the value before rounding. Its spread is at most
// half of a last bit over the root of their number: 5 of it.
TEST(AdamW, StochasticRoundingIsRightInTheMean) {
  constexpr int64_t kCount = 1 << 18;
  const Form& form = kForms.back();
  Lists lists = random_lists(form, {kCount});
  const auto fill = [&](Tensors& list, double value) { list[0].fill_(value); };
  fill(lists.parameters, 1.0), fill(lists.gradients, 0.3), fill(lists.averages, 0.21),
      fill(lists.average_squares, 0.05);
  const Tensors expected = formula(lists, 0, 1);
  update(lists, scale_of(1), 11);
  const Tensors got = {lists.parameters[0], lists.averages[0], lists.average_squares[0]};
  for (size_t i = 0; i < got.size(); ++i) {
    const double value = expected[i][0].item<double>(), last_bit = std::ldexp(1.0, std::ilogb(value) - 7);
    const Tensor wide = got[i].to(at::kDouble);
    EXPECT_LT((wide - value).abs().max().item<double>(), last_bit) << i;
    EXPECT_GT((wide.max() - wide.min()).item<double>(), 0) << i;
    EXPECT_NEAR(wide.mean().item<double>(), value, 5 * 0.5 * last_bit / std::sqrt(double(kCount))) << i;
  }
}

TEST(AdamW, RandomBitsAreOfSeedStepAndPlaceAlone) {
  const Form& form = kForms.back();
  const Lists start = random_lists(form, {3000, 3000});
  const auto parameters = [&](int64_t seed, float step) {
    const Lists lists = start.clone();
    for (const Tensor& s : lists.steps) s.fill_(step);
    for (const Tensors* list : {&lists.parameters, &lists.gradients, &lists.averages, &lists.average_squares})
      (*list)[1].copy_((*list)[0]);
    update(lists, scale_of(1), seed);
    return lists.parameters;
  };
  const Tensors first = parameters(1, 1000);
  expect_equal(parameters(1, 1000)[0], first[0], "the same seed");
  EXPECT_FALSE(at::equal(first[1], first[0])) << "two positions in a list have bits of their own";
  EXPECT_FALSE(at::equal(parameters(2, 1000)[0], first[0])) << "another seed";
  EXPECT_FALSE(at::equal(parameters(1, 100000)[0], first[0])) << "another step";
}

// The answers that Random123 lists for counters and keys of zeros and of ones.
TEST(Philox, HasItsKnownAnswers) {
  using optimizer::Rounded;
  const auto zeros = optimizer::random_words(0, 0, 0, Rounded::kParameter, 0);
  const auto ones = optimizer::random_words(~uint64_t{0}, ~0u, ~0u, Rounded::kParameter, ~uint64_t{0});
  const uint32_t of_zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  const uint32_t of_ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(zeros.w[i], of_zeros[i]);
    EXPECT_EQ(ones.w[i], of_ones[i]);
  }
}

// From an average of 0 the next one is a single product, which is then rounded by the bits of (seed, step, index).
TEST(AdamW, RoundsByPhiloxBits) {
  constexpr int64_t kSeed = 0x123456789a, kCount = 1003;
  const Lists lists = random_lists(kForms.back(), {5, kCount}, 7);
  lists.averages[1].zero_();
  const Tensor gradient = lists.gradients[1].to(at::kCPU, at::kFloat);
  update(lists, scale_of(1), kSeed);
  const Tensor got = lists.averages[1].to(at::kCPU);
  for (int64_t i = 0; i < kCount; ++i) {
    const float exact = float(1 - kBeta1) * gradient[i].item<float>();
    const auto words = optimizer::random_words(kSeed, 7, 1, optimizer::Rounded::kAverage, uint64_t(i / 8));
    const uint16_t expected =
        optimizer::stochastic_bfloat16(std::bit_cast<uint32_t>(exact), optimizer::random_bits(words, int(i % 8)));
    EXPECT_EQ(got.const_data_ptr<at::BFloat16>()[i].x, expected) << i;
  }
}

TEST(AdamW, SameBitsWithAnyNumberOfThreads) {
  for (const Form& form : {kForms[0], kForms.back()}) {
    const Lists start = random_lists(form, {100001, 3, 40000});
    expect_same_with_any_threads(
        [&] {
          const Lists lists = start.clone();
          update(lists, scale_of(1), seed_of(form));
          return lists.parameters;
        },
        form.name);
  }
}

// A CPU without fused multiply-adds rounds otherwise.
TEST(AdamW, AGpuHasTheBitsOfACpu) {
  if (device().is_cpu() || package().isa() == "base") GTEST_SKIP() << "needs a GPU, and a CPU with AVX2";
  for (const Form& form : kForms) {
    const Lists here = random_lists(form, kSizes), there = here.to(at::kCPU);
    update(here, scale_of(1.5), seed_of(form));
    update(there, scale_of(1.5, at::kCPU), seed_of(form));
    for (size_t i = 0; i < kSizes.size(); ++i) {
      expect_equal(here.parameters[i].cpu(), there.parameters[i], form.name);
      expect_equal(here.averages[i].cpu(), there.averages[i], form.name);
      expect_equal(here.average_squares[i].cpu(), there.average_squares[i], form.name);
    }
  }
}

TEST(AdamW, RefusesWhatItCannotDo) {
  const Lists good = random_lists(kForms[0], {8, 9});
  const auto refused = [&](const std::function<void(Lists&)>& change, const std::vector<std::string>& words) {
    Lists lists = good.clone();
    change(lists);
    expect_refusal([&] { update(lists, scale_of(1), std::nullopt); }, words);
  };
  refused([](Lists& l) { l.gradients.pop_back(); }, {"as many gradients as parameters, 2", "got 1"});
  refused([](Lists& l) { l.averages[1] = l.averages[0]; }, {"averages[1]", "9 elements", "got [8]"});
  refused([](Lists& l) { l.gradients[1] = l.gradients[1].to(at::kHalf); },
          {"gradients[1] in the dtype of the list's first, float32; got float16"});
  refused([](Lists& l) { l.parameters[0] = zeros({8, 2}).select(1, 0); }, {"contiguous", "parameters[0]"});
  refused([](Lists& l) { l.masters = l.parameters; }, {"masters"});
  refused([](Lists& l) { l.steps[0] = l.steps[0].to(at::kDouble); }, {"steps[0] as one float32", "float64"});
  refused(
      [](Lists& l) {
        for (auto& m : l.averages) m = m.to(at::kHalf);
      },
      {"average_squares[0] in the dtype of averages"});
  refused(
      [](Lists& l) {
        for (auto* list : {&l.averages, &l.average_squares})
          for (auto& m : *list) m = m.to(at::kHalf);
      },
      {"expected averages in the parameters' dtype or float32"});
  expect_refusal([&] { update(good, scale_of(1), 3); }, {"bfloat16 averages with a seed"});
  expect_refusal([&] { update(good, zeros({2}), std::nullopt); }, {"expected scale as one float32", "got [2]"});
  update({}, scale_of(1), std::nullopt);  // nothing to do
}

TEST(AdamW, CallsAreCounted) {
  const int64_t before = package().call_count("adamw_");
  update(random_lists(kForms[0], {3}), scale_of(1), std::nullopt);
  EXPECT_EQ(package().call_count("adamw_"), before + 1);
  expect_asked_isa();
}

TEST(EveryIsa, Passes) { expect_every_isa_passes(); }
TEST(EveryDevice, Cuda) { expect_cuda_passes(); }

}  // namespace
