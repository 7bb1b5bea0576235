// What `kernel bench` holds a package's layer against: the stock forward of its contract, and the same in float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hotswap/base/result.h"
#include "hotswap/kernelize/package/package.h"

namespace hotswap {

using LayerForward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

struct LayerCase {
  std::string shape;               // "1024x1024", for people
  std::vector<at::Tensor> inputs;  // float64; labels int64
  size_t trained = 0;              // so many of the first inputs have a gradient
  LayerForward reference;          // of float64 inputs
  LayerForward stock, kernel;      // of inputs in the dtype that is measured
};

struct LayerSize {
  int64_t rows = 1024, dim = 1024;  // dim: even
};

// Fresh inputs from torch's default generator. A Reason where no stock layer computes what this one does.
Result<LayerCase> make_layer_case(const PackageLayer& layer, const LayerSize& size);

}  // namespace hotswap
