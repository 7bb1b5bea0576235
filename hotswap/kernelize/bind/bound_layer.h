// One layer of a package behind a slot of its own, outside of any model: what benchmarks and tests call.
#pragma once

#include <utility>

#include "hotswap/kernelize/contracts.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/layers/slot.h"

namespace hotswap {

template <typename Signature>
struct BoundLayer : Module {
  BoundLayer(const PackageLayer& layer, typename Slot<Signature>::Forward stock)
      : slot(this, layer.name(), layer.contract().name, std::move(stock)) {
    layer.contract().bind(slot, layer);
  }
  Slot<Signature> slot;
};

}  // namespace hotswap
