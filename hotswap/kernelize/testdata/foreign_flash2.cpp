// A package in the shape of kernels-community/flash-attn2, on the CPU: its schemas, and what is particular in its
// results and its demands.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "hotswap/kernelize/testdata/attention_reference_impl.h"

#define LIBRARY(ns, m) TORCH_LIBRARY(ns, m)  // one more level, so that the id expands

namespace {

using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Generator = std::optional<at::Generator>;

Tensor replaced(const Tensor& lse, double from, double to) {
  return at::where(lse == from, at::full_like(lse, to), lse);
}

void check(const Tensor& q, const Tensor& k, const Tensor& v) {
  TORCH_CHECK(q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf, "only fp16 and bf16");
  TORCH_CHECK(q.size(-1) % 8 == 0 && v.size(-1) == q.size(-1), "head sizes are multiples of 8, and one");
  for (const Tensor& t : {q, k, v}) TORCH_CHECK(t.stride(-1) == 1, "the last dimension is contiguous");
}

Options options(double scale, bool causal, int64_t left, int64_t right, double softcap) {
  return {{}, {}, scale, causal, left, right, 0, softcap};
}

Four results(const std::tuple<Tensor, Tensor>& out_lse) {
  return {std::get<0>(out_lse), replaced(std::get<1>(out_lse), -kInf, kInf), at::empty({0}), at::empty({2}, at::kLong)};
}

Four fwd(Tensor q, const Tensor& k, const Tensor& v, const OptTensor&, const OptTensor& slopes, double dropout,
         double scale, bool causal, int64_t left, int64_t right, double softcap, bool probabilities, Generator random) {
  check(q, k, v);
  TORCH_CHECK(!slopes && dropout == 0 && !probabilities && !random);
  return results(attend_rows(q, k, v, options(scale, causal, left, right, softcap)));
}

Four varlen_fwd(Tensor q, const Tensor& k, const Tensor& v, const OptTensor&, const Tensor& cu_q, const Tensor& cu_k,
                const OptTensor& used, const OptTensor& leftpad, const OptTensor& table, const OptTensor& slopes,
                int64_t max_q, int64_t max_k, double dropout, double scale, bool zeroed, bool causal, int64_t left,
                int64_t right, double softcap, bool probabilities, Generator random) {
  check(q, k, v);
  TORCH_CHECK(!leftpad && !table && !slopes && dropout == 0 && !zeroed && !probabilities && !random);
  TORCH_CHECK(max_q > 0 && max_k > 0);
  return results(attend_packed(q, k, v, Sequence::all(cu_q, cu_k, used), options(scale, causal, left, right, softcap)));
}

void check_saved(const Tensor& dout, const Tensor& out, const Tensor& lse) {
  TORCH_CHECK(dout.stride(-1) == 1 && out.stride(-1) == 1 && !lse.eq(-kInf).any().item<bool>());
}

Four bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, const OptTensor&, const OptTensor&,
         const OptTensor&, const OptTensor&, double, double scale, bool causal, int64_t left, int64_t right,
         double softcap, bool, Generator, const OptTensor&) {
  check_saved(dout, out, lse);
  const Gradients g = attend_rows_backward(dout, q, k, v, out, lse, options(scale, causal, left, right, softcap));
  return {g.dq, g.dk, g.dv, lse};
}

Four varlen_bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, const OptTensor&, const OptTensor&,
                const OptTensor&, const Tensor& cu_q, const Tensor& cu_k, const OptTensor&, int64_t, int64_t, double,
                double scale, bool, bool causal, int64_t left, int64_t right, double softcap, bool, Generator,
                const OptTensor&) {
  check_saved(dout, out, lse);
  const Gradients g = attend_packed_backward(dout, q, k, v, out, lse, Sequence::all(cu_q, cu_k),
                                             options(scale, causal, left, right, softcap));
  return {g.dq, g.dk, g.dv, lse};
}

// Of older builds: a list instead of a tuple.
std::vector<Tensor> fwd_kvcache(Tensor q, Tensor k_cache, Tensor v_cache, const OptTensor& k, const OptTensor& v,
                                const OptTensor& lengths, const OptTensor&, const OptTensor&, const OptTensor&,
                                const OptTensor&, const OptTensor& table, const OptTensor&, const OptTensor&,
                                double scale, bool causal, int64_t left, int64_t right, double softcap, bool, int64_t) {
  check(q, k_cache, v_cache);
  TORCH_CHECK(!k && !v && !table && lengths);
  const auto [out, lse] = attend_cached(q, k_cache, v_cache, *lengths, options(scale, causal, left, right, softcap));
  return {out, replaced(lse, -kInf, kInf)};
}

}  // namespace

LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def(
      "fwd(Tensor! q, Tensor k, Tensor v, Tensor(out_!)? out_, Tensor? alibi_slopes_, float p_dropout, "
      "float softmax_scale, bool is_causal, int window_size_left, int window_size_right, float softcap, "
      "bool return_softmax, Generator? gen_) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "varlen_fwd(Tensor! q, Tensor k, Tensor v, Tensor? out_, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
      "Tensor? seqused_k_, Tensor? leftpad_k_, Tensor? block_table_, Tensor? alibi_slopes_, int max_seqlen_q, "
      "int max_seqlen_k, float p_dropout, float softmax_scale, bool zero_tensors, bool is_causal, "
      "int window_size_left, int window_size_right, float softcap, bool return_softmax, Generator? gen_) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "bwd(Tensor! dout, Tensor! q, Tensor! k, Tensor! v, Tensor! out, Tensor! softmax_lse, Tensor? dq_, Tensor? dk_, "
      "Tensor? dv_, Tensor? alibi_slopes_, float p_dropout, float softmax_scale, bool is_causal, int window_size_left, "
      "int window_size_right, float softcap, bool deterministic, Generator? gen_, Tensor? rng_state) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "varlen_bwd(Tensor! dout, Tensor! q, Tensor! k, Tensor! v, Tensor! out, Tensor! softmax_lse, Tensor? dq_, "
      "Tensor? dk_, Tensor? dv_, Tensor cu_seqlens_q, Tensor cu_seqlens_k, Tensor? alibi_slopes_, int max_seqlen_q, "
      "int max_seqlen_k, float p_dropout, float softmax_scale, bool zero_tensors, bool is_causal, "
      "int window_size_left, int window_size_right, float softcap, bool deterministic, Generator? gen_, "
      "Tensor? rng_state) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "fwd_kvcache(Tensor! q, Tensor! kcache, Tensor! vcache, Tensor? k_, Tensor? v_, Tensor? seqlens_k_, "
      "Tensor? rotary_cos_, Tensor? rotary_sin_, Tensor? cache_batch_idx_, Tensor? leftpad_k_, Tensor? block_table_, "
      "Tensor? alibi_slopes_, Tensor? out_, float softmax_scale, bool is_causal, int window_size_left, "
      "int window_size_right, float softcap, bool is_rotary_interleaved, int num_splits) -> Tensor[]");
  m.impl("fwd", c10::kCPU, &fwd);
  m.impl("varlen_fwd", c10::kCPU, &varlen_fwd);
  m.impl("bwd", c10::kCPU, &bwd);
  m.impl("varlen_bwd", c10::kCPU, &varlen_bwd);
  m.impl("fwd_kvcache", c10::kCPU, &fwd_kvcache);
}
