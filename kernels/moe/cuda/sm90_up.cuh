// The first product and the activation at once (sm_90a): a thread has gate and value of a column both, so that h leaves
// the registers only where backward wants it.
#pragma once

#include "kernels/common/gpu/ptx/setmaxnreg.cuh"
#include "kernels/moe/cuda/sm90_rows.cuh"

namespace moe::gpu {

// The activation of sum `at` as the gate and `at` + `apart` as the value, both rounded as h is.
template <class Formula, class T>
__device__ __forceinline__ float activation(const float (&sums)[128], int at, int apart, const Limits& limits) {
  return Formula::template value<true>(limits, rounded<T>(sums[at]), rounded<T>(sums[at + apart]));
}

template <class Formula, class T, bool kByInputs, Columns kColumns>
__global__ void __launch_bounds__(kThreads, 1) activate_product(const __grid_constant__ RowArguments a) {
#if MOE_HOPPER_CODE
  auto& m = begin_block<T>(a.w);
  if (threadIdx.x < kWarpgroup) {
    setmaxnreg_dec<kLoaderRegisters>();
    load_rows<T, kByInputs, kColumns>(a, m);
    return;
  }
  setmaxnreg_inc<kWorkerRegisters>();
  Worker<T, false, kByInputs> w(m);
  Walk<kColumns> walk(a);
  RowTile tile;
  int col;
  for (int t = blockIdx.x; walk.find(t, tile, col); t += gridDim.x) {
    w.multiply_steps((a.in + kDepth - 1) / kDepth);
    const int rows = tile.end - tile.slot, left = a.inner - col;
    const T* bias = static_cast<const T*>(a.bias) + int64_t{tile.expert} * a.out;
    T* h = static_cast<T*>(a.y) + int64_t{tile.slot} * a.out;
    T* to = static_cast<T*>(a.a) + int64_t{tile.slot} * a.inner + col;
    if constexpr (kColumns == Columns::kPairs) {
      if (a.bias != nullptr) w.add_bias(bias + 2 * col, 2 * left, 0, 128);
      if (a.y != nullptr) w.store(h + 2 * col, a.out, rows, 2 * left);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        w.store_columns(to + 64 * half, a.inner, rows, left - 64 * half, [&](T* out) {
#pragma unroll
          for (int at = 0; at < 64; at += 2) {  // a pair of sums is a column
            const int row = w.lane / 4 + at / 2 % 2 * 8, c = at / 4 * 4 + w.lane % 4;
            out[row * 64 + (c / 8 ^ row % 8) * 8 + c % 8] =
                from_float<T>(activation<Formula, T>(w.sums, 64 * half + at, 1, a.limits));
          }
        });
    } else {
      if (a.bias != nullptr) {
        w.add_bias(bias + col, left, 0, 64);
        w.add_bias(bias + a.inner + col, left, 64, 64);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (a.y != nullptr) {
#pragma unroll
          for (int of = 0; of < 2; ++of)  // gates, values
            w.store_columns(h + of * a.inner + col + 64 * half, a.out, rows, left - 64 * half, [&](T* out) {
              const int first = 64 * of + 32 * half;
              w.fill_by_words(out, [&](int at) { return pack_pair<T>(w.sums[first + at], w.sums[first + at + 1]); });
            });
        }
        w.store_columns(to + 64 * half, a.inner, rows, left - 64 * half, [&](T* out) {
          w.fill_by_words(out, [&](int at) {
            return pack_pair<T>(activation<Formula, T>(w.sums, 32 * half + at, 64, a.limits),
                                activation<Formula, T>(w.sums, 32 * half + at + 1, 64, a.limits));
          });
        });
      }
    }
  }
#endif
}

template <class Formula, class T, bool kByInputs>
void launch_activated(const cuda::Product& a, void* activated, Stream stream) {
  const auto run = [&]<Columns kColumns>() {
    with_row_arguments(a, kColumns, [&](RowArguments arguments, int64_t blocks) {
      arguments.a = activated;
      launch_with_memory<&activate_product<Formula, T, kByInputs, kColumns>>(kMemoryBytes<T>, blocks, kThreads, stream,
                                                                             arguments);
    });
  };
  a.p.interleaved ? run.template operator()<Columns::kPairs>() : run.template operator()<Columns::kHalves>();
}
template <class Formula>
void launch_activated(const cuda::Product& a, void* activated, Stream stream) {
  with_half(a.p.dtype, [&]<typename T>() {
    a.by_inputs ? launch_activated<Formula, T, true>(a, activated, stream)
                : launch_activated<Formula, T, false>(a, activated, stream);
  });
}

}  // namespace moe::gpu
