#include "hotswap/layers/slot.h"

namespace hotswap {

SlotBase::SlotBase(Module* owner, std::string layer, std::string contract, SlotNeeds needs)
    : layer_(std::move(layer)), contract_(std::move(contract)), needs_(std::move(needs)) {
  owner->slots_.push_back(this);
}

}  // namespace hotswap
