// For the tests of this folder: a layer of a bundled package behind a slot.
#pragma once

#include "hotswap/kernelize/example/example.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/kernelize/resolve.h"
#include "hotswap/kernelize/testing.h"

namespace hotswap::test_support {

// Both sides in float32, sums of at most a hundred terms: some ulp (6e-8) of relative L2.
inline constexpr double kTolerance = 3e-6;

inline const PackageLayer& bundled_layer(const std::string& package, const std::string& layer) {
  HubKernels hub;
  const auto found =
      resolve_kernel(KernelRef(cat("hotswap/", package, ":", layer)), layer, "cpu", bundled_packages(), hub);
  return load_package(found->manifest).layer(found->layer);
}

template <typename Signature>
struct Bound : binding::BoundLayer<Signature> {
  using binding::BoundLayer<Signature>::BoundLayer;
  template <typename... Args>
  auto operator()(const Args&... args) const {
    return this->slot(args...);
  }
};

// Copies; grad: the floating ones want gradients.
inline Tensors leaves(const Tensors& values, bool grad) {
  Tensors result;
  for (const Tensor& value : values) {
    result.push_back(value.is_floating_point() ? value.clone().set_requires_grad(grad) : value);
  }
  return result;
}

}  // namespace hotswap::test_support
