// kernels-community's flash-attn2, flash-attn3 and vllm-flash-attn3 behind attention/1. What is special in them:
//   - a row that sees nothing has lse +inf in flash-attn2; in the others, and in the contract, -inf;
//   - none takes a gradient of lse or gives one of sinks; flash-attn2's ALiBi shifts lse, so it is left out here.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "hotswap/base/error.h"
#include "hotswap/kernelize/foreign/foreign_impl.h"

namespace hotswap {
namespace {

using at::Tensor;
using c10::IValue;
using Values = AdapterValues;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void refuse(bool found, const char* what) {
  if (!found) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("attention without ", what, ", which this package's ops do not have"),
               .got = what,
               .next = "use the bundled package hotswap/attention"});
}

Tensor replaced(const Tensor& lse, double from, double to) {
  return at::where(lse == from, at::full_like(lse, to), lse);
}

IValue rows(const IValue& value) {  // as all of them want it: the last dimension without gaps
  const Tensor x = value.toTensor();
  return x.stride(-1) == 1 ? x : x.contiguous();
}

// The arguments of one of the contract's ops by what they are; `at` is where each part begins.
NamedValues options_of(const Values& a, size_t at) {
  refuse(!a[at + 1].isNone(), "ALiBi");
  return {{"softmax_scale", a[at + 2]},
          {"is_causal", a[at + 3]},
          {"window_size_left", a[at + 4]},
          {"window_size_right", a[at + 5]},
          {"softcap", a[at + 7]}};
}
bool has_chunk(const Values& a, size_t at) { return a[at + 6].toInt() != 0; }

NamedValues sequences_of(const Values& a, size_t at) {
  return {
      {"cu_seqlens_q", a[at]}, {"cu_seqlens_k", a[at + 1]}, {"max_seqlen_q", a[at + 3]}, {"max_seqlen_k", a[at + 4]}};
}

NamedValues joined(NamedValues all, const NamedValues& more) {
  all.insert(more.begin(), more.end());
  return all;
}

// dout, q, k, v, out, lse, dlse begin each backward.
NamedValues saved_of(const Values& a) {
  refuse(!a[6].isNone(), "a gradient of lse");
  return {{"dout", rows(a[0])}, {"q", rows(a[1])},   {"k", rows(a[2])},
          {"v", rows(a[3])},    {"out", rows(a[4])}, {"softmax_lse", a[5]}};
}

Values gradients(const Values& dq_dk_dv, const Values& a) {
  Values all(dq_dk_dv.begin(), dq_dk_dv.begin() + 3);
  all.emplace_back(at::zeros({0}, a[0].toTensor().options().dtype(at::kFloat)));  // of sinks: there are none
  return all;
}

// ---- flash-attn2 ------------------------------------------------------------------------------------------------

NamedValues without_dropout(NamedValues all, bool varlen) {
  all.emplace("p_dropout", 0.0);
  if (varlen) all.emplace("zero_tensors", false);
  return all;
}

Adapter forward2(const c10::OperatorHandle& op, bool varlen, bool trains) {
  return [=](const Values& a) -> Values {
    const size_t at = varlen ? 8 : 3;
    refuse(!a[at].isNone(), "sinks");
    refuse(has_chunk(a, at), "chunks");
    NamedValues given = joined(without_dropout(options_of(a, at), varlen),
                               {{"q", rows(a[0])}, {"k", rows(a[1])}, {"v", rows(a[2])}, {"return_softmax", false}});
    if (varlen) given = joined(joined(given, sequences_of(a, 3)), {{"seqused_k_", a[5]}});
    const Values r = call_named(op, given);
    if (!trains) return {r[0]};
    return {r[0], replaced(r[1].toTensor(), kInfinity, -kInfinity)};
  };
}

Adapter backward2(const c10::OperatorHandle& op, bool varlen) {
  return [=](const Values& a) -> Values {
    const size_t at = varlen ? 12 : 7;
    NamedValues given = joined(without_dropout(options_of(a, at), varlen), saved_of(a));
    given["softmax_lse"] = replaced(a[5].toTensor(), -kInfinity, kInfinity);
    given["deterministic"] = a.back();
    if (varlen) {
      refuse(!a[9].isNone(), "seqused_k in a backward");
      given = joined(given, sequences_of(a, 7));
    }
    return gradients(call_named(op, given), a);
  };
}

Adapter decode2(const c10::OperatorHandle& op) {
  return [=](const Values& a) -> Values {
    refuse(!a[8].isNone(), "sinks");
    refuse(has_chunk(a, 8), "chunks");
    const Values r = call_named(op, joined(options_of(a, 8), {{"q", rows(a[0])},
                                                              {"kcache", a[1]},
                                                              {"vcache", a[2]},
                                                              {"k_", a[3]},
                                                              {"v_", a[4]},
                                                              {"seqlens_k_", a[5]},
                                                              {"block_table_", a[6]},
                                                              {"cache_batch_idx_", a[7]},
                                                              {"is_rotary_interleaved", false},
                                                              {"num_splits", a.back()}}));
    return {r[0], replaced(r[1].toTensor(), kInfinity, -kInfinity)};
  };
}

// ---- flash-attn3, upstream's with chunks and vLLM's with sinks ----------------------------------------------------

NamedValues options3(const Values& a, size_t at) {
  NamedValues all = options_of(a, at);
  if (has_chunk(a, at)) all.emplace("attention_chunk", a[at + 6]);
  // bfloat16 alone, whatever q is
  if (!a[at].isNone()) all.emplace("s_aux", a[at].toTensor().to(at::kBFloat16).contiguous());
  return all;
}

Adapter forward3(const c10::OperatorHandle& op, bool varlen, bool trains) {
  return [=](const Values& a) -> Values {
    NamedValues given = joined(options3(a, varlen ? 8 : 3), {{"q", rows(a[0])}, {"k", rows(a[1])}, {"v", rows(a[2])}});
    if (varlen) given = joined(joined(given, sequences_of(a, 3)), {{"seqused_k", a[5]}});
    const Values r = call_named(op, given);
    return trains ? Values{r[0], r[1]} : Values{r[0]};
  };
}

Adapter backward3(const c10::OperatorHandle& op, bool varlen) {
  return [=](const Values& a) -> Values {
    const size_t at = varlen ? 12 : 7;
    refuse(!a[at].isNone(), "a gradient of sinks");
    refuse(has_chunk(a, at), "a backward of chunks");
    const Values written = {at::empty_like(a[1].toTensor()), at::empty_like(a[2].toTensor()),
                            at::empty_like(a[3].toTensor())};
    NamedValues given = joined(options_of(a, at), saved_of(a));
    given = joined(given, {{"dq", written[0]}, {"dk", written[1]}, {"dv", written[2]}, {"deterministic", a.back()}});
    if (varlen) given = joined(joined(given, sequences_of(a, 7)), {{"seqused_k", a[9]}});
    call_named(op, given);
    return gradients(written, a);
  };
}

Adapter decode3(const c10::OperatorHandle& op) {
  return [=](const Values& a) -> Values {
    const Values r = call_named(op, joined(options3(a, 8), {{"q", rows(a[0])},
                                                            {"k", a[1]},
                                                            {"v", a[2]},
                                                            {"k_new", a[3]},
                                                            {"v_new", a[4]},
                                                            {"seqused_k", a[5]},
                                                            {"page_table", a[6]},
                                                            {"kv_batch_idx", a[7]},
                                                            {"num_splits", a.back()}}));
    return {r[0], r[1]};
  };
}

// ---- the rows ---------------------------------------------------------------------------------------------------

Numbers multiples_of_8_to_256() {
  Numbers numbers;
  for (int64_t dim = 8; dim <= 256; dim += 8) numbers.add(Json::parse(std::to_string(dim), "head_dims"));
  return numbers;
}

ForeignPackage attention_package(const char* name, Capabilities has, std::vector<ForeignOp> ops) {
  has.backward = true;
  has.dtypes = {"bfloat16", "float16"};
  has.features = {"causal", "gqa", "window", "softcap"};
  has.numbers = {{"head_dims", multiples_of_8_to_256()}};
  LayerEntry entry{.contract = "attention/1", .ops = {}, .capabilities = std::move(has)};
  for (const char* role : {"forward", "forward_train", "backward", "varlen_forward", "varlen_forward_train",
                           "varlen_backward", "decode"}) {
    entry.ops.emplace(role, role);
  }
  // By the second name transformers' guide asks for it.
  return {
      .name = name, .layers = {{"attention", entry}, {"FlashAttention2", entry}}, .ops = std::move(ops), .missing = ""};
}

ForeignPackage flash_attn2() {
  const std::string window = "bool is_causal, int window_size_left, int window_size_right, float softcap, ",
                    random = "Generator? gen_",
                    saved =
                        "(Tensor! dout, Tensor! q, Tensor! k, Tensor! v, Tensor! out, "
                        "Tensor! softmax_lse, Tensor? dq_, Tensor? dk_, Tensor? dv_, ",
                    lengths =
                        "Tensor? alibi_slopes_, int max_seqlen_q, int max_seqlen_k, float p_dropout, "
                        "float softmax_scale, bool zero_tensors, ",
                    plain = "Tensor? alibi_slopes_, float p_dropout, float softmax_scale, ",
                    back = "bool deterministic, " + random + ", Tensor? rng_state)";
  const auto either = [](const std::string& arguments, const std::string& results) {
    return std::vector<std::string>{arguments + " -> (" + results + ")", arguments + " -> Tensor[]"};
  };
  const std::string four = "Tensor, Tensor, Tensor, Tensor";
  return attention_package(
      "flash-attn2", {.deterministic = true},
      {{"fwd", either("(Tensor! q, Tensor k, Tensor v, Tensor(out_!)? out_, " + plain + window +
                          "bool return_softmax, " + random + ")",
                      four)},
       {"varlen_fwd", either("(Tensor! q, Tensor k, Tensor v, Tensor? out_, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
                             "Tensor? seqused_k_, Tensor? leftpad_k_, Tensor? block_table_, " +
                                 lengths + window + "bool return_softmax, " + random + ")",
                             four)},
       {"bwd", either(saved + plain + window + back, four)},
       {"varlen_bwd", either(saved + "Tensor cu_seqlens_q, Tensor cu_seqlens_k, " + lengths + window + back, four)},
       {"fwd_kvcache", either("(Tensor! q, Tensor! kcache, Tensor! vcache, Tensor? k_, Tensor? v_, Tensor? seqlens_k_, "
                              "Tensor? rotary_cos_, Tensor? rotary_sin_, Tensor? cache_batch_idx_, Tensor? leftpad_k_, "
                              "Tensor? block_table_, Tensor? alibi_slopes_, Tensor? out_, float softmax_scale, " +
                                  window + "bool is_rotary_interleaved, int num_splits)",
                              "Tensor, Tensor")}});
}

// `scale`, `chunk` and `sinks` are what the two differ in.
std::vector<ForeignOp> flash_attn3_ops(const std::string& scale, const std::string& chunk, const std::string& sinks) {
  const std::string lengths =
                        "Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None, "
                        "int? max_seqlen_k=None, ",
                    window = "bool is_causal=False, int window_size_left=-1, int window_size_right=-1, ",
                    forward =
                        "(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new=None, Tensor(v_new!)? v_new=None, "
                        "Tensor? q_v=None, Tensor(out!)? out=None, Tensor? cu_seqlens_q=None, "
                        "Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, " +
                        lengths +
                        "Tensor? page_table=None, Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, "
                        "Tensor? rotary_cos=None, Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, "
                        "Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, " +
                        scale + ", " + window + chunk +
                        "float softcap=0.0, bool is_rotary_interleaved=False, "
                        "Tensor? scheduler_metadata=None, int num_splits=0, bool? pack_gqa=None, "
                        "int sm_margin=0" +
                        sinks + ") -> (Tensor(out!), Tensor, Tensor, Tensor)",
                    backward =
                        "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
                        "Tensor(dq!)? dq=None, Tensor(dk!)? dk=None, Tensor(dv!)? dv=None, "
                        "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, " +
                        lengths + scale + ", " + window +
                        "float softcap=0.0, bool deterministic=False, int sm_margin=0) -> (",
                    five = "Tensor, Tensor, Tensor, Tensor, Tensor)";
  return {{"fwd", {forward}},
          {"bwd",
           {backward + five, backward + "Tensor, Tensor, Tensor, " + five,
            backward + "Tensor(dq!), Tensor(dk!), Tensor(dv!), " + five}}};
}

}  // namespace

std::vector<ForeignPackage> attention_packages() {
  const char* scale = "float? softmax_scale=None";
  return {flash_attn2(),
          attention_package("flash-attn3", {.inference_features = {"chunk"}},
                            flash_attn3_ops(scale, "int attention_chunk=0, ", "")),
          attention_package("vllm-flash-attn3", {.inference_features = {"sinks"}},
                            flash_attn3_ops("float softmax_scale=0.0", "", ", Tensor? s_aux=None"))};
}

AdaptedOps attention_adapters(const Manifest& m) {
  AdaptedOps all;
  const bool second = m.name == "flash-attn2";
  const auto op = [&](const char* name2, const char* name3) { return find_op(m, second ? name2 : name3); };
  for (const bool varlen : {false, true}) {
    const std::string before = varlen ? "varlen_" : "";
    const auto forward = op(varlen ? "varlen_fwd" : "fwd", "fwd"), backward = op(varlen ? "varlen_bwd" : "bwd", "bwd");
    for (const bool trains : {false, true}) {
      all.emplace(before + (trains ? "forward_train" : "forward"),
                  AdaptedOp{forward, second ? forward2(forward, varlen, trains) : forward3(forward, varlen, trains)});
    }
    all.emplace(before + "backward",
                AdaptedOp{backward, second ? backward2(backward, varlen) : backward3(backward, varlen)});
  }
  const auto decode = op("fwd_kvcache", "fwd");
  all.emplace("decode", AdaptedOp{decode, second ? decode2(decode) : decode3(decode)});
  return all;
}

}  // namespace hotswap
