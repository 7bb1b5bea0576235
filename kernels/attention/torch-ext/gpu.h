// The ops where their tensors are on a GPU: nothing here waits for it.
#pragma once

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/torch-ext/arguments.h"

namespace attention::gpu {

// The kernels read 16 bytes at once; what does not begin there, or goes on elsewhere, is copied.
inline void align(View& view, cpu::Operand& operand, const Device& device) {
  constexpr int64_t kBytes = 16;
  const int64_t size = view.tensor.element_size();
  const Strides& s = view.operand.strides;
  bool fits = reinterpret_cast<uintptr_t>(view.operand.data) % kBytes == 0;
  for (const int64_t stride : {s.batch, s.row, s.head}) fits = fits && stride * size % kBytes == 0;
  if (fits || view.tensor.numel() == 0) return;
  view = view_of(torch::stable::clone(torch::stable::contiguous(view.tensor)), 4, "attention", "a copy", device);
  operand = view.operand;
}

inline Outputs forward(Call& c, bool with_lse) {
  cpu::Attention& a = c.problem;
  check(!c.slopes && a.chunk == 0, c.op, ": wanted no ", c.slopes ? "ALiBi slopes" : "chunk",
        " on a GPU; got some; use torch's attention there");
  align(c.q, a.q, c.device);
  align(c.k, a.k, c.device);
  align(c.v, a.v, c.device);
  Outputs r{new_tensor(c.q, 4, c.q.heads, c.v.numbers, c.dtype, c.device), std::nullopt};
  if (with_lse) r.lse = new_lse(c.q, 4, c.device);
  const Tensor counter = kernels::empty({1}, DType::kFloat32, c.device);  // four bytes
  kernels::run_on(
      c.device,
      [&](auto stream) {
        cuda::forward({.out = r.out.data_ptr(),
                       .lse = r.lse ? static_cast<float*>(r.lse->data_ptr()) : nullptr,
                       .q = a.q.data,
                       .k = a.k.data,
                       .v = a.v.data,
                       .sinks = a.sinks,
                       .q_strides = a.q.strides,
                       .k_strides = a.k.strides,
                       .v_strides = a.v.strides,
                       .batch = c.q.batch,
                       .query_rows = c.q.rows,
                       .key_rows = c.k.rows,
                       .heads = a.heads,
                       .key_heads = a.key_heads,
                       .dim = a.dim,
                       .value_dim = a.value_dim,
                       .window_left = a.left,
                       .window_right = a.right,
                       .scale = a.scale,
                       .softcap = a.softcap,
                       .dtype = a.dtype},
                      static_cast<int*>(counter.data_ptr()), stream);
      },
      [] {});
  return r;
}

}  // namespace attention::gpu
