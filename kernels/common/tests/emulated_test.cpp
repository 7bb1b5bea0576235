// The emulation of a GPU's block finds what is wrong on purpose (testing/emulated/block.h).
#include <gtest/gtest.h>

#include "kernels/common/gpu/device.cuh"
#include "kernels/common/gpu/ptx/cp_async.cuh"
#include "kernels/common/testing/emulated/elements.h"

namespace {

using namespace emulated;

float of_block(int threads, const std::function<void(float*)>& kernel) {
  static float memory[1024];
  std::fill(std::begin(memory), std::end(memory), 0.f);
  emulated::run_grid([&] { kernel(memory); }, {1, 1, 1}, {unsigned(threads), 1, 1});
  return memory[0];
}
void sum_of_two_warps(float* memory, bool with_barrier) {
  const float sum = kernels::gpu::warp_sum(1.f);
  if (threadIdx.x % 32 == 0) memory[1 + threadIdx.x / 32] = sum;
  if (with_barrier) __syncthreads();
  if (threadIdx.x == 0) memory[0] = memory[1] + memory[2];
}

TEST(Emulated, FindsAMissingBarrier) {
  for (const auto order : kOrders) {
    emulated::order = order;
    EXPECT_EQ(of_block(64, [](float* m) { sum_of_two_warps(m, true); }), 64);
  }
  emulated::order = emulated::Order::kAscending;
  const float first = of_block(64, [](float* m) { sum_of_two_warps(m, false); });
  emulated::order = emulated::Order::kDescending;
  EXPECT_NE(first, of_block(64, [](float* m) { sum_of_two_warps(m, false); }));
}

TEST(Emulated, FindsABrokenShuffleMask) {
  emulated::order = emulated::Order::kAscending;
  const auto half = [](float* m) { *m = __shfl_xor_sync(0xffffu, 1.f, 1); };  // lanes 16 to 31 are not in it
  EXPECT_THROW(of_block(32, half), std::runtime_error);
  const auto gone = [](float* m) {  // half of the lanes have ended
    if (threadIdx.x < 16) *m = __shfl_xor_sync(0xffffffffu, 1.f, 1);
  };
  EXPECT_THROW(of_block(32, gone), std::runtime_error);
}

TEST(Emulated, FindsAWaitTooFew) {
  emulated::order = emulated::Order::kAscending;
  static uint4 from, to;
  from = {1, 2, 3, 4};
  const auto copied = [](bool waits) {
    return of_block(1, [waits](float* m) {
      kernels::gpu::cp_async(&to, &from, false);
      kernels::gpu::cp_async_commit();
      if (waits) kernels::gpu::cp_async_wait<0>();
      *m = to.x == 1;
      kernels::gpu::cp_async_wait<0>();
    });
  };
  EXPECT_EQ(copied(true), 1);
  EXPECT_EQ(copied(false), 0);
}

}  // namespace
