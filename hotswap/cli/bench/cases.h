// What `hotswap bench` measures: one call of one op of a bundled package on its contract's example, and the stock
// forward's way to the same result, or torch's through its gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <vector>

namespace hotswap {

struct OpCase {
  std::string op;         // "rms_norm"
  std::string qualified;  // "<id>::rms_norm"; its package is loaded
  std::string shape;      // "32768x1024", for people
  std::string dtype;      // "float32"
  std::vector<c10::IValue> arguments;
  std::function<std::vector<at::Tensor>()> peer;  // same inputs; for a backward op the graph is made beforehand
  double flops = 0;                               // 0: memory is what it costs
};

struct CaseSize {
  bool large = false;  // beyond the last cache; else what fits the caches of one core
  at::ScalarType dtype = at::kFloat;
};

// The ops of the bundled packages' layers, without those that write over their inputs.
std::vector<std::string> bench_ops();
// Fresh inputs from torch's default generator. Error for a name that bench_ops() does not have.
OpCase make_case(const std::string& op, const CaseSize& size);

}  // namespace hotswap
