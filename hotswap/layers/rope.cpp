#include "hotswap/layers/rope.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_not.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/div.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

// Python's `number / tensor` is reciprocal() * number.
Tensor over(double number, const Tensor& t) { return at::mul(at::reciprocal(t), number); }

// arange(0, dim, 2) / dim                                                                          [dim / 2] float32
Tensor exponents(int64_t dim, at::Device device = at::kCPU) {
  const Tensor even = at::arange(0, dim, 2, at::TensorOptions(at::kFloat).device(device));
  return at::div(even, static_cast<double>(dim));
}

RopeFrequencies plain(const RopeParameters& r, std::optional<int64_t>) {
  return {over(1.0, at::pow(r.theta, exponents(r.dim))), 1.0};
}

RopeFrequencies linear(const RopeParameters& r, std::optional<int64_t> length) {
  return {at::div(plain(r, length).inverse, r.factor), 1.0};
}

double growth(const RopeParameters& r) { return static_cast<double>(r.dim) / static_cast<double>(r.dim - 2); }

RopeFrequencies dynamic(const RopeParameters& r, std::optional<int64_t> length) {
  // Without a length Python computes the base in double, with one (a tensor there) in float32.
  if (length) return {dynamic_inverse(r, at::scalar_tensor(*length, at::kLong)), 1.0};
  const auto limit = static_cast<double>(r.max_position_embeddings);
  const double base = r.theta * std::pow((r.factor * limit / limit) - (r.factor - 1), growth(r));
  return {over(1.0, at::pow(base, exponents(r.dim))), 1.0};
}

RopeFrequencies llama3(const RopeParameters& r, std::optional<int64_t> length) {
  const Tensor inverse = plain(r, length).inverse;
  const auto context = static_cast<double>(r.original_max_position_embeddings);
  const double low = context / r.low_freq_factor, high = context / r.high_freq_factor;
  const Tensor wavelength = over(2 * M_PI, inverse);
  const Tensor scaled = at::where(at::gt(wavelength, low), at::div(inverse, r.factor), inverse);
  const Tensor smooth =
      at::div(at::sub(over(context, wavelength), r.low_freq_factor), r.high_freq_factor - r.low_freq_factor);
  const Tensor smoothed = at::add(at::div(at::mul(at::rsub(smooth, 1), scaled), r.factor), at::mul(smooth, scaled));
  const Tensor medium =
      at::bitwise_and(at::bitwise_not(at::lt(wavelength, high)), at::bitwise_not(at::gt(wavelength, low)));
  return {at::where(medium, smoothed, scaled), 1.0};
}

double yarn_scaling(const RopeParameters& r) {
  if (r.attention_factor) return *r.attention_factor;
  if (r.mscale == 0 || r.mscale_all_dim == 0) return yarn_mscale(r.factor, 1);
  return yarn_mscale(r.factor, r.mscale) / yarn_mscale(r.factor, r.mscale_all_dim);
}

RopeFrequencies yarn(const RopeParameters& r, std::optional<int64_t>) {
  const auto dim = static_cast<double>(r.dim);
  const auto correction = [&](double rotations) {
    const auto context = static_cast<double>(r.original_max_position_embeddings);
    return (dim * std::log(context / (rotations * 2 * M_PI))) / (2 * std::log(r.theta));
  };
  double low = correction(r.beta_fast), high = correction(r.beta_slow);
  if (r.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // as transformers keeps the ramp finite
  const Tensor ramp = at::clamp(at::div(at::sub(at::arange(r.dim / 2, at::kFloat), low), high - low), 0, 1);
  const Tensor extrapolate = at::rsub(ramp, 1);
  const Tensor frequencies = at::pow(r.theta, exponents(r.dim));
  const Tensor extrapolated = over(1.0, frequencies);
  const Tensor interpolated = over(1.0, at::mul(frequencies, r.factor));
  return {at::add(at::mul(interpolated, at::rsub(extrapolate, 1)), at::mul(extrapolated, extrapolate)),
          yarn_scaling(r)};
}

RopeFrequencies longrope(const RopeParameters& r, std::optional<int64_t> length) {
  const auto& factors = length && *length > r.original_max_position_embeddings ? r.long_factor : r.short_factor;
  double scaling = 1;
  if (r.attention_factor) {
    scaling = *r.attention_factor;
  } else if (r.factor > 1) {
    scaling = std::sqrt(1 + std::log(r.factor) / std::log(static_cast<double>(r.original_max_position_embeddings)));
  }
  const Tensor stretch = at::tensor(at::ArrayRef<double>(factors), at::kDouble).to(at::kFloat);
  return {over(1.0, at::mul(stretch, at::pow(r.theta, exponents(r.dim)))), scaling};
}

struct RopeRow {
  const char* type;
  RopeFrequencies (*compute)(const RopeParameters&, std::optional<int64_t>);
};
constexpr RopeRow kRows[] = {{"default", plain}, {"linear", linear}, {"dynamic", dynamic},
                             {"llama3", llama3}, {"yarn", yarn},     {"longrope", longrope}};

}  // namespace

Tensor dynamic_inverse(const RopeParameters& r, const Tensor& length) {
  const Tensor grown = at::div(at::mul(length, r.factor), static_cast<double>(r.max_position_embeddings));
  const Tensor base = at::mul(at::pow(at::sub(grown, r.factor - 1), growth(r)), r.theta);
  return over(1.0, at::pow(base, exponents(r.dim, length.device())));
}

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

const std::vector<std::string>& rope_types() {
  static const std::vector<std::string> types = [] {
    std::vector<std::string> names;
    for (const RopeRow& row : kRows) names.emplace_back(row.type);
    return names;
  }();
  return types;
}

RopeFrequencies rope_frequencies(const RopeParameters& rope, std::optional<int64_t> length) {
  for (const RopeRow& row : kRows) {
    if (rope.type == row.type) return row.compute(rope, length);
  }
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a rope type: ", join(rope_types())),
               .got = cat('"', rope.type, '"'),
               .next = "set RopeParameters::type to one of them"});
}

}  // namespace hotswap
