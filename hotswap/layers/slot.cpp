#include "hotswap/layers/slot.h"

namespace hotswap {

SlotBase::SlotBase(Module* owner, std::string layer, std::string contract, SlotNeeds needs)
    : layer_(std::move(layer)), contract_(std::move(contract)), needs_(std::move(needs)) {
  owner->slots_.push_back(this);
}

void Module::each_slot(const SlotVisitor& visit) {
  each_module([&](const std::string& path, Module& module) {
    for (SlotBase* slot : module.slots_) {
      if (slot->in_use()) visit(path, *slot);
    }
  });
}

}  // namespace hotswap
