#include "hotswap/models/trunk_input.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sub.h>

#include <algorithm>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

void check_device(const Tensor& tensor, const char* name, at::Device device) {
  if (tensor.device() == device) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(name, " on ", device, ", where the model is"),
               .got = cat("them on ", tensor.device()),
               .next = cat("pass ", name, ".to(model.device())")});
}

void check_shape(const Tensor& tensor, const char* name, const std::string& wanted, bool fits) {
  if (fits) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(name, " ", wanted),
               .got = cat("[", join(tensor.sizes()), "]"),
               .next = "give it the shape of input_ids; see TrunkInput in hotswap/models/trunk_input.h"});
}

// Where looking is free. A GPU would have to be waited for; there the embedding itself fails.
void check_range(const Tensor& ids, int64_t vocab_size) {
  if (!ids.is_cpu() || !ids.is_contiguous()) return;
  const int64_t* first = ids.const_data_ptr<int64_t>();
  const auto wrong = std::find_if(first, first + ids.numel(), [&](int64_t id) { return id < 0 || id >= vocab_size; });
  if (wrong == first + ids.numel()) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("token ids from 0 to ", vocab_size - 1),
               .got = cat(*wrong),
               .next = "check that the tokenizer belongs to this model"});
}

void check_packed(const TrunkInput& in) {
  const int64_t time = in.input_ids.size(1);
  if (in.input_ids.size(0) != 1 || in.cache != nullptr || in.attention_mask.defined()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "packed sequences (cu_seqlens) in a batch of one, without a cache and an attention_mask",
                 .got = cat("a batch of ", in.input_ids.size(0), in.cache != nullptr ? ", a cache" : "",
                            in.attention_mask.defined() ? ", an attention_mask" : ""),
                 .next = "put the sequences one behind the other in one row, or pass seq_idx [batch, time] in place of "
                         "cu_seqlens"});
  }
  const Tensor& ends = in.cu_seqlens;
  const bool is_list = ends.dim() == 1 && ends.numel() >= 2 && at::isIntegralType(ends.scalar_type(), false);
  if (is_list && !ends.is_cpu()) return;  // its values are not asked for: that would wait for the device
  std::vector<int64_t> values;
  if (is_list) {
    const Tensor wide = ends.to(at::kLong);
    values.assign(wide.const_data_ptr<int64_t>(), wide.const_data_ptr<int64_t>() + wide.numel());
  }
  if (is_list && values.front() == 0 && values.back() == time && std::is_sorted(values.begin(), values.end())) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("cu_seqlens of integers that rise from 0 to ", time, ", the length of the row"),
               .got = is_list ? join(values) : cat(ends.scalar_type(), " [", join(ends.sizes()), "]"),
               .next = "list where each sequence begins, and the end of the last"});
}

void check_seq_idx(const TrunkInput& in, at::Device device) {
  const Tensor& idx = in.seq_idx;
  const int64_t batch = in.input_ids.size(0), time = in.input_ids.size(1);
  check_device(idx, "seq_idx", device);
  check_shape(idx, "seq_idx", cat("[1 or ", batch, ", ", time, "]"),
              idx.dim() == 2 && (idx.size(0) == batch || idx.size(0) == 1) && idx.size(1) == time);
  const bool integers = at::isIntegralType(idx.scalar_type(), /*includeBool=*/false);
  if (integers && in.cache == nullptr && !in.attention_mask.defined() && !in.cu_seqlens.defined()) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "seq_idx of integers, without a cache, an attention_mask and cu_seqlens",
               .got = cat("seq_idx of ", idx.scalar_type(), in.cache != nullptr ? ", a cache" : "",
                          in.attention_mask.defined() ? ", an attention_mask" : "",
                          in.cu_seqlens.defined() ? ", cu_seqlens" : ""),
               .next = "give padding an index of its own in place of a mask, and generate from one document a row"});
}

}  // namespace

std::optional<TrunkInput> documents_in_one_row(const TrunkInput& in) {
  const int64_t batch = in.input_ids.size(0), time = in.input_ids.size(1);
  const bool by_index = in.seq_idx.defined();
  const bool by_position = !by_index && in.position_ids.defined() && in.cache == nullptr &&
                           !in.attention_mask.defined() && !in.cu_seqlens.defined();
  if ((!by_index && !by_position) || time == 1) return std::nullopt;
  const Tensor& marks = by_index ? in.seq_idx : in.position_ids;
  const Tensor steps = at::sub(marks.narrow(1, 1, time - 1), marks.narrow(1, 0, time - 1));
  const Tensor changes = at::ne(steps, by_index ? 0 : 1);  // [1 or batch, time - 1]
  if (!changes.any().item<bool>()) return std::nullopt;
  // Every row begins a document too.                                                                    [batch * time]
  const Tensor begins = at::constant_pad_nd(changes, {1, 0}, true).expand({batch, time}).reshape({-1});
  const Tensor starts = begins.nonzero().squeeze(1);
  const Tensor cu_seqlens = at::cat({starts, at::full({1}, batch * time, starts.options())});
  const auto one_row = [&](const Tensor& t) { return t.expand({batch, time}).reshape({1, -1}); };
  TrunkInput row = in;
  row.input_ids = one_row(in.input_ids);
  if (in.position_ids.defined()) row.position_ids = one_row(in.position_ids);
  row.seq_idx = Tensor();
  row.cu_seqlens = cu_seqlens.to(at::kInt);
  row.max_seqlen = at::sub(cu_seqlens.narrow(0, 1, starts.size(0)), starts).max().item<int64_t>();
  return row;
}

void check_tensor(const Tensor& tensor, const char* name, at::ScalarType dtype, at::Device device) {
  check_device(tensor, name, device);
  if (tensor.scalar_type() == dtype) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(name, " of ", dtype),
               .got = cat(tensor.scalar_type()),
               .next = cat("convert them: .to(at::k", dtype, ")")});
}

Tensor ids_of(const TrunkInput& in) {
  return in.step == nullptr ? in.input_ids : in.step->ids.view({in.step->batch(), in.step->new_tokens});
}

void check_input(const TrunkInput& in, const InputLimits& limits) {
  const Tensor ids = ids_of(in);
  if (!ids.defined() || ids.dim() != 2 || ids.numel() == 0) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "input_ids [batch, time], not empty",
                 .got = ids.defined() ? cat("[", join(ids.sizes()), "]") : "none",
                 .next = "give one row of token ids per sequence; unsqueeze(0) makes one row a batch"});
  }
  check_tensor(ids, "input_ids", at::kLong, limits.device);
  check_range(ids, limits.vocab_size);
  const int64_t batch = ids.size(0), time = ids.size(1);
  if (const Tensor& mask = in.attention_mask; mask.defined()) {
    const int64_t past = in.cache == nullptr ? 0 : in.cache->length();
    const int64_t columns = past + time;
    check_device(mask, "attention_mask", limits.device);
    check_shape(mask, "attention_mask", cat("[", batch, ", ", columns, "]: cached and new tokens"),
                mask.dim() == 2 && mask.size(0) == batch && mask.size(1) == columns);
  }
  if (const Tensor& places = in.position_ids; places.defined()) {
    check_tensor(places, "position_ids", at::kLong, limits.device);
    check_shape(places, "position_ids", cat("[1 or ", batch, ", ", time, "]"),
                places.dim() == 2 && (places.size(0) == batch || places.size(0) == 1) && places.size(1) == time);
  }
  if (in.seq_idx.defined()) check_seq_idx(in, limits.device);
  if (in.cu_seqlens.defined()) {
    check_device(in.cu_seqlens, "cu_seqlens", limits.device);
    check_packed(in);
  }
}

}  // namespace hotswap
