// linear/1
#include "hotswap/layers/linear.h"

#include "hotswap/kernelize/bind/example.h"

namespace hotswap::binding {
namespace {

Result<Example> linear_example(const std::string&, const ExampleSize& size) {
  const int64_t out = size.out > 0 ? size.out : size.dim;
  Example example = make_example<LinearForward>(
      stock::linear, {random({size.rows, size.dim}), random({out, size.dim}), random({out})});
  example.shape = cat(size.rows, "x", size.dim, " @ ", size.dim, "x", out);
  example.flops = 2.0 * static_cast<double>(size.rows * size.dim * out);
  return example;
}

}  // namespace

std::vector<Contract> linear_contracts() {
  return {{"linear/1",
           {{"forward", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor y"},
            {"forward_train", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor y"},
            {"backward",
             "(Tensor dy, Tensor x, Tensor weight, bool with_bias) -> (Tensor dx, Tensor dweight, Tensor dbias)"}},
           bind_regular<LinearForward>,
           linear_example,
           {.rows = 1, .dim = 576},
           {.rows = 1, .dim = 8192}}};
}

}  // namespace hotswap::binding
