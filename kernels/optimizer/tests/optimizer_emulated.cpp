// GPU kernels of this package on the CPU, against float64 (common/testing/emulated/block.h).
#include <gtest/gtest.h>

#include "kernels/common/testing/emulated/elements.h"
#include "kernels/optimizer/cuda/optimizer.cu"

namespace {

using namespace emulated;

struct Form {
  DType type, state;
  bool master, stochastic;
};
constexpr DType kFloat = DType::kFloat32, kBFloat = DType::kBFloat16, kHalf = DType::kFloat16;
// All that with_forms has, and where there is a bfloat16 both roundings into it.
constexpr Form kForms[] = {{kFloat, kFloat, false, false},   {kHalf, kHalf, false, false},
                           {kBFloat, kBFloat, false, false}, {kBFloat, kBFloat, false, true},
                           {kHalf, kFloat, true, false},     {kBFloat, kFloat, true, false},
                           {kFloat, kBFloat, false, false},  {kFloat, kBFloat, false, true},
                           {kBFloat, kBFloat, true, false},  {kBFloat, kBFloat, true, true}};

// One tensor, with what it was before.
struct Tensor {
  int64_t size;
  Elements gradient, parameter, average, square, master, step, old_parameter, old_average, old_square, old_master;

  Tensor(const Form& f, int64_t size, int64_t shift, int steps, std::mt19937& draw)
      : size(size),
        gradient(random(draw, f.type, size, shift)),
        parameter(random(draw, f.type, size, shift)),
        average(random(draw, f.state, size, shift, 0.1)),
        square(f.state, size, shift),
        master(kFloat, size, shift),
        step(kFloat, 1),
        old_parameter(parameter),
        old_average(average),
        old_square(square),
        old_master(master) {
    std::uniform_real_distribution<double> uniform(1e-4, 0.1);
    for (int64_t i = 0; i < size; ++i) square.set(i, uniform(draw)), master.set(i, parameter.get(i));
    step.set(0, steps);
    old_square = square, old_master = master;
  }
  optimizer::Item item(const Form& f) {
    return {parameter.data(),
            gradient.data(),
            average.data(),
            square.data(),
            f.master ? static_cast<float*>(master.data()) : nullptr,
            static_cast<float*>(step.data()),
            size};
  }
};

constexpr optimizer::Rates kRates{.learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
constexpr double kScale = 4;

struct Adam {
  Form f;
  Elements scale{kFloat, 1};

  void run(std::vector<Tensor>& tensors, double by) {
    scale.set(0, by);
    std::vector<optimizer::Item> items;
    for (Tensor& t : tensors) items.push_back(t.item(f));
    optimizer::cuda::adamw({.dtype = f.type,
                            .state = f.state,
                            .has_master = f.master,
                            .stochastic = f.stochastic,
                            .seed = 12345,
                            .rates = kRates,
                            .scale = static_cast<float*>(scale.data())},
                           items.data(), int64_t(items.size()), nullptr);
  }
  // To nearest, half of the last bit; up or down, all of it.
  double rounded(DType type, double value) const {
    return rounding(type, value) * (f.stochastic && type == kBFloat ? 2 : 1);
  }
  // Float32's part: four roundings of m and v, each 2^-24 of what is below 1; some ten of p's, whose step is below 1
  // here: lr / (1 - beta1) times m / sqrt(v).
  void check(Tensor& t) {
    const double steps = t.step.get(0), first = 1 - std::pow(kRates.beta1, steps),
                 second = 1 - std::pow(kRates.beta2, steps);
    for (int64_t i = 0; i < t.size; ++i) {
      const double g = t.gradient.get(i) / kScale,
                   m = t.old_average.get(i) + (1 - kRates.beta1) * (g - t.old_average.get(i)),
                   v = kRates.beta2 * t.old_square.get(i) + (1 - kRates.beta2) * g * g;
      const double before = f.master ? t.old_master.get(i) : t.old_parameter.get(i);
      const double p = before * (1 - kRates.learning_rate * kRates.weight_decay) -
                       kRates.learning_rate / first * m / (std::sqrt(v / second) + kRates.eps);
      ASSERT_NEAR(t.average.get(i), m, rounded(f.state, m) + 0x1p-22) << i;
      ASSERT_NEAR(t.square.get(i), v, rounded(f.state, v) + 0x1p-22 * v) << i;
      if (f.master) ASSERT_NEAR(t.master.get(i), p, 0x1p-20) << i;
      ASSERT_NEAR(t.parameter.get(i), p, (f.master ? rounding(f.type, p) : rounded(f.type, p)) + 0x1p-20) << i;
    }
  }
  std::vector<char> bytes(const std::vector<Tensor>& tensors) const {
    std::vector<char> out;
    for (const Tensor& t : tensors)
      for (const Elements* of : {&t.parameter, &t.average, &t.square, &t.master})
        out.insert(out.end(), of->bytes().begin(), of->bytes().end());
    return out;
  }
};

// One element, a draw's and one more, misaligned, none, a tensor of two pieces and a tail; steps 1 and later.
std::vector<Tensor> tensors_of(const Form& f, std::mt19937& draw) {
  std::vector<Tensor> all;
  for (const auto& [size, shift, steps] : {std::tuple<int, int, int>{1, 0, 1},
                                           {8, 0, 3},
                                           {9, 0, 1},
                                           {1027, 1, 7},
                                           {0, 0, 1},
                                           {8195, 0, 1000},
                                           {2048, 0, 2}})
    all.emplace_back(f, size, shift, steps, draw);
  return all;
}

TEST(Emulated, AdamW) {
  for (const Form& f : kForms) {
    SCOPED_TRACE(testing::Message() << "type " << int(f.type) << " state " << int(f.state) << " master " << f.master
                                    << " stochastic " << f.stochastic);
    expect_same_in_every_order(f.type, [&] {
      std::mt19937 draw(18);
      Adam adam{f};
      std::vector<Tensor> tensors = tensors_of(f, draw);
      adam.run(tensors, kScale);
      for (Tensor& t : tensors) adam.check(t);
      return adam.bytes(tensors);
    });
    if (HasFailure()) return;
  }
}

// More tensors than a launch has, each of its own index: the random bits of a tensor follow from it.
TEST(Emulated, MoreTensorsThanALaunch) {
  const Form f{kBFloat, kBFloat, false, true};
  std::mt19937 draw(19);
  Adam adam{f};
  std::vector<Tensor> tensors;
  const Tensor first(f, 8, 0, 2, draw);
  for (int i = 0; i < optimizer::cuda::kItems + 3; ++i) tensors.push_back(first);
  adam.run(tensors, kScale);
  int other = 0;
  for (Tensor& t : tensors) {
    adam.check(t);
    other += t.average.bytes() != tensors[0].average.bytes();
  }
  EXPECT_GT(other, optimizer::cuda::kItems / 2);
  EXPECT_NE(tensors[0].average.bytes(), tensors[optimizer::cuda::kItems].average.bytes());
}

TEST(Emulated, NothingIsWrittenWhereTheScaleIsNotFinite) {
  std::mt19937 draw(20);
  for (const double by : {double(INFINITY), double(NAN)}) {
    Adam adam{kForms[0]};
    std::vector<Tensor> tensors = tensors_of(kForms[0], draw), before = tensors;
    adam.run(tensors, by);
    EXPECT_TRUE(adam.bytes(tensors) == adam.bytes(before));
  }
}

}  // namespace
