// Ops of the attention package: schemas and registrations. What they compute is in attention.h; the rest of the
// contract (which sequences, caches, gradients) in hotswap's attention/1.
#include <limits>

#include "kernels/attention/torch-ext/decode.h"
#include "kernels/attention/torch-ext/gradients.h"
#include "kernels/common/torch/ops.h"
#if defined(CUDA_KERNEL)
#include "kernels/attention/torch-ext/gpu.h"
#endif

namespace attention {
namespace {

using FourTensors = std::tuple<Tensor, Tensor, Tensor, Tensor>;

void zero(Tensor& t) { torch::stable::zero_(t); }

// ---- forward

Outputs forward_on_cpu(Call& c, int64_t dims, const std::vector<cpu::Sequence>& sequences, bool with_lse) {
  Outputs result{new_tensor(c.q, dims, c.q.heads, c.v.numbers, c.dtype, c.device), std::nullopt};
  cpu::Attention& a = c.problem;
  a.out = operand_of(result.out);
  if (with_lse) {
    result.lse = new_lse(c.q, dims, c.device);
    a.lse = static_cast<float*>(result.lse->data_ptr());
    a.lse_head = c.q.rows;
    a.lse_batch = dims == 4 ? c.q.rows * c.q.heads : 0;
  }
  const int64_t last = sequences.empty() ? 0 : sequences.back().first_row + sequences.back().rows;
  if (dims == 3 && last < c.q.rows) {  // rows of no sequence
    zero(result.out);
    if (result.lse) torch::stable::fill_(*result.lse, -std::numeric_limits<double>::infinity());
  }
  cpu::run_forward(a, sequences);
  return result;
}

Outputs dense(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Options& o, bool with_lse) {
  Call c(op, q, k, v, o, 4, q.dim() == 4 ? q.size(0) : 0);
#if defined(CUDA_KERNEL)
  if (!c.device.is_cpu()) return gpu::forward(c, 4, gpu::dense(c), with_lse);
#endif
  return forward_on_cpu(c, 4, cpu::dense_sequences(c), with_lse);
}

Outputs packed(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Packed& p, const Options& o,
               bool with_lse) {
  Call c(op, q, k, v, o, 3, p.cu_q.dim() == 1 ? p.cu_q.size(0) - 1 : 0);
#if defined(CUDA_KERNEL)
  if (!c.device.is_cpu()) return gpu::forward(c, 3, gpu::packed(c, p), with_lse);
#endif
  return forward_on_cpu(c, 3, cpu::packed_sequences(c, p), with_lse);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor& sinks,
                 const MaybeTensor& alibi_slopes, double scale, bool causal, int64_t window_left, int64_t window_right,
                 int64_t chunk, double softcap) {
  return dense("attention", q, k, v, {sinks, alibi_slopes, scale, causal, window_left, window_right, chunk, softcap},
               false)
      .out;
}

std::tuple<Tensor, Tensor> attention_fwd(const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor& sinks,
                                         const MaybeTensor& alibi_slopes, double scale, bool causal,
                                         int64_t window_left, int64_t window_right, int64_t chunk, double softcap) {
  Outputs r = dense("attention_fwd", q, k, v,
                    {sinks, alibi_slopes, scale, causal, window_left, window_right, chunk, softcap}, true);
  return {r.out, *r.lse};
}

// max_seqlen_q and max_seqlen_k: what kernels on a GPU may lay out their work by. Lengths themselves are cu_seqlens'.
Tensor attention_varlen(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q,
                        const Tensor& cu_seqlens_k, const MaybeTensor& seqused_k, int64_t, int64_t,
                        const MaybeTensor& sinks, const MaybeTensor& alibi_slopes, double scale, bool causal,
                        int64_t window_left, int64_t window_right, int64_t chunk, double softcap) {
  return packed("attention_varlen", q, k, v, {cu_seqlens_q, cu_seqlens_k, seqused_k},
                {sinks, alibi_slopes, scale, causal, window_left, window_right, chunk, softcap}, false)
      .out;
}

std::tuple<Tensor, Tensor> attention_varlen_fwd(const Tensor& q, const Tensor& k, const Tensor& v,
                                                const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                                                const MaybeTensor& seqused_k, int64_t, int64_t,
                                                const MaybeTensor& sinks, const MaybeTensor& alibi_slopes, double scale,
                                                bool causal, int64_t window_left, int64_t window_right, int64_t chunk,
                                                double softcap) {
  Outputs r = packed("attention_varlen_fwd", q, k, v, {cu_seqlens_q, cu_seqlens_k, seqused_k},
                     {sinks, alibi_slopes, scale, causal, window_left, window_right, chunk, softcap}, true);
  return {r.out, *r.lse};
}

// ---- backward

Gradients backward_on_cpu(const Call& c, int64_t dims, const std::vector<cpu::Sequence>& sequences,
                          const Saved& saved) {
  const View dout = view_of(saved.dout, dims, c.device);
  const View out = view_of(saved.out, dims, c.device);
  const Tensor lse = checked_lse(saved.lse, c.q, dims, c.device);
  std::optional<Tensor> dlse;
  if (saved.dlse) dlse = checked_lse(*saved.dlse, c.q, dims, c.device);
  Gradients g = new_gradients(c, dims);
  if (dims == 3 || c.q.rows == 0) {  // rows of no sequence, keys that nobody sees
    for (Tensor* t : {&g.dq, &g.dk, &g.dv}) zero(*t);
  }
  cpu::AttentionBackward a{c.problem, dout.operand, operand_of(g.dq), operand_of(g.dk), operand_of(g.dv), nullptr};
  a.out = out.operand;
  a.lse = static_cast<float*>(lse.data_ptr());
  a.lse_head = c.q.rows;
  a.lse_batch = dims == 4 ? c.q.rows * c.q.heads : 0;
  if (dlse) a.dlse = static_cast<const float*>(dlse->data_ptr());
  cpu::run_backward(a, sequences, c.sinks ? static_cast<float*>(g.dsinks.data_ptr()) : nullptr);
  return g;
}

FourTensors backward(const Call& c, int64_t dims, const Packed* packed, const Saved& saved,
                     [[maybe_unused]] bool deterministic) {  // the CPU always is
  check_like_out(saved.dout, c, dims);
  check_like_out(saved.out, c, dims);
#if defined(CUDA_KERNEL)
  if (!c.device.is_cpu()) {
    Gradients g = gpu::backward(c, dims, packed ? gpu::packed(c, *packed) : gpu::dense(c), saved, deterministic);
    return {g.dq, g.dk, g.dv, g.dsinks};
  }
#endif
  Gradients g = backward_on_cpu(c, dims, packed ? cpu::packed_sequences(c, *packed) : cpu::dense_sequences(c), saved);
  return {g.dq, g.dk, g.dv, g.dsinks};
}

FourTensors attention_bwd(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                          const Tensor& lse, const MaybeTensor& dlse, const MaybeTensor& sinks,
                          const MaybeTensor& alibi_slopes, double scale, bool causal, int64_t window_left,
                          int64_t window_right, int64_t chunk, double softcap, bool deterministic) {
  const Options o{sinks, alibi_slopes, scale, causal, window_left, window_right, chunk, softcap};
  const Call c("attention_bwd", q, k, v, o, 4, q.dim() == 4 ? q.size(0) : 0);
  return backward(c, 4, nullptr, {dout, out, lse, dlse}, deterministic);
}

FourTensors attention_varlen_bwd(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Tensor& out, const Tensor& lse, const MaybeTensor& dlse,
                                 const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, const MaybeTensor& seqused_k,
                                 int64_t, int64_t, const MaybeTensor& sinks, const MaybeTensor& alibi_slopes,
                                 double scale, bool causal, int64_t window_left, int64_t window_right, int64_t chunk,
                                 double softcap, bool deterministic) {
  const Options o{sinks, alibi_slopes, scale, causal, window_left, window_right, chunk, softcap};
  const Packed p{cu_seqlens_q, cu_seqlens_k, seqused_k};
  const Call c("attention_varlen_bwd", q, k, v, o, 3, cu_seqlens_q.dim() == 1 ? cu_seqlens_q.size(0) - 1 : 0);
  return backward(c, 3, &p, {dout, out, lse, dlse}, deterministic);
}

// ---- decode

View new_rows(const Call& c, const Tensor& given, int64_t dim) {
  kernels::check_same_dtype(given, c.dtype, "q");
  View fresh = view_of(given, 4, c.device);
  check_tensor(fresh.batch == c.q.batch && fresh.heads == c.k.heads && fresh.numbers == dim, given, "[", c.q.batch,
               ", new rows, ", c.k.heads, ", ", dim, "]; got ", shape_of(given), "; reshape it");
  return fresh;
}

std::tuple<Tensor, Tensor> attention_decode(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                                            const MaybeTensor& k_new, const MaybeTensor& v_new,
                                            const Tensor& cache_seqlens, const MaybeTensor& block_table,
                                            const MaybeTensor& cache_batch_idx, const MaybeTensor& sinks,
                                            const MaybeTensor& alibi_slopes, double scale, bool causal,
                                            int64_t window_left, int64_t window_right, int64_t chunk, double softcap,
                                            int64_t num_splits) {
  const Options o{sinks, alibi_slopes, scale, causal, window_left, window_right, chunk, softcap};
  Call c("attention_decode", q, k_cache, v_cache, o, 4, q.dim() == 4 ? q.size(0) : 0);
  check(k_new.has_value() == v_new.has_value(), c.op, ": expected k_new and v_new, or none of them; got one");
  check(num_splits >= 0, c.op, ": expected num_splits of 1 or more, or 0 to choose; got ", num_splits);
  const Cache cache{k_new, v_new, cache_seqlens, block_table, cache_batch_idx};
  std::optional<View> k_fresh, v_fresh;
  if (k_new) {
    k_fresh = new_rows(c, *k_new, c.k.numbers);
    v_fresh = new_rows(c, *v_new, c.v.numbers);
    check(k_fresh->rows == v_fresh->rows, c.op, ": expected as many rows in v_new as in k_new; got ", v_fresh->rows,
          " and ", k_fresh->rows);
    check(c.k.operand.data == k_cache.data_ptr() && c.v.operand.data == v_cache.data_ptr(), c.op,
          ": expected caches whose last dimension lies in one piece, to write to; got others; make them contiguous");
  }
#if defined(CUDA_KERNEL)
  if (!c.device.is_cpu()) {
    const Outputs r = gpu::decode(c, cache, k_fresh ? &*k_fresh : nullptr, v_fresh ? &*v_fresh : nullptr, num_splits);
    return {r.out, *r.lse};
  }
#endif
  const cpu::Decoding d = cpu::decoding(c, cache, k_fresh ? k_fresh->rows : 0);
  if (k_fresh) {
    cpu::append(c, d, c.problem.k, c.k.numbers, *k_fresh);
    cpu::append(c, d, c.problem.v, c.v.numbers, *v_fresh);
  }
  Tensor out = new_tensor(c.q, 4, c.q.heads, c.v.numbers, c.dtype, c.device);
  Tensor lse = new_lse(c.q, 4, c.device);
  c.problem.out = operand_of(out);
  c.problem.lse = static_cast<float*>(lse.data_ptr());
  c.problem.lse_head = c.q.rows;
  c.problem.lse_batch = c.q.rows * c.q.heads;
  cpu::run_forward(c.problem, d.sequences, num_splits);
  return {out, lse};
}

// ---- the ops

template <size_t... kSizes>
constexpr auto schema(const char (&... parts)[kSizes]) {
  kernels::Name<(kSizes + ...) - sizeof...(kSizes) + 1> all;
  char* next = all.text;
  ((next = std::copy_n(parts, kSizes - 1, next)), ...);
  return all;
}

constexpr char kInputs[] = "(Tensor q, Tensor k, Tensor v, ",
               kSaved[] = "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? dlse, ",
               kSequences[] =
                   "Tensor cu_seqlens_q, Tensor cu_seqlens_k, Tensor? seqused_k, int max_seqlen_q, int max_seqlen_k, ",
               kOptions[] =
                   "Tensor? sinks, Tensor? alibi_slopes, float scale, bool causal, int window_left, int window_right, "
                   "int chunk, float softcap",
               kOutputs[] = ") -> (Tensor out, Tensor lse)",
               kGradients[] = ", bool deterministic) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsinks)";
constexpr auto kForward = schema("attention", kInputs, kOptions, ") -> Tensor");
constexpr auto kVarlen = schema("attention_varlen", kInputs, kSequences, kOptions, ") -> Tensor");
constexpr auto kForwardTrain = schema("attention_fwd", kInputs, kOptions, kOutputs);
constexpr auto kVarlenTrain = schema("attention_varlen_fwd", kInputs, kSequences, kOptions, kOutputs);
constexpr auto kBackward = schema("attention_bwd", kSaved, kOptions, kGradients);
constexpr auto kVarlenBackward = schema("attention_varlen_bwd", kSaved, kSequences, kOptions, kGradients);
constexpr auto kDecode = schema(
    "attention_decode(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? k_new, Tensor? v_new, ",
    "Tensor cache_seqlens, Tensor? block_table, Tensor? cache_batch_idx, ", kOptions, ", int num_splits", kOutputs);

constexpr std::array kOps{
    kernels::op<&attention>(kForward.text),
    kernels::op<&attention_fwd>(kForwardTrain.text),
    kernels::op<&attention_bwd>(kBackward.text),
    kernels::op<&attention_varlen>(kVarlen.text),
    kernels::op<&attention_varlen_fwd>(kVarlenTrain.text),
    kernels::op<&attention_varlen_bwd>(kVarlenBackward.text),
    kernels::op<&attention_decode>(kDecode.text),
};
const kernels::Library<kOps> library;

}  // namespace
}  // namespace attention
