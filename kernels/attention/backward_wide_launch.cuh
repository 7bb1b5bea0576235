// Launches of backward_wide.cuh for one size of heads.
#pragma once

#include "kernels/attention/backward_wide.cuh"
#include "kernels/attention/mma_launch.cuh"

namespace attention::gpu {

template <class B>
void launch_wide(const Backward& a, const float* space, Stream stream) {
  const Problem& p = a.problem;
  const TensorShape k = shape_of(p, a.k, a.k_strides, p.key_rows, p.key_heads, p.dim);
  const TensorShape v = shape_of(p, a.v, a.v_strides, p.key_rows, p.key_heads, p.value_dim);
  const TensorShape q = shape_of(p, a.q, a.q_strides, p.query_rows, p.heads, p.dim);
  const TensorShape dout = shape_of(p, a.dout, a.dout_strides, p.query_rows, p.heads, p.value_dim);
  const WideArguments arguments{.own_first = tensor_map(B::kKeysStay ? k : q, B::kOwn),
                                .own_second = tensor_map(B::kKeysStay ? v : dout, B::kOwn),
                                .first = tensor_map(B::kKeysStay ? q : k, B::kOther),
                                .second = tensor_map(B::kKeysStay ? dout : v, B::kOther),
                                .a = backward_arguments<B>(a, space)};
  launch_with_memory<&wide_backward_kernel<B>>(sizeof(WideMemory<B>), arguments.a.order.tiles, B::kThreads, stream,
                                               arguments);
}

// Whole batches with rows and keys in them.
template <int kDim, int kValueDim, int kOther>
void backward_wide(const Backward& a, float* space, Stream stream) {
  with_numbers(a.problem, [&]<class T>() {
    launch_delta<T>(a, space, stream);
    launch_wide<WideTraits<T, kDim, kValueDim, kOther, true, true>>(a, space, stream);
    launch_wide<WideTraits<T, kDim, kValueDim, 64, true, false>>(a, space, stream);
    launch_wide<WideTraits<T, kDim, kValueDim, kOther, false, true>>(a, space, stream);
  });
}

}  // namespace attention::gpu
