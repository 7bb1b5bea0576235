// What `hotswap bench` measures: one call of one op of a bundled package, and torch eager's way to the same result.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <vector>

namespace hotswap {

struct OpCase {
  std::string package, op;  // "norm", "rms_norm"
  std::string shape;        // "32768x1024", for people
  std::string dtype;        // "float32"
  std::vector<c10::IValue> arguments;
  std::function<std::vector<at::Tensor>()> peer;  // same inputs; for a backward op the graph is made beforehand
  int64_t bytes = 0;                              // read and written once each: what the op cannot avoid to move
};

struct CaseSize {
  bool large = false;  // beyond the last cache; else what fits the caches of one core
  at::ScalarType dtype = at::kFloat;
};

// The names of the ops that have cases.
std::vector<std::string> bench_ops();
// Fresh inputs from torch's default generator. Error for a name that bench_ops() does not have.
OpCase make_case(const std::string& op, const CaseSize& size);

}  // namespace hotswap
