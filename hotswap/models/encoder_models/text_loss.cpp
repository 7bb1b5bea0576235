#include "hotswap/models/encoder_models/text_loss.h"

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>

#include "hotswap/base/error.h"

namespace hotswap {
namespace {

constexpr const char* kSoftLabels = "shares of classes";  // which no config.json names

[[noreturn]] void refuse_labels(const TextLabels& of, const std::string& right) {
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = right,
               .got = cat(of.labels.scalar_type(), " labels [", join(of.labels.sizes()), "]"),
               .next = "give labels of that form, or set problem_type in config.json: regression, "
                       "single_label_classification or multi_label_classification"});
}

std::string problem_of(const TextLabels& of) {
  if (!of.problem_type.empty()) return of.problem_type;
  if (of.logits.size(1) == 1) return "regression";
  if (at::isIntegralType(of.labels.scalar_type(), /*includeBool=*/false)) return "single_label_classification";
  return of.soft ? kSoftLabels : "multi_label_classification";
}

}  // namespace

Tensor ClassLoss::forward(const Tensor& logits, const Tensor& labels) const {
  return loss_(logits.reshape({-1, logits.size(-1)}), labels.reshape({-1}), CrossEntropyOptions{});
}

Tensor text_loss(const ClassLoss& classes, const TextLabels& of) {
  const int64_t texts = of.logits.size(0), width = of.logits.size(1);
  const std::string problem = problem_of(of);
  if (problem == "single_label_classification") {
    if (of.labels.scalar_type() != at::kLong || of.labels.numel() != texts) {
      refuse_labels(of, cat("one int64 label for each of ", texts, " texts"));
    }
    return classes.forward(of.logits, of.labels);
  }
  const bool regression = problem == "regression", soft = of.problem_type.empty() && problem == kSoftLabels;
  if (!regression && !soft && problem != "multi_label_classification") {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "a problem_type: regression, single_label_classification or multi_label_classification",
                 .got = cat('"', problem, '"'),
                 .next = "correct problem_type in config.json"});
  }
  const bool one = regression && width == 1;
  if (of.labels.numel() != of.logits.numel() || (!one && of.labels.sizes() != of.logits.sizes())) {
    refuse_labels(of, cat("labels [", texts, one ? "]" : cat(", ", width, "]")));
  }
  const Tensor labels = of.labels.view_as(of.logits);
  if (soft) return at::cross_entropy_loss(of.logits, labels.to(of.logits.scalar_type()));
  return regression ? at::mse_loss(of.logits, labels.to(of.logits.scalar_type()))
                    : at::binary_cross_entropy_with_logits(of.logits, labels.to(of.logits.scalar_type()));
}

}  // namespace hotswap
