// For the tests of both losses: their options, inputs and the formula in ATen.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include "kernels/common/testing/testing.h"

namespace kernels::testing {

inline constexpr int64_t kIgnore = -100;

struct Options {
  double label_smoothing = 0, softcap = 0, z_loss = 0;
  const char* reduction = "mean";
  bool class_weight = false, token_scaling = false;
};
inline const std::vector<Options> kOptions = {
    {},
    {.reduction = "sum"},
    {.reduction = "none"},
    {.label_smoothing = 0.1},
    {.softcap = 5, .reduction = "sum"},
    {.z_loss = 1e-2, .reduction = "none"},
    {.label_smoothing = 0.2, .softcap = 3, .z_loss = 1e-2},
    {.label_smoothing = 0.2, .softcap = 3, .z_loss = 1e-2, .reduction = "none"},
    {.class_weight = true},
    {.label_smoothing = 0.1, .reduction = "sum", .class_weight = true},
    {.reduction = "sum", .token_scaling = true},
    // no mean: a small probability of that would be a subnormal number of float16
    {.label_smoothing = 0.2,
     .softcap = 3,
     .z_loss = 1e-2,
     .reduction = "sum",
     .class_weight = true,
     .token_scaling = true},
    {.label_smoothing = 0.2,
     .softcap = 3,
     .z_loss = 1e-2,
     .reduction = "none",
     .class_weight = true,
     .token_scaling = true},
};
inline const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

inline std::string describe(const Options& o, at::ScalarType dtype, const std::string& more) {
  return std::string(c10::toString(dtype)) + " smoothing " + std::to_string(o.label_smoothing) + " softcap " +
         std::to_string(o.softcap) + " z " + std::to_string(o.z_loss) + " " + o.reduction +
         (o.class_weight ? " weighted " : " ") + (o.token_scaling ? "scaled " : "") + more;
}

// One number a word, from 0.5 to 1.5, the same for all who ask.
inline Tensor class_weights(int64_t vocab) { return (at::arange(vocab, at::kFloat).sin() * 0.5 + 1).to(device()); }
inline c10::IValue class_weight(const Options& o, int64_t vocab) {
  return o.class_weight ? c10::IValue(class_weights(vocab)) : c10::IValue();
}

// A mean divides by rows, whatever the weights.
inline Tensor formula(const Tensor& logits, const Tensor& target, const Options& o) {
  const Tensor u = o.softcap > 0 ? o.softcap * (logits / o.softcap).tanh() : logits;
  const Tensor valid = (target != kIgnore).to(at::kDouble);
  const std::optional<Tensor> weight =
      o.class_weight ? std::optional(class_weights(u.size(1)).to(u.scalar_type())) : std::nullopt;
  Tensor row = at::cross_entropy_loss(u, target, weight, at::Reduction::None, kIgnore, o.label_smoothing) +
               o.z_loss * at::logsumexp(u, -1).pow(2) * valid;
  if (o.token_scaling)
    row = row * (-at::cross_entropy_loss(u, target, {}, at::Reduction::None, kIgnore)).exp().detach();
  const std::string reduction = o.reduction;
  return reduction == "none" ? row : reduction == "sum" ? row.sum() : row.sum() / valid.sum();
}

// Targets of which about every fifth row, and always the last, is ignored.
inline Tensor random_target(int64_t rows, int64_t vocab) {
  Tensor t = at::randint(vocab, {rows}, generator(), at::kLong);
  for (int64_t row = rows > 1 ? rows - 1 : rows; row >= 0 && row < rows; row -= 5) t[row] = kIgnore;
  return t.to(device());
}
inline Tensor random_dloss(const Options& o, int64_t rows) {
  return std::string(o.reduction) == "none" ? random_tensor({rows}, at::kFloat) : random_tensor({}, at::kFloat);
}

}  // namespace kernels::testing
