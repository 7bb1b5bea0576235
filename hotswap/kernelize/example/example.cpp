// The table of examples: the rows of every family.
#include "hotswap/kernelize/example/example.h"

#include <ATen/ops/randn.h>

#include "hotswap/base/error.h"

namespace hotswap {
namespace binding {

Tensor random(at::IntArrayRef shape) { return at::randn(shape, at::TensorOptions().dtype(at::kFloat)); }

std::vector<ContractExample> norm_examples();
std::vector<ContractExample> activation_examples();
std::vector<ContractExample> moe_examples();
std::vector<ContractExample> linear_examples();
std::vector<ContractExample> loss_examples();
std::vector<ContractExample> attention_examples();
std::vector<ContractExample> mamba_examples();
std::vector<ContractExample> adamw_examples();

}  // namespace binding
namespace {

const std::vector<ContractExample>& examples() {
  static const std::vector<ContractExample> rows = [] {
    using namespace binding;  // NOLINT(google-build-using-namespace)
    std::vector<ContractExample> all;
    for (const auto family : {norm_examples, activation_examples, moe_examples, linear_examples, loss_examples,
                              attention_examples, mamba_examples, adamw_examples}) {
      for (const ContractExample& row : family()) all.push_back(row);
    }
    return all;
  }();
  return rows;
}

}  // namespace

const ContractExample& example_of(const Contract& contract) {
  for (const ContractExample& row : examples()) {
    if (row.contract == contract.name) return row;
  }
  throw Error({.kind = ErrorKind::kInternal,
               .wanted = cat("an example of the contract ", contract.name),
               .got = "none",
               .next = "add it to its family's file in hotswap/kernelize/example/"});
}

}  // namespace hotswap
