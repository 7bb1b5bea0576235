// A package of the contract attention/1 on ATen, for tests: every role, every option, in float64 inside.
#include <torch/library.h>

#include <map>
#include <string>
#include <string_view>

#include "hotswap/kernelize/testdata/attention_reference_impl.h"

#define LIBRARY(ns, m) TORCH_LIBRARY(ns, m)  // one more level, so that the id expands

namespace {

std::map<std::string, int64_t>& calls() {
  static std::map<std::string, int64_t> counted;
  return counted;
}

#define OPTIONS                                                                                            \
  const OptTensor &sinks, const OptTensor &slopes, double scale, bool causal, int64_t left, int64_t right, \
      int64_t chunk, double softcap
#define GIVEN \
  Options { sinks, slopes, scale, causal, left, right, chunk, softcap }

std::tuple<Tensor, Tensor> forward_train(const Tensor& q, const Tensor& k, const Tensor& v, OPTIONS) {
  ++calls()["forward_train"];
  return attend_rows(q, k, v, GIVEN);
}

Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, OPTIONS) {
  ++calls()["forward"];
  return std::get<0>(attend_rows(q, k, v, GIVEN));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                                    const Tensor& v, const Tensor& out, const Tensor& lse,
                                                    const OptTensor& dlse, OPTIONS, bool) {
  ++calls()["backward"];
  TORCH_CHECK(!dlse, "no gradient of lse in this test");
  const Gradients g = attend_rows_backward(dout, q, k, v, out, lse, GIVEN);
  return {g.dq, g.dk, g.dv, g.dsinks};
}

std::tuple<Tensor, Tensor> varlen_forward_train(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_q,
                                                const Tensor& cu_k, const OptTensor& used, int64_t, int64_t, OPTIONS) {
  ++calls()["varlen_forward_train"];
  return attend_packed(q, k, v, Sequence::all(cu_q, cu_k, used), GIVEN);
}

Tensor varlen_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_q, const Tensor& cu_k,
                      const OptTensor& used, int64_t, int64_t, OPTIONS) {
  ++calls()["varlen_forward"];
  return std::get<0>(attend_packed(q, k, v, Sequence::all(cu_q, cu_k, used), GIVEN));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> varlen_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                                           const Tensor& v, const Tensor& out, const Tensor& lse,
                                                           const OptTensor&, const Tensor& cu_q, const Tensor& cu_k,
                                                           const OptTensor&, int64_t, int64_t, OPTIONS, bool) {
  ++calls()["varlen_backward"];
  const Gradients g = attend_packed_backward(dout, q, k, v, out, lse, Sequence::all(cu_q, cu_k), GIVEN);
  return {g.dq, g.dk, g.dv, g.dsinks};
}

std::tuple<Tensor, Tensor> decode(const Tensor& q, Tensor k_cache, Tensor v_cache, const OptTensor& k_new,
                                  const OptTensor& v_new, const Tensor& lengths, const OptTensor& table,
                                  const OptTensor& rows, OPTIONS, int64_t) {
  ++calls()["decode"];
  TORCH_CHECK(!k_new && !v_new && !table && !rows, "a plain cache in this test");
  return attend_cached(q, k_cache, v_cache, lengths, GIVEN);
}

}  // namespace

LIBRARY(TORCH_EXTENSION_NAME, m) {
  const std::string q = "Tensor q, Tensor k, Tensor v, ",
                    grad = "Tensor dout, " + q + "Tensor out, Tensor lse, Tensor? dlse, ",
                    varlen =
                        "Tensor cu_seqlens_q, Tensor cu_seqlens_k, Tensor? seqused_k, int max_seqlen_q, "
                        "int max_seqlen_k, ",
                    options =
                        "Tensor? sinks, Tensor? alibi_slopes, float scale, bool causal, int window_left, "
                        "int window_right, int chunk, float softcap",
                    gradients = ", bool deterministic) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsinks)";
  const auto add = [&](const std::string& schema, auto* function) {
    m.def(schema.c_str());
    m.impl(schema.substr(0, schema.find('(')).c_str(), c10::kCPU, function);
  };
  add("forward(" + q + options + ") -> Tensor", &forward);
  add("forward_train(" + q + options + ") -> (Tensor out, Tensor lse)", &forward_train);
  add("backward(" + grad + options + gradients, &backward);
  add("varlen_forward(" + q + varlen + options + ") -> Tensor", &varlen_forward);
  add("varlen_forward_train(" + q + varlen + options + ") -> (Tensor out, Tensor lse)", &varlen_forward_train);
  add("varlen_backward(" + grad + varlen + options + gradients, &varlen_backward);
  add("decode(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? k_new, Tensor? v_new, Tensor cache_seqlens, "
      "Tensor? block_table, Tensor? cache_batch_idx, " +
          options + ", int num_splits) -> (Tensor out, Tensor lse)",
      &decode);
  m.def("call_count(str op) -> int", [](std::string_view op) { return calls()[std::string(op)]; });
}
