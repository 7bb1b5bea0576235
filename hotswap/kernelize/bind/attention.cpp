// attention/1. What the tokens are decides which op runs: a plain batch the dense ones, a padded or packed one
// `varlen`, keys of a fixed size `decode`. What the options mean is in layers/attention.h; beside that a package keeps
// to this:
//
//   - The last query stands at the last key. A query that sees no key gives zeros, and -inf as its lse.
//   - lse: float32, natural, the sink counted in; [batch, heads, time], of varlen [heads, tokens].
//   - varlen: sequences one behind the other, q [tokens, heads, head_dim]; cu_seqlens int32 on the device.
//   - decode: cache_seqlens int32 [batch], tokens in the cache before k_new, where that is given, is written behind
//   them.
//   - dsinks: float32 [heads], or [0] without sinks.
#include "hotswap/layers/attention.h"

#include <ATen/Context.h>
#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/zeros.h>

#include "hotswap/kernelize/bind/bind_impl.h"
#include "hotswap/kernelize/contract/arguments.h"

namespace hotswap::binding {
namespace {

using c10::OperatorHandle;

// A layer's ops by role, looked up once.
struct AttentionOps {
  explicit AttentionOps(const LayerOps& of) : layer(of) {
    for (const auto& [role, schema] : of.contract().roles) {
      if (const std::string name = of.op(role); !name.empty()) {
        handles.emplace(role, c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), ""));
      }
    }
  }
  const OperatorHandle& at(std::string_view role) const {
    const auto found = handles.find(role);
    if (found != handles.end()) return found->second;
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("the op ", role, " of ", layer.str(), ", for ",
                               role == "decode" ? "a cache of a fixed size" : "batches with padding and packed rows"),
                 .got = "a package without it",
                 .next = "do without these, or map attention to \"\" (attn_implementation: sdpa)"});
  }
  const LayerOps& layer;
  std::map<std::string, OperatorHandle, std::less<>> handles;
};

// Sequences one behind the other: q [tokens, heads, head_dim], k, v [tokens, kv_heads, head_dim].
struct Rows {
  Tensor cu_q, cu_k;  // [sequences + 1] int32
  int64_t max_q, max_k;
  Tensor used_k = {};  // [sequences] int32: keys of each from its beginning on; undefined: all
};

const Fields<Rows>& row_fields() {
  static const Fields<Rows> fields = {{"Tensor cu_seqlens_q", &Rows::cu_q},
                                      {"Tensor cu_seqlens_k", &Rows::cu_k},
                                      {"Tensor? seqused_k", &Rows::used_k},
                                      {"int max_seqlen_q", &Rows::max_q},
                                      {"int max_seqlen_k", &Rows::max_k}};
  return fields;
}

struct AttentionCall {
  const AttentionOps* ops;
  AttentionOptions options;
  std::optional<Rows> rows;  // none: [batch, time, heads, head_dim]
  const OperatorHandle& op(const char* dense, const char* varlen) const { return ops->at(rows ? varlen : dense); }
};

void push_options(Values& stack, const AttentionCall& call) {
  if (call.rows) push_fields(stack, *call.rows, row_fields());
  push(stack, call.options);
}

void call_below_autograd(const OperatorHandle& op, Values& stack) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.callBoxed(&stack);
}

// Of q, k, v and the sinks.
Tensors attention_backward(const AttentionCall& call, const BackwardCall& from) {
  check_backward(call.ops->layer);
  const Tensor &q = from.saved[0], &k = from.saved[1], &v = from.saved[2], &sinks = from.saved[3];
  const Tensor &out = from.saved[4], &lse = from.saved[5];
  Values stack = {dense(from.gradients[0]), q, k, v, out, lse, /*dlse=*/c10::IValue()};
  push_options(stack, call);
  stack.emplace_back(at::globalContext().deterministicAlgorithms());
  call_below_autograd(call.op("backward", "varlen_backward"), stack);
  const Tensor dsinks = sinks.defined() ? stack[3].toTensor().to(sinks.scalar_type()) : Tensor();
  return {stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor(), dsinks};
}

Tensor train_attention(const AttentionCall& call, const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor& sinks = call.options.sinks;
  const auto forward = [&]() -> ForwardResult {
    Values stack = {q, k, v};
    push_options(stack, call);
    if (!call.ops->layer.trains()) {
      call_below_autograd(call.op("forward", "varlen_forward"), stack);
      return {{stack[0].toTensor()}, {}};
    }
    call_below_autograd(call.op("forward_train", "varlen_forward_train"), stack);
    const Tensor out = stack[0].toTensor();
    return {{out}, {q, k, v, sinks, out, stack[1].toTensor()}};
  };
  return differentiable({q, k, v, sinks}, forward,
                        [call](BackwardCall& from) { return attention_backward(call, from); })[0];
}

Tensor run_attention(const AttentionCall& call, const Tensor& q, const Tensor& k, const Tensor& v) {
  const AttentionOptions& o = call.options;
  if (wants_grad(OptTensor(o.alibi_slopes))) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("ALiBi slopes without gradient for ", call.ops->layer.str()),
                 .got = "slopes that require it",
                 .next = "detach them, or set attn_implementation to eager"});
  }
  if (wants_grad(q, k, v, OptTensor(o.sinks))) return train_attention(call, q, k, v);
  Values stack = {q, k, v};
  push_options(stack, call);
  call_below_autograd(call.op("forward", "varlen_forward"), stack);
  return stack[0].toTensor();
}

// [batch, time, heads, head_dim] -> the real tokens, one behind the other
Tensor real_rows(const Tensor& x, const RealTokens& tokens) { return x.flatten(0, 1).index_select(0, tokens.index); }

// Whether it matters where in its row a token is: without its padding a row is as long as its real tokens.
bool counts_positions(const AttentionOptions& o, int64_t kv_time) {
  const int64_t window = std::max(o.window_left, o.window_right);
  return (window >= 0 && window < kv_time - 1) || (o.chunk > 0 && o.chunk < kv_time) || o.alibi_slopes.defined();
}

// Whether padding lies between a row's real tokens; waits for the device. padding: [batch, tokens]
bool has_holes(const Tensor& padding) {
  const int64_t rest = padding.size(1) - 1;
  const Tensor begins = at::bitwise_and(padding.narrow(1, 1, rest), at::eq(padding.narrow(1, 0, rest), 0));
  return at::add(begins.sum(1), padding.select(1, 0)).max().item<int64_t>() > 1;  // runs of real tokens
}

Tensor attend_padded(AttentionCall call, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionMetadata& metadata) {
  const RealTokens &queries = metadata.real_tokens(q.size(1)), &keys = metadata.real_tokens(k.size(1));
  call.rows = Rows{queries.cu_seqlens, keys.cu_seqlens, queries.max_seqlen, keys.max_seqlen};
  const Tensor out = run_attention(call, real_rows(q, queries), real_rows(k, keys), real_rows(v, keys));
  const Tensor all = at::zeros({q.size(0) * q.size(1), q.size(2), v.size(3)}, out.options());
  return at::index_copy(all, 0, queries.index, out).view({q.size(0), q.size(1), q.size(2), v.size(3)});
}

// Left of its tokens a row has padding, which no decode op leaves out.
Tensor attend_fixed_padded(AttentionCall call, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionMetadata& metadata) {
  const PaddedRows& rows = metadata.padded_rows(q.size(1), k.size(1));
  call.rows = Rows{rows.cu_seqlens_q, rows.cu_seqlens_k, q.size(1), k.size(1), rows.used_k};
  const auto row = [](const Tensor& x) { return x.flatten(0, 1); };  // of the cache a copy: heads are first there
  return run_attention(call, row(q), row(k), row(v)).view({q.size(0), q.size(1), q.size(2), v.size(3)});
}

void refuse_gradient(const AttentionCall& call, const Tensor& q, const Tensor& k, const Tensor& v, const char* of) {
  if (!wants_grad(q, k, v, OptTensor(call.options.sinks))) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("no gradient through ", of, " for ", call.ops->layer.str()),
               .got = "a tensor that requires one",
               .next = "run the forward under at::NoGradGuard"});
}

struct DecodeInputs {
  Tensor q, k, v;           // [batch, time, heads, head_dim]; of all rows, or pages
  Tensor seqlens;           // [batch] int32: keys of each row
  Tensor block_table = {};  // [batch, pages] int32, or undefined: k and v are rows
};

Tensor decoded(const AttentionCall& call, const DecodeInputs& in) {
  Values stack = {in.q,
                  in.k,
                  in.v,
                  /*k_new=*/c10::IValue(),
                  /*v_new=*/c10::IValue(),
                  in.seqlens,
                  optional(in.block_table),
                  /*cache_batch_idx=*/c10::IValue()};
  push_options(stack, call);
  stack.emplace_back(int64_t{0});  // num_splits: from the shapes
  call_below_autograd(call.ops->at("decode"), stack);
  return stack[0].toTensor();
}

Tensor attend_fixed(const AttentionCall& call, const Tensor& q, const Tensor& k, const Tensor& v,
                    const AttentionMetadata& metadata) {
  refuse_gradient(call, q, k, v, "a static cache");
  if (metadata.sequence().padding.defined()) return attend_fixed_padded(call, q, k, v, metadata);
  return decoded(call, {q, k, v, metadata.seen(q.size(0))});
}

// Rows with lengths of their own over pages: the op that takes both, or row after row where a package has none.
Tensor attend_step(const AttentionCall& call, const Tensor& q, const Tensor& k, const Tensor& v,
                   const AttentionMetadata& metadata) {
  refuse_gradient(call, q, k, v, "a step's memory");
  const auto decode = call.ops->handles.find("decode");
  if (decode == call.ops->handles.end()) {
    return attend_rows(q, k, v, metadata,
                       [&](const Tensor& queries, const Tensor& keys, const Tensor& values, const AttentionMetadata&) {
                         return run_attention(call, queries, keys, values);
                       });
  }
  const StepBatch& step = *metadata.sequence().step;
  return decoded(call, {q, k, v, step.seq_lens, step.block_table});
}

Tensor attend(const AttentionOps* ops, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o,
              const AttentionMetadata& metadata) {
  if (o.dropout > 0) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("attention without dropout for ", ops->layer.str()),
                 .got = cat("a dropout of ", o.dropout),
                 .next = "set attention_dropout to 0, or map attention to \"\" (attn_implementation: sdpa)"});
  }
  AttentionCall call{ops, o, std::nullopt};
  const SequenceInfo& s = metadata.sequence();
  if (s.step != nullptr) return attend_step(call, q, k, v, metadata);
  if (s.positions.defined()) return attend_fixed(call, q, k, v, metadata);
  if (s.padding.defined()) {
    if (counts_positions(o, k.size(1)) && has_holes(s.padding)) return stock::eager(q, k, v, o, metadata);
    return attend_padded(std::move(call), q, k, v, metadata);
  }
  if (!s.cu_seqlens.defined()) return run_attention(call, q, k, v);
  const Tensor cu = s.cu_seqlens.to(at::kInt);
  call.rows = Rows{cu, cu, s.max_seqlen, s.max_seqlen};
  return run_attention(call, q.squeeze(0), k.squeeze(0), v.squeeze(0)).unsqueeze(0);
}

// Sequences of a step, one after the other, over the pages of all.
Tensor attend_ragged(const AttentionOps* ops, const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionOptions& o, const StepBatch& step) {
  AttentionCall call{ops, o, std::nullopt};
  refuse_gradient(call, q, k, v, "a step's memory");
  call.rows = Rows{step.query_start, step.key_start, step.batch(), step.capacity, step.seq_lens};
  return run_attention(call, q.squeeze(1), k, v).unsqueeze(1);
}

void bind_attention(SlotBase& slot, const LayerOps& layer) {
  const auto* ops = ops_of<AttentionOps>(layer);
  bind_slot<AttentionForward>(slot,
                              [ops](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o,
                                    const AttentionMetadata& metadata) { return attend(ops, q, k, v, o, metadata); });
  if (ops->handles.contains("varlen_forward")) {
    slot.bind_op<AttendRagged>([ops](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o,
                                     const StepBatch& step) { return attend_ragged(ops, q, k, v, o, step); });
  }
}

}  // namespace

std::vector<Contract> attention_contracts() {
  const std::string qkv = "Tensor q, Tensor k, Tensor v, ", sequences = schema_of(row_fields()) + ", ",
                    options = schema_of(attention_fields()), trained = qkv + "Tensor out, Tensor lse, Tensor? dlse, ",
                    out_lse = ") -> (Tensor out, Tensor lse)",
                    gradients = ", bool deterministic) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsinks)";
  return {
      {"attention/1",
       {{"forward", "(" + qkv + options + ") -> Tensor"},
        {"forward_train", "(" + qkv + options + out_lse},
        {"backward", "(Tensor dout, " + trained + options + gradients},
        {"varlen_forward", optional_role("(" + qkv + sequences + options + ") -> Tensor")},
        {"varlen_forward_train", optional_role("(" + qkv + sequences + options + out_lse)},
        {"varlen_backward", optional_role("(Tensor dout, " + trained + sequences + options + gradients)},
        {"decode",
         optional_role(
             "(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? k_new, Tensor? v_new, Tensor cache_seqlens, "
             "Tensor? block_table, Tensor? cache_batch_idx, " +
             options + ", int num_splits" + out_lse)}},
       bind_attention,
       {"causal", "gqa", "window", "chunk", "softcap", "sinks", "alibi"},
       {"head_dims"}},
  };
}

}  // namespace hotswap::binding
