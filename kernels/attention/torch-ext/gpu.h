// The ops where their tensors are on a GPU: nothing here waits for it.
#pragma once

#include <limits>

#include "kernels/attention/cuda/attention.h"
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
  return view_of(copy, copy.dim(), device);
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
  check(c.q.batch == c.k.batch, c.op, ": expected q and k of one batch size; got ", c.q.batch, " and ", c.k.batch);
  return {c.q.batch, std::nullopt, std::nullopt, std::nullopt};
}
inline Starts packed(const Call& c, const Packed& p) {
  const int64_t ends = ends_of(p);
  Starts s{ends - 1, as_int32(p.cu_q, ends, c.device), as_int32(p.cu_k, ends, c.device), std::nullopt};
  if (p.used_k) s.used = as_int32(*p.used_k, ends - 1, c.device);
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
  if (starts.sequences == 0 && c.q.rows > 0) {  // rows of nobody
    torch::stable::zero_(r.out);
    if (r.lse) torch::stable::fill_(*r.lse, -std::numeric_limits<double>::infinity());
    return r;
  }
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
  const View dout = aligned(view_of(saved.dout, dims, c.device), c.device);
  const View out = aligned(view_of(saved.out, dims, c.device), c.device);
  const Tensor lse = checked_lse(saved.lse, c.q, dims, c.device);
  std::optional<Tensor> dlse;
  if (saved.dlse) dlse = checked_lse(*saved.dlse, c.q, dims, c.device);
  Gradients g = new_gradients(c, dims);
  if (starts.sequences == 0) {
    for (Tensor* t : {&g.dq, &g.dk, &g.dv, &g.dsinks}) torch::stable::zero_(*t);
    return g;
  }
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

// Lengths and pages are known to the GPU alone: what is wrong with them is not found here.
inline Outputs decode(const Call& c, const Cache& cache, const View* k_new, const View* v_new, int64_t splits) {
  check(!(cache.block_table && cache.batch_idx), c.op,
        ": expected a block_table or cache_batch_idx; got both; a block_table already defines where a sequence is "
        "stored");
  const Tensor lengths = as_int32(cache.lengths, c.q.batch, c.device);
  std::optional<Tensor> table, index;
  if (cache.batch_idx) index = as_int32(*cache.batch_idx, c.q.batch, c.device);
  if (cache.block_table) {
    const Tensor& t = *cache.block_table;
    check_pages(t, c.q.batch, c.device);
    table = t.stride(1) == 1 || t.size(1) <= 1 ? t : torch::stable::contiguous(t);
  } else {
    check(index || c.k.batch >= c.q.batch, c.op, ": expected a cache of ", c.q.batch, " rows or more; got ", c.k.batch);
  }
  const View q = aligned(c.q, c.device);
  std::optional<View> k_fresh, v_fresh;
  if (k_new != nullptr) k_fresh = aligned(*k_new, c.device);
  if (v_new != nullptr) v_fresh = aligned(*v_new, c.device);
  Outputs r{new_tensor(c.q, 4, c.q.heads, c.v.numbers, c.dtype, c.device), new_lse(c.q, 4, c.device)};
  if (c.q.batch == 0 || c.q.rows == 0) return r;
  Decode a{.problem = problem_of(c, {c.q.batch, std::nullopt, std::nullopt, std::nullopt}),
           .out = r.out.data_ptr(),
           .lse = static_cast<float*>(r.lse->data_ptr()),
           .q = q.operand.data,
           .k_cache = c.k.operand.data,
           .v_cache = c.v.operand.data,
           .k_new = k_fresh ? k_fresh->operand.data : nullptr,
           .v_new = v_fresh ? v_fresh->operand.data : nullptr,
           .lengths = static_cast<const int32_t*>(lengths.data_ptr()),
           .block_table = table ? static_cast<const int32_t*>(table->data_ptr()) : nullptr,
           .cache_index = index ? static_cast<const int32_t*>(index->data_ptr()) : nullptr,
           .new_rows = k_fresh ? k_fresh->rows : 0,
           .page_rows = c.k.rows,
           .block_table_stride = table ? table->stride(0) : 0,
           .splits = splits,
           .q_strides = q.operand.strides,
           .k_cache_strides = c.k.operand.strides,
           .v_cache_strides = c.v.operand.strides,
           .k_new_strides = k_fresh ? k_fresh->operand.strides : Strides{},
           .v_new_strides = v_fresh ? v_fresh->operand.strides : Strides{}};
  if (table) a.problem.key_rows = table->size(1) * c.k.rows;
  run(c, a, [&](void* workspace, auto stream) { cuda::decode(a, workspace, stream); });
  return r;
}

}  // namespace attention::gpu
