#include "hotswap/models/encoders/relative_positions.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/div.h>
#include <ATen/ops/le.h>
#include <ATen/ops/log.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/take.h>
#include <ATen/ops/where.h>

#include <algorithm>

namespace hotswap {
namespace {

// In float32 and in transformers' order of operations: at the edge of a row the last bit decides.
Tensor in_buckets(const Tensor& distance, int64_t buckets, int64_t max_distance) {
  const int64_t middle = buckets / 2;
  const Tensor far = distance.abs();
  const Tensor logs = at::log(at::div(at::clamp_min(far, middle - 1), middle));
  const Tensor longest =
      at::log(at::scalar_tensor(static_cast<double>(max_distance - 1) / static_cast<double>(middle), at::kFloat));
  const Tensor bucket = at::add(at::ceil(at::mul(at::div(logs, longest), middle - 1)), middle);
  return at::where(at::le(far, middle), distance.to(at::kFloat), at::mul(bucket, at::sign(distance))).to(at::kLong);
}

}  // namespace

Tensor DistanceRows::by_distance(int64_t longest) const {
  Tensor distance = at::arange(1 - longest, longest, at::kLong);
  if (buckets > 0) distance = in_buckets(distance, buckets, max_distance);
  return at::clamp(at::add(distance, to_each_side()), 0, rows() - 1);
}

RelativePositions::RelativePositions(const DistanceRows& of, const std::vector<int64_t>& lengths, at::Device device) {
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const Tensor by_distance = of.by_distance(longest);
  first_ = by_distance.min().item<int64_t>();
  count_ = by_distance.max().item<int64_t>() - first_ + 1;
  const Tensor row_of = at::sub(by_distance, first_).to(device);
  for (const int64_t time : lengths) {
    if (index_.contains(time)) continue;
    const Tensor tokens = at::arange(time, row_of.options());
    index_[time] = at::take(row_of, at::add(at::sub(tokens.unsqueeze(1), tokens.unsqueeze(0)), longest - 1));
  }
}

Tensor RelativePositions::cut(const Tensor& table) const { return table.narrow(0, first_, count_); }

}  // namespace hotswap
