// An op's GPU is the current one while it runs, whichever was before. Seen without a GPU: torch's own fake device, of
// which there are eight, stands for it.
#define TORCH_EXTENSION_NAME _ops_test
#include "kernels/common/torch/ops.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

#include <string>
#include <vector>

namespace kernels {
namespace {

using Fake = c10::impl::FakeGuardImpl<c10::kPrivateUse1>;
C10_REGISTER_GUARD_IMPL(PrivateUse1, Fake);

std::vector<int> seen;  // the current device, op by op

Tensor note_device(const Tensor& x, bool refuse) {
  seen.push_back(torch::stable::accelerator::getCurrentDeviceIndex());
  check(!refuse, "note_device: expected not to be refused; got that; leave it");
  return x;
}
std::tuple<Tensor, Tensor> note_devices(const Tensor& x) {
  seen.push_back(torch::stable::accelerator::getCurrentDeviceIndex());
  return {x, x};
}
std::string texts;
Tensor note_text(const Tensor& x, std::string text) {
  texts += text;
  return x;
}
void note_device_in_place(Tensor) { seen.push_back(torch::stable::accelerator::getCurrentDeviceIndex()); }

// Which of its tensors is not on the CPU; of 3 a copy, which is no argument.
Tensor refuse(const Tensor& x, const std::optional<Tensor>& bias, std::vector<Tensor> list, int64_t which) {
  const Tensor copy = torch::stable::clone(list[0]);
  check_device(which == 0 ? x : which == 1 ? *bias : which == 2 ? list[1] : list[0], cpu());
  check_dtype(copy, ScalarType::Long);
  return x;
}

constexpr std::array kOps{
    op<&note_device>("note_device(Tensor x, bool refuse) -> Tensor"),
    op<&note_devices>("note_devices(Tensor x) -> (Tensor, Tensor)"),
    op<&note_device_in_place>("note_device_(Tensor(a!) x) -> ()"),
    cpu_op<&note_devices>("on_the_cpu(Tensor x) -> (Tensor, Tensor)"),
    op<&note_text>("note_text(Tensor x, str text) -> Tensor"),
    op<&refuse>("refuse(Tensor(a!) x, Tensor(b!)? bias, Tensor(c!)[] list, int which=0) -> Tensor"),
};

at::Tensor tensor_on(at::Device device) {
  static float number = 0;
  return at::for_blob(&number, {1}).options(at::device(device).dtype(at::kFloat)).target_device(device).make_tensor();
}

// As torch's dispatcher calls an op that is registered for GPUs. What it returns is let go.
void call_on_gpu(const Op& op, at::Device device, uint64_t outputs, std::optional<bool> refuse = {}) {
  StableIValue stack[4]{};
  auto* handle = torch::aot_inductor::new_tensor_handle(tensor_on(device));
  stack[0] = torch::stable::detail::from(handle);
  if (refuse) stack[1] = torch::stable::detail::from(*refuse);
  op.cuda(stack, refuse ? 2 : 1, outputs);
  for (uint64_t i = 0; i < outputs; ++i) Tensor(torch::stable::detail::to<AtenTensorHandle>(stack[i]));
}

class Ops : public testing::Test {
 protected:
  static void SetUpTestSuite() { c10::register_privateuse1_backend("fake"); }
  void SetUp() override {
    Fake::setDeviceIndex(0);
    seen.clear();
  }
  static at::Device gpu(int index) { return {c10::kPrivateUse1, c10::DeviceIndex(index)}; }
};

TEST_F(Ops, RunWithTheGpuOfTheirFirstTensorAsTheCurrentOne) {
  for (const int current : {0, 2}) {
    Fake::setDeviceIndex(c10::DeviceIndex(current));
    seen.clear();
    for (const int index : {0, 1, 7}) {
      call_on_gpu(kOps[0], gpu(index), 1, false);
      call_on_gpu(kOps[1], gpu(index), 2);
      call_on_gpu(kOps[2], gpu(index), 0);
      EXPECT_EQ(Fake::getDeviceIndex(), current);
    }
    EXPECT_EQ(seen, std::vector<int>({0, 0, 0, 1, 1, 1, 7, 7, 7}));
  }
}

// torch's own conversion of a str leaves it on the heap (string_argument.h).
TEST_F(Ops, LeaveNothingOfTheirStringsOnTheHeap) {
  const std::string given(100, 'x');
  const auto call = [&] {
    StableIValue stack[2]{};
    stack[0] = torch::stable::detail::from(torch::aot_inductor::new_tensor_handle(tensor_on(at::kCPU)));
    stack[1] = torch::stable::detail::from(given);
    kOps[4].cpu(stack, 2, 1);
    Tensor(torch::stable::detail::to<AtenTensorHandle>(stack[0]));
    EXPECT_EQ(texts, given);
    texts.clear();
  };
  constexpr int kCalls = 1000;
  call();
  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < kCalls; ++i) call();
  EXPECT_LT(mallinfo2().uordblks, before + kCalls);  // bytes: less than one for each call
}

TEST_F(Ops, GiveTheGpuBackWhereTheyRefuse) {
  EXPECT_THROW(call_on_gpu(kOps[0], gpu(5), 1, true), std::exception);
  EXPECT_EQ(seen, std::vector<int>({5}));
  EXPECT_EQ(Fake::getDeviceIndex(), 0);
}

// Of mixed devices: it is the op's own check that names them.
TEST_F(Ops, LeaveTheGpuAloneWhereTheFirstTensorIsOnTheCpu) {
  Fake::setDeviceIndex(3);
  call_on_gpu(kOps[0], at::kCPU, 1, false);
  EXPECT_EQ(seen, std::vector<int>({3}));
}

// The functions know neither: the schema does.
TEST_F(Ops, NameThemselvesAndTheArgumentInErrors) {
  registered<& refuse>.name = kOps[5].name, registered<& refuse>.signature = kOps[5].signature;
  const auto tensor = [](at::Device device) {
    return Tensor(torch::aot_inductor::new_tensor_handle(tensor_on(device)));
  };
  const auto text_of = [&](int64_t which) -> std::string {
    const auto at = [&](int64_t n) { return tensor(n == which ? gpu(3) : at::Device(at::kCPU)); };
    StableIValue stack[] = {torch::stable::detail::from(at(0)), torch::stable::detail::from(std::optional(at(1))),
                            torch::stable::detail::from(std::vector{at(4), at(2)}), torch::stable::detail::from(which)};
    try {
      kOps[5].cpu(stack, 4, 1);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "nothing";
  };
  const std::string rest = " on the CPU; got it on GPU 3; move all arguments to one device";
  EXPECT_EQ(text_of(0), "refuse: expected x" + rest);
  EXPECT_EQ(text_of(1), "refuse: expected bias" + rest);
  EXPECT_EQ(text_of(2), "refuse: expected list[1]" + rest);
  EXPECT_EQ(text_of(3), "refuse: expected a tensor in int64; got float32; cast it");
}

TEST_F(Ops, OfTheCpuAloneAreNotRegisteredForGpus) { EXPECT_EQ(kOps[3].cuda, nullptr); }

}  // namespace
}  // namespace kernels
