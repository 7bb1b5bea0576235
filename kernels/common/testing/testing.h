// For <package>_test.cpp: random inputs, float64 references with autograd's gradients, comparison, every ISA.
// A test reads:
//   const auto in = random_tensors({{3, 7}, {7}}, at::kBFloat16);
//   const auto want = reference(formula, in, dys);                      // float64: outputs, then gradients of in
//   expect_close(got, want[0], tolerance(at::kBFloat16), "y");
// The same tests run on a GPU: HOTSWAP_TEST_DEVICE=cuda norm_test, or cuda:1; TEST(EveryDevice, Cuda) does so where
// there is one.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "kernels/common/testing/package.h"

namespace kernels::testing {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// The same inputs each run, so that a red test is red again; HOTSWAP_TEST_SEED=N tries others (tests must pass any).
inline uint64_t seed() {
  static const uint64_t chosen = [] {
    const char* given = std::getenv("HOTSWAP_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : 0;
  }();
  return chosen;
}
inline at::Generator& generator() {
  static at::Generator g = [] {
    at::Generator made = at::globalContext().defaultGenerator(at::kCPU).clone();
    made.set_current_seed(seed());
    return made;
  }();
  return g;
}

// Each test begins its draws again, by its name: its values do not depend on the tests that ran before it.
inline uint64_t seed_of(const ::testing::TestInfo& test) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : std::string(test.test_suite_name()) + "." + test.name()) hash = (hash ^ uint8_t(c)) * 16777619u;
  return hash ^ uint32_t(seed());
}
struct SeedEachTest : ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override { generator().set_current_seed(seed_of(test)); }
};
inline const bool kSeedsEachTest = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new SeedEachTest);
  return true;
}();

// Where this process runs its ops.
#ifdef HOTSWAP_PACKAGE_DIR
inline at::Device device() {
  if (on_cuda()) package();  // brings libtorch's CUDA half along
  return test_device();
}
#else
inline at::Device device() { return at::kCPU; }
#endif

inline Tensor random_tensor(at::IntArrayRef shape, at::ScalarType dtype, double scale = 1.0) {
  return (at::randn(shape, generator(), at::kFloat) * scale).to(dtype).to(device());
}
inline Tensor zeros(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::zeros(shape, at::device(device()).dtype(dtype));
}
inline Tensors random_tensors(const std::vector<std::vector<int64_t>>& shapes, at::ScalarType dtype) {
  Tensors out;
  for (const auto& shape : shapes) out.push_back(random_tensor(shape, dtype));
  return out;
}

// The same values in other memory.
inline Tensor misaligned(const Tensor& t) {  // one element past the allocation's aligned start
  Tensor memory = at::zeros_like(t).new_zeros({t.numel() + 1});
  Tensor view = memory.narrow(0, 1, t.numel()).view(t.sizes());
  return view.copy_(t);
}
inline Tensor row_strided(const Tensor& t) {  // rows further apart than they are long
  auto sizes = t.sizes().vec();
  sizes.back() += 5;
  Tensor view = t.new_zeros(sizes).narrow(-1, 2, t.size(-1));
  return view.copy_(t);
}
inline Tensor transposed(const Tensor& t) {  // the last dimension is not contiguous
  return t.transpose(0, -1).contiguous().transpose(0, -1);
}
// name -> the same values laid out so
inline std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> layouts() {
  return {{"contiguous", [](const Tensor& t) { return t; }},
          {"misaligned", misaligned},
          {"row_strided", row_strided},
          {"transposed", transposed}};
}

// Unit roundoff of the dtype: what one rounding from float32 can cost at most (float32: sums of n terms, a few units).
// A result that is rounded k times gets k times that.
inline double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 2e-6 : dtype == at::kHalf ? 1.0 / 2048 : 1.0 / 256;
}

// One thread, except where a test is about threads: small shapes would mostly wait for each other on a busy machine.
struct OneThread : ::testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};
inline const auto* const kOneThread = ::testing::AddGlobalTestEnvironment(new OneThread);

// Same shape, and |got - want| <= tolerance |want| + what cannot be relative to want, in L2 norms; NaN never passes.
// terms [as want]: the sizes of what each value is a sum of, where terms may cancel; float32 knows each to a few units,
// what becomes bfloat16 to 1e-4 (math.h, kCoarse).
inline void expect_close(const Tensor& got, const Tensor& want, double tolerance, const std::string& what,
                         const Tensor& terms = Tensor()) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  if (want.numel() == 0) return;
  const auto norm = [](const Tensor& t) { return t.detach().to(at::kDouble).norm().item<double>(); };
  const double error = norm(got.to(at::kDouble) - want.to(at::kDouble));
  double allowed = tolerance * norm(want);
  if (terms.defined()) allowed += (got.scalar_type() == at::kBFloat16 ? 1e-4 : 5e-7) * norm(terms);
  if (got.scalar_type() == at::kHalf) allowed += std::ldexp(std::sqrt(double(want.numel())), -25);  // its subnormals
  EXPECT_TRUE(error <= allowed) << what << ": L2 error " << error << ", expected at most " << allowed << " ("
                                << tolerance << " of " << norm(want) << "); HOTSWAP_TEST_SEED=" << seed();
}
inline void expect_equal(const Tensor& got, const Tensor& want, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_TRUE(got.equal(want)) << what << ": not bit-equal; HOTSWAP_TEST_SEED=" << seed();
}

// formula in float64 on copies of the inputs: its outputs, then the gradient of sum(output * dy) for each input.
using Formula = std::function<Tensors(const Tensors&)>;
inline Tensors reference(const Formula& formula, const Tensors& inputs, const Tensors& dys) {
  at::AutoGradMode grad(true);
  Tensors leaves;
  for (const Tensor& t : inputs) leaves.push_back(t.detach().to(at::kDouble).clone().requires_grad_(true));
  Tensors result = formula(leaves);
  Tensor loss;
  for (size_t i = 0; i < dys.size(); ++i) {
    const Tensor term = (result[i] * dys[i].to(at::kDouble)).sum();
    loss = loss.defined() ? loss + term : term;
  }
  if (loss.defined()) loss.backward();
  for (Tensor& t : result) t = t.detach();
  for (const Tensor& leaf : leaves) result.push_back(leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf));
  return result;
}

// The op's own float32 forward by central differences against its backward: catches a gradient of another function.
// `forward` gives sum(output * dy) in float64. Error: h^2 of curvature + roundoff / h, both about 1e-4 at h = 1e-2.
inline void expect_finite_difference(const std::function<double(const Tensors&)>& forward, const Tensors& inputs,
                                     const Tensors& gradients, const std::string& what) {
  const float h = 1e-2f;
  for (size_t k = 0; k < gradients.size(); ++k) {
    Tensor numeric = at::zeros_like(inputs[k], at::kDouble).contiguous().view({-1});
    for (int64_t i = 0; i < inputs[k].numel(); ++i) {
      double side[2];
      for (const int s : {0, 1}) {
        Tensors moved = inputs;
        moved[k] = inputs[k].clone();
        moved[k].view({-1})[i] += s ? h : -h;
        side[s] = forward(moved);
      }
      numeric[i] = (side[1] - side[0]) / (2.0 * h);
    }
    expect_close(gradients[k], numeric.view(inputs[k].sizes()), 5e-3,
                 what + ", finite differences of input " + std::to_string(k));
  }
}

// Runs fn with 1, 2 and 3 threads: all results must be bit-equal.
inline void expect_same_with_any_threads(const std::function<Tensors()>& fn, const std::string& what) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const Tensors one = fn();
  for (const int threads : {2, 3}) {
    at::set_num_threads(threads);
    const Tensors many = fn();
    for (size_t i = 0; i < one.size(); ++i) {
      expect_equal(many[i], one[i],
                   what + " output " + std::to_string(i) + ", " + std::to_string(threads) + " threads");
    }
  }
  at::set_num_threads(before);
}

// An op must refuse: the error holds every one of the words.
inline void expect_refusal(const std::function<void()>& fn, const std::vector<std::string>& words) {
  try {
    fn();
    ADD_FAILURE() << "expected an error with \"" << words.front() << "\"; nothing was thrown";
  } catch (const std::exception& e) {
    for (const std::string& word : words) {
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << "expected \"" << word << "\" in: " << e.what();
    }
  }
}

#ifdef HOTSWAP_PACKAGE_DIR
// Runs this test program again with other settings in its environment, without the tests that do so.
inline void expect_passes_with(const std::string& settings) {
  std::vector<char> path(4096, '\0');
  ASSERT_GT(readlink("/proc/self/exe", path.data(), path.size() - 1), 0);
  const std::string command = settings + " HOTSWAP_TEST_SEED=" + std::to_string(seed()) + " '" + path.data() +
                              "' --gtest_filter=-EveryIsa.*:EveryDevice.* 2>&1";
  FILE* child = popen(command.c_str(), "r");
  ASSERT_NE(child, nullptr);
  std::string output;
  for (char line[512]; std::fgets(line, sizeof line, child) != nullptr;) output += line;
  EXPECT_EQ(pclose(child), 0) << settings << ":\n" << output;
}
// For each ISA below the best one (a process chooses its ISA once): TEST(EveryIsa, Passes).
inline void expect_every_isa_passes() {
  if (on_cuda()) GTEST_SKIP() << "a GPU's kernels do not depend on the CPU";
  const std::string best = package().isa();
  for (const std::string isa : {"base", "v3"}) {
    if (isa == best) break;
    expect_passes_with("HOTSWAP_ISA=" + isa);
  }
}
#ifdef HOTSWAP_CUDA_PACKAGE_DIR
// Before main: torch looks for its CUDA half once, when it is first asked for anything of CUDA's, a seed for example.
inline const bool kTorchCudaLoaded = load_torch_cuda();
#endif
// On the first GPU, and where there are two on the second while the first is current: TEST(EveryDevice, Cuda).
// HOTSWAP_REQUIRE_CUDA=1: a machine without one fails.
inline void expect_cuda_passes() {
  std::string missing;
#ifdef HOTSWAP_CUDA_PACKAGE_DIR
  if (!load_torch_cuda() || !at::globalContext().hasCUDA()) missing = "no GPU here";
#else
  missing = "built without CUDA";
#endif
  if (missing.empty()) {
    expect_passes_with("HOTSWAP_TEST_DEVICE=cuda");
    if (c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount() > 1) expect_passes_with("HOTSWAP_TEST_DEVICE=cuda:1");
    return;
  }
  if (std::getenv("HOTSWAP_REQUIRE_CUDA") != nullptr) FAIL() << "HOTSWAP_REQUIRE_CUDA is set: " << missing;
  GTEST_SKIP() << missing;
}
// In the child: the ISA asked for is the one that runs.
inline void expect_asked_isa() {
  const char* asked = std::getenv("HOTSWAP_ISA");
  if (asked == nullptr || *asked == '\0') return;
  EXPECT_EQ(package().isa(), asked);
}
#endif

}  // namespace kernels::testing
