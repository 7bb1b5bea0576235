// A package in the shape of kernels-community/flash-attn3 or, with FLASH_VLLM, of vllm-flash-attn3, on the CPU.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "hotswap/kernelize/testdata/attention_reference_impl.h"

#define LIBRARY(ns, m) TORCH_LIBRARY(ns, m)  // one more level, so that the id expands

#ifdef FLASH_VLLM
#define SCALE double scale
#define SCALE_SCHEMA "float softmax_scale=0.0, "
#define CHUNK
#define CHUNK_SCHEMA
#define SINKS , const OptTensor& sinks
#define SINKS_SCHEMA ", Tensor? s_aux=None"
#else
#define SCALE std::optional<double> scale
#define SCALE_SCHEMA "float? softmax_scale=None, "
#define CHUNK int64_t chunk,
#define CHUNK_SCHEMA "int attention_chunk=0, "
#define SINKS
#define SINKS_SCHEMA
#endif

namespace {

using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using OptInt = std::optional<int64_t>;

double given(double scale) { return scale; }
double given(const std::optional<double>& scale) { return scale.value(); }

void check(const Tensor& q, const Tensor& k, const Tensor& v) {
  TORCH_CHECK(q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf, "only fp16 and bf16");
  TORCH_CHECK(q.size(-1) % 8 == 0 && v.size(-1) == q.size(-1), "head sizes are multiples of 8, and one");
  for (const Tensor& t : {q, k, v}) TORCH_CHECK(t.stride(-1) == 1, "the last dimension is contiguous");
}

Four fwd(const Tensor& q, const Tensor& k, const Tensor& v, OptTensor k_new, OptTensor v_new, const OptTensor& q_v,
         OptTensor, const OptTensor& cu_q, const OptTensor& cu_k, const OptTensor& cu_new, const OptTensor&,
         const OptTensor& used, OptInt, OptInt, const OptTensor& table, const OptTensor& rows, const OptTensor&,
         const OptTensor&, const OptTensor&, const OptTensor&, const OptTensor&, const OptTensor&, const OptTensor&,
         SCALE, bool causal, int64_t left, int64_t right, CHUNK double softcap, bool, const OptTensor&, int64_t,
         std::optional<bool>, int64_t SINKS) {
  check(q, k, v);
  TORCH_CHECK(!k_new && !v_new && !q_v && !cu_new && !table && !rows);
#ifdef FLASH_VLLM
  const int64_t chunk = 0;
  TORCH_CHECK(!sinks || (sinks->scalar_type() == at::kBFloat16 && sinks->is_contiguous()), "sinks are bfloat16");
#else
  const OptTensor sinks;
#endif
  const Options o{sinks, {}, given(scale), causal, left, right, chunk, softcap};
  const auto [out, lse] = cu_q   ? attend_packed(q, k, v, Sequence::all(*cu_q, *cu_k, used), o)
                          : used ? attend_cached(q, k, v, *used, o)
                                 : attend_rows(q, k, v, o);
  return {out, lse, at::empty({0}), at::empty({0})};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> bwd(const Tensor& dout, const Tensor& q, const Tensor& k,
                                                       const Tensor& v, const Tensor& out, const Tensor& lse,
                                                       OptTensor dq, OptTensor dk, OptTensor dv, const OptTensor& cu_q,
                                                       const OptTensor& cu_k, const OptTensor&, const OptTensor& used,
                                                       OptInt, OptInt, SCALE, bool causal, int64_t left, int64_t right,
                                                       double softcap, bool, int64_t) {
  check(q, k, v);
  TORCH_CHECK(!used && dout.stride(-1) == 1);
  const Options o{{}, {}, given(scale), causal, left, right, 0, softcap};
  const Gradients g = cu_q ? attend_packed_backward(dout, q, k, v, out, lse, Sequence::all(*cu_q, *cu_k), o)
                           : attend_rows_backward(dout, q, k, v, out, lse, o);
  dq.value().copy_(g.dq), dk.value().copy_(g.dk), dv.value().copy_(g.dv);
  return {lse, lse, at::empty({0}), at::empty({0}), at::empty({0})};
}

}  // namespace

LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def(
      "fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new=None, Tensor(v_new!)? v_new=None, Tensor? q_v=None, "
      "Tensor(out!)? out=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, "
      "Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
      "Tensor? page_table=None, Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, Tensor? rotary_cos=None, "
      "Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, Tensor? q_descale=None, Tensor? k_descale=None, "
      "Tensor? v_descale=None, " SCALE_SCHEMA
      "bool is_causal=False, int window_size_left=-1, int window_size_right=-1, " CHUNK_SCHEMA
      "float softcap=0.0, bool is_rotary_interleaved=False, Tensor? scheduler_metadata=None, int num_splits=0, "
      "bool? pack_gqa=None, int sm_margin=0" SINKS_SCHEMA ") -> (Tensor(out!), Tensor, Tensor, Tensor)");
  m.def(
      "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(dq!)? dq=None, "
      "Tensor(dk!)? dk=None, Tensor(dv!)? dv=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
      "Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, " SCALE_SCHEMA
      "bool is_causal=False, int window_size_left=-1, int window_size_right=-1, float softcap=0.0, "
      "bool deterministic=False, int sm_margin=0) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.impl("fwd", c10::kCPU, &fwd);
  m.impl("bwd", c10::kCPU, &bwd);
}
