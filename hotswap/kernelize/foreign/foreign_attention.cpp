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

NamedValues options_of(const AdapterArguments& a) {
  refuse(!a["alibi_slopes"].isNone(), "ALiBi");
  return {{"softmax_scale", a["scale"]},
          {"is_causal", a["causal"]},
          {"window_size_left", a["window_left"]},
          {"window_size_right", a["window_right"]},
          {"softcap", a["softcap"]}};
}
bool has_chunk(const AdapterArguments& a) { return a["chunk"].toInt() != 0; }

NamedValues joined(NamedValues all, const NamedValues& more) {
  all.insert(more.begin(), more.end());
  return all;
}

// Of the varlen ops; of the dense ones none.
NamedValues sequences_of(const AdapterArguments& a) {
  NamedValues all;
  for (const char* name : {"cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"}) {
    if (a.has(name)) all.emplace(name, a[name]);
  }
  return all;
}
c10::IValue used_keys(const AdapterArguments& a) { return a.has("seqused_k") ? a["seqused_k"] : IValue(); }

NamedValues inputs_of(const AdapterArguments& a) {
  return {{"q", rows(a["q"])}, {"k", rows(a["k"])}, {"v", rows(a["v"])}};
}

NamedValues saved_of(const AdapterArguments& a) {
  refuse(!a["dlse"].isNone(), "a gradient of lse");
  return joined(inputs_of(a), {{"dout", rows(a["dout"])}, {"out", rows(a["out"])}, {"softmax_lse", a["lse"]}});
}

Values gradients(const Values& dq_dk_dv, const AdapterArguments& a) {
  Values all(dq_dk_dv.begin(), dq_dk_dv.begin() + 3);
  all.emplace_back(at::zeros({0}, a["dout"].toTensor().options().dtype(at::kFloat)));  // of sinks: there are none
  return all;
}

// ---- flash-attn2 ------------------------------------------------------------------------------------------------

NamedValues options2(const AdapterArguments& a, bool varlen) {
  NamedValues all = options_of(a);
  all.emplace("p_dropout", 0.0);
  if (varlen) all.emplace("zero_tensors", false);
  return all;
}

CallAdapter forward2(const c10::OperatorHandle& op, bool varlen, bool trains) {
  return [=](const AdapterArguments& a) -> Values {
    refuse(!a["sinks"].isNone(), "sinks");
    refuse(has_chunk(a), "chunks");
    NamedValues given = joined(joined(options2(a, varlen), inputs_of(a)), sequences_of(a));
    given["return_softmax"] = false;
    given["seqused_k_"] = used_keys(a);
    const Values r = call_named(op, given);
    if (!trains) return {r[0]};
    return {r[0], replaced(r[1].toTensor(), kInfinity, -kInfinity)};
  };
}

CallAdapter backward2(const c10::OperatorHandle& op, bool varlen) {
  return [=](const AdapterArguments& a) -> Values {
    refuse(!used_keys(a).isNone(), "seqused_k in a backward");
    NamedValues given = joined(joined(options2(a, varlen), saved_of(a)), sequences_of(a));
    given["softmax_lse"] = replaced(a["lse"].toTensor(), -kInfinity, kInfinity);
    given["deterministic"] = a["deterministic"];
    return gradients(call_named(op, given), a);
  };
}

CallAdapter decode2(const c10::OperatorHandle& op) {
  return [=](const AdapterArguments& a) -> Values {
    refuse(!a["sinks"].isNone(), "sinks");
    refuse(has_chunk(a), "chunks");
    const Values r = call_named(op, joined(options_of(a), {{"q", rows(a["q"])},
                                                           {"kcache", a["k_cache"]},
                                                           {"vcache", a["v_cache"]},
                                                           {"k_", a["k_new"]},
                                                           {"v_", a["v_new"]},
                                                           {"seqlens_k_", a["cache_seqlens"]},
                                                           {"block_table_", a["block_table"]},
                                                           {"cache_batch_idx_", a["cache_batch_idx"]},
                                                           {"is_rotary_interleaved", false},
                                                           {"num_splits", a["num_splits"]}}));
    return {r[0], replaced(r[1].toTensor(), kInfinity, -kInfinity)};
  };
}

// ---- flash-attn3, upstream's with chunks and vLLM's with sinks ----------------------------------------------------

NamedValues options3(const AdapterArguments& a) {
  NamedValues all = options_of(a);
  if (has_chunk(a)) all.emplace("attention_chunk", a["chunk"]);
  // bfloat16 alone, whatever q is
  if (!a["sinks"].isNone()) all.emplace("s_aux", a["sinks"].toTensor().to(at::kBFloat16).contiguous());
  return all;
}

CallAdapter forward3(const c10::OperatorHandle& op, bool trains) {
  return [=](const AdapterArguments& a) -> Values {
    NamedValues given = joined(joined(options3(a), inputs_of(a)), sequences_of(a));
    given["seqused_k"] = used_keys(a);
    const Values r = call_named(op, given);
    return trains ? Values{r[0], r[1]} : Values{r[0]};
  };
}

CallAdapter backward3(const c10::OperatorHandle& op) {
  return [=](const AdapterArguments& a) -> Values {
    refuse(!a["sinks"].isNone(), "a gradient of sinks");
    refuse(has_chunk(a), "a backward of chunks");
    Values written;
    for (const char* name : {"q", "k", "v"}) written.emplace_back(at::empty_like(a[name].toTensor()));
    NamedValues given = joined(joined(options_of(a), saved_of(a)), sequences_of(a));
    given = joined(given, {{"dq", written[0]},
                           {"dk", written[1]},
                           {"dv", written[2]},
                           {"deterministic", a["deterministic"]},
                           {"seqused_k", used_keys(a)}});
    call_named(op, given);
    return gradients(written, a);
  };
}

CallAdapter decode3(const c10::OperatorHandle& op) {
  return [=](const AdapterArguments& a) -> Values {
    const Values r = call_named(op, joined(options3(a), {{"q", rows(a["q"])},
                                                         {"k", a["k_cache"]},
                                                         {"v", a["v_cache"]},
                                                         {"k_new", a["k_new"]},
                                                         {"v_new", a["v_new"]},
                                                         {"seqused_k", a["cache_seqlens"]},
                                                         {"page_table", a["block_table"]},
                                                         {"kv_batch_idx", a["cache_batch_idx"]},
                                                         {"num_splits", a["num_splits"]}}));
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
                  AdaptedOp{forward, second ? forward2(forward, varlen, trains) : forward3(forward, trains)});
    }
    all.emplace(before + "backward", AdaptedOp{backward, second ? backward2(backward, varlen) : backward3(backward)});
  }
  const auto decode = op("fwd_kvcache", "fwd");
  all.emplace("decode", AdaptedOp{decode, second ? decode2(decode) : decode3(decode)});
  return all;
}

}  // namespace hotswap
