// From the description of what is masked to a tensor, for stock forwards.
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/le.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "hotswap/base/error.h"
#include "hotswap/layers/attention.h"

namespace hotswap {
namespace {

double lowest(at::ScalarType dtype) {
  if (dtype == at::kFloat) return std::numeric_limits<float>::lowest();
  if (dtype == at::kBFloat16) return static_cast<double>(std::numeric_limits<c10::BFloat16>::lowest());
  if (dtype == at::kHalf) return -65504.0;
  return std::numeric_limits<double>::lowest();
}

Tensor range(int64_t from, int64_t to, at::Device device) {
  return at::arange(from, to, at::TensorOptions().dtype(at::kLong).device(device));
}

// Of the queries, counted from the first key: [time], or [batch, time] where rows are of different length.
Tensor query_places(const SequenceInfo& s, int64_t time, const Tensor& k) {
  return s.positions.defined() ? s.positions : range(k.size(1) - time, k.size(1), k.device());
}

// The same number for all tokens of one group, of queries and of keys: a query sees its own group alone.
struct Groups {
  Tensor of_query, of_key;  // [1 or batch, time], [1 or batch, kv_time]
  Tensor same() const { return at::eq(of_query.unsqueeze(2), of_key.unsqueeze(1)); }  // [1 or batch, time, kv_time]
};

Groups groups_of(const Tensor& of_key, const SequenceInfo& s, int64_t time) {
  if (s.positions.defined() && s.positions.dim() == 2) {
    return {of_key.expand({s.positions.size(0), -1}).gather(1, s.positions), of_key};
  }
  if (s.positions.defined()) return {of_key.index_select(1, s.positions), of_key};
  return {of_key.narrow(1, of_key.size(1) - time, time), of_key};
}

// The padding of the keys: the first ones of fixed memory, and of a cache that forgets the last.      [batch, kv_time]
Tensor key_padding(const SequenceInfo& s, int64_t kv_time) {
  return s.padding.narrow(1, s.positions.defined() ? 0 : s.padding.size(1) - kv_time, kv_time);
}

// How many of a row's first keys are padding. padding: [batch, time] -> [batch, 1] int64
Tensor padding_before(const Tensor& padding) { return at::eq(at::cumsum(padding, 1), 0).sum(1, /*keepdim=*/true); }

// Chunks are counted from a row's first real token, as transformers does, and from the beginning of a packed sequence.
Groups chunks(const SequenceInfo& s, int64_t time, const Tensor& k, int64_t chunk) {
  if (s.cu_seqlens.defined())
    return groups_of(at::div(packed_places(s.cu_seqlens, k.size(1)), chunk, "floor").unsqueeze(0), s, time);
  Tensor places = range(0, k.size(1), k.device()).unsqueeze(0);
  if (s.padding.defined()) places = at::sub(places, padding_before(key_padding(s, k.size(1)))).clamp_min(0);
  return groups_of(at::div(places, chunk, "floor"), s, time);
}

Groups packed(const SequenceInfo& s, int64_t time, const Tensor& k) {
  return groups_of(packed_sequences(s.cu_seqlens, k.size(1)).unsqueeze(0), s, time);
}

Tensor make_visible(const SequenceInfo& s, int64_t time, const Tensor& k, const AttentionOptions& o) {
  const int64_t kv_time = k.size(1);
  const Tensor queries = query_places(s, time, k).unsqueeze(-1);   // [time, 1] or [batch, time, 1]
  const Tensor keys = range(0, kv_time, k.device()).unsqueeze(0);  // [1, kv_time]
  Tensor seen = o.causal ? at::le(keys, queries)
                         : at::ones({time, kv_time}, at::TensorOptions().dtype(at::kBool).device(k.device()));
  if (o.window_left >= 0) seen = at::bitwise_and(seen, at::ge(keys, at::sub(queries, o.window_left)));
  if (o.window_right >= 0 && !o.causal) seen = at::bitwise_and(seen, at::le(keys, at::add(queries, o.window_right)));
  if (seen.dim() == 2) seen = seen.unsqueeze(0);
  if (o.chunk > 0) seen = at::bitwise_and(seen, chunks(s, time, k, o.chunk).same());
  if (s.cu_seqlens.defined()) seen = at::bitwise_and(seen, packed(s, time, k).same());
  if (s.padding.defined()) seen = at::bitwise_and(seen, key_padding(s, kv_time).unsqueeze(1));
  return seen.unsqueeze(1);
}

}  // namespace

bool AttentionMetadata::hides(int64_t time, int64_t kv_time, const AttentionOptions& o) const {
  const SequenceInfo& s = sequence_;
  if (s.padding.defined() || s.cu_seqlens.defined() || s.positions.defined()) return true;
  if (o.window_left >= 0 && kv_time > o.window_left + 1) return true;
  if (o.window_right >= 0 && !o.causal && kv_time > o.window_right + 1) return true;
  return o.chunk > 0 && s.start + time > o.chunk;
}

template <typename Make>
const Tensor& AttentionMetadata::made_once(const Key& key, const Make& make) const {
  for (const auto& [made_for, tensor] : made_) {
    if (made_for == key) return tensor;
  }
  return made_.emplace_back(key, make()).second;
}

Tensor AttentionMetadata::visible(int64_t time, const Tensor& k, const AttentionOptions& o) const {
  return made_once({false, time, k.size(1), o.causal, o.window_left, o.window_right, o.chunk},
                   [&] { return make_visible(sequence_, time, k, o); });
}

Tensor AttentionMetadata::bias(int64_t time, const Tensor& k, const AttentionOptions& o) const {
  return made_once({true, time, k.size(1), o.causal, o.window_left, o.window_right, o.chunk}, [&] {
    const auto options = k.options();
    return at::where(make_visible(sequence_, time, k, o), at::zeros({}, options),
                     at::full({}, lowest(k.scalar_type()), options));
  });
}

const RealTokens& AttentionMetadata::real_tokens(int64_t time) const {
  const auto [found, fresh] = real_.try_emplace(time);
  if (!fresh) return found->second;
  const Tensor& padding = sequence_.padding;
  const Tensor kept = padding.narrow(1, padding.size(1) - time, time);
  const Tensor lengths = kept.sum(1);  // [batch] int64
  found->second = {.index = kept.reshape({-1}).nonzero().squeeze(1),
                   .cu_seqlens = at::constant_pad_nd(at::cumsum(lengths, 0), {1, 0}).to(at::kInt),
                   .max_seqlen = lengths.max().item<int64_t>()};
  return found->second;
}

const Tensor& AttentionMetadata::seen(int64_t batch) const {
  if (!seen_.defined()) {
    const Tensor& places = sequence_.positions;
    seen_ =
        at::add(places.narrow(-1, places.size(-1) - 1, 1), 1).to(at::kInt).reshape({-1}).expand({batch}).contiguous();
  }
  return seen_;
}

const PaddedRows& AttentionMetadata::padded_rows(int64_t time, int64_t kv_time) const {
  if (padded_rows_) return *padded_rows_;
  const Tensor& padding = sequence_.padding;  // [batch, tokens]
  const int64_t batch = padding.size(0), tokens = padding.size(1);
  if (padding.is_cpu() && tokens > 1 &&
      at::bitwise_and(padding.narrow(1, 0, tokens - 1), at::eq(padding.narrow(1, 1, tokens - 1), 0))
          .any()
          .item<bool>()) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "padding at the beginning of rows, where keys are of a fixed size",
                 .got = "an attention_mask with a 0 after a 1",
                 .next = "pad on the left, take a dynamic cache, or set attn_implementation to sdpa"});
  }
  const Tensor first = at::eq(padding, 0).sum(1);  // [batch] int64
  const Tensor rows = at::arange(batch + 1, first.options());
  const Tensor begins = at::add(at::mul(rows, kv_time), at::constant_pad_nd(first, {0, 1}));
  padded_rows_ = {.cu_seqlens_q = at::mul(rows, time).to(at::kInt),
                  .cu_seqlens_k = begins.to(at::kInt),
                  .used_k = at::sub(seen(batch), first).clamp_min(0).to(at::kInt)};
  return *padded_rows_;
}

Tensor packed_places(const Tensor& cu_seqlens, int64_t time) {
  const Tensor starts = cu_seqlens.to(at::kLong);
  const Tensor tokens = range(0, time, cu_seqlens.device());
  const Tensor sequence = at::bucketize(tokens, starts.narrow(0, 1, starts.size(0) - 1), /*out_int32=*/false, true);
  return at::sub(tokens, starts.index_select(0, sequence));
}

Tensor packed_sequences(const Tensor& cu_seqlens, int64_t time) {
  const Tensor ends = cu_seqlens.narrow(0, 1, cu_seqlens.size(0) - 1).to(at::kLong);
  return at::bucketize(range(0, time, cu_seqlens.device()), ends, /*out_int32=*/true, /*right=*/true);
}

Tensor AttentionMetadata::places(int64_t time, at::Device device) const {
  if (sequence_.step != nullptr) return sequence_.step->positions.view({-1, time});
  if (sequence_.positions.defined()) return sequence_.positions.view({-1, time});
  if (sequence_.cu_seqlens.defined()) return packed_places(sequence_.cu_seqlens, time).unsqueeze(0);
  return range(sequence_.start, sequence_.start + time, device).unsqueeze(0);
}

Tensor AttentionMetadata::distance(int64_t time, const Tensor& k) const {
  const Tensor far =
      at::sub(range(0, k.size(1), k.device()).unsqueeze(0), query_places(sequence_, time, k).unsqueeze(-1));
  return far.dim() == 2 ? far : far.unsqueeze(1);
}

}  // namespace hotswap
