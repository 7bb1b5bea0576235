// The ops where their tensors are on a GPU: nothing here waits for it.
#pragma once

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/torch-ext/gradients.h"

namespace attention::gpu {

// The kernels read 16 bytes at once; what does not begin there, or goes on elsewhere, is copied.
inline View aligned(View view, const Device& device) {
  constexpr int64_t kBytes = 16;
  const int64_t size = view.tensor.element_size();
  const Strides& s = view.operand.strides;
  bool fits = reinterpret_cast<uintptr_t>(view.operand.data) % kBytes == 0;
  for (const int64_t stride : {s.batch, s.row, s.head}) fits = fits && stride * size % kBytes == 0;
  if (fits || view.tensor.numel() == 0) return view;
  const Tensor copy = torch::stable::clone(torch::stable::contiguous(view.tensor));
  return view_of(copy, copy.dim(), "attention", "a copy", device);
}

// Where packed sequences begin, on the device; none: there is a batch.
struct Starts {
  int64_t sequences;
  std::optional<Tensor> q, k, used;
  const int32_t* at(const std::optional<Tensor>& t) const {
    return t ? static_cast<const int32_t*>(t->data_ptr()) : nullptr;
  }
};
inline Starts dense(const Call& c) {
  check(c.q.batch == c.k.batch, c.op, ": wanted q and k of one batch size; got ", c.q.batch, " and ", c.k.batch);
  return {c.q.batch, std::nullopt, std::nullopt, std::nullopt};
}
inline Starts packed(const Call& c, const Packed& p) {
  const int64_t ends = p.cu_q.dim() == 1 ? p.cu_q.size(0) : 0;
  check(ends >= 1, c.op, ": wanted cu_seqlens_q [sequences + 1]; got ", shape_of(p.cu_q));
  Starts s{ends - 1, as_int32(p.cu_q, ends, c.op, "cu_seqlens_q", c.device),
           as_int32(p.cu_k, ends, c.op, "cu_seqlens_k", c.device), std::nullopt};
  if (p.used_k) s.used = as_int32(*p.used_k, ends - 1, c.op, "seqused_k", c.device);
  return s;
}

inline Problem problem_of(const Call& c, const Starts& s) {
  const cpu::Attention& a = c.problem;
  return {.batch = s.sequences,
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
          .dtype = a.dtype,
          .chunk = a.chunk,
          .sinks = a.sinks,
          .slopes = a.slopes,
          .slopes_batch_stride = a.slopes_batch,
          .query_starts = s.at(s.q),
          .key_starts = s.at(s.k),
          .keys_used = s.at(s.used)};
}

// Asked before outputs are made; then launch(workspace, stream).
template <class Arguments, class Launch>
void run(const Call& c, const Arguments& a, const Launch& launch) {
  kernels::run_on(
      c.device,
      [&](auto stream) {
        const std::string why = cuda::refused(a);
        check(why.empty(), why);
        const int64_t bytes = cuda::workspace_bytes(a);
        const Tensor memory = kernels::empty({(bytes + 3) / 4}, DType::kFloat32, c.device);
        launch(memory.data_ptr(), stream);
      },
      [] {});
}

inline Outputs forward(Call& c, int64_t dims, const Starts& starts, bool with_lse) {
  const View q = aligned(c.q, c.device), k = aligned(c.k, c.device), v = aligned(c.v, c.device);
  Outputs r{new_tensor(c.q, dims, c.q.heads, c.v.numbers, c.dtype, c.device), std::nullopt};
  if (with_lse) r.lse = new_lse(c.q, dims, c.device);
  const Forward a{.problem = problem_of(c, starts),
                  .out = r.out.data_ptr(),
                  .lse = r.lse ? static_cast<float*>(r.lse->data_ptr()) : nullptr,
                  .q = q.operand.data,
                  .k = k.operand.data,
                  .v = v.operand.data,
                  .q_strides = q.operand.strides,
                  .k_strides = k.operand.strides,
                  .v_strides = v.operand.strides};
  run(c, a, [&](void* workspace, auto stream) { cuda::forward(a, workspace, stream); });
  return r;
}

inline Gradients backward(const Call& c, int64_t dims, const Starts& starts, const Saved& saved, bool deterministic) {
  const View q = aligned(c.q, c.device), k = aligned(c.k, c.device), v = aligned(c.v, c.device);
  const View dout = aligned(view_of(saved.dout, dims, c.op, "dout", c.device), c.device);
  const View out = aligned(view_of(saved.out, dims, c.op, "out", c.device), c.device);
  const Tensor lse = checked_lse(saved.lse, c.q, dims, c.op, "lse", c.device);
  std::optional<Tensor> dlse;
  if (saved.dlse) dlse = checked_lse(*saved.dlse, c.q, dims, c.op, "dlse", c.device);
  Gradients g = new_gradients(c, dims);
  const Backward a{.problem = problem_of(c, starts),
                   .dq = g.dq.data_ptr(),
                   .dk = g.dk.data_ptr(),
                   .dv = g.dv.data_ptr(),
                   .dsinks = c.sinks ? static_cast<float*>(g.dsinks.data_ptr()) : nullptr,
                   .dout = dout.operand.data,
                   .q = q.operand.data,
                   .k = k.operand.data,
                   .v = v.operand.data,
                   .out = out.operand.data,
                   .lse = static_cast<const float*>(lse.data_ptr()),
                   .dlse = dlse ? static_cast<const float*>(dlse->data_ptr()) : nullptr,
                   .dout_strides = dout.operand.strides,
                   .q_strides = q.operand.strides,
                   .k_strides = k.operand.strides,
                   .v_strides = v.operand.strides,
                   .out_strides = out.operand.strides,
                   .deterministic = deterministic};
  run(c, a, [&](void* workspace, auto stream) { cuda::backward(a, workspace, stream); });
  return g;
}

}  // namespace attention::gpu
