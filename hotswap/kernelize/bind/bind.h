// One function a contract signature, for contracts.cpp alone: they put a package's ops into a slot.
#pragma once

namespace hotswap {

class SlotBase;
class PackageLayer;

void bind_rms_norm(SlotBase& slot, const PackageLayer& layer);
void bind_add_rms_norm(SlotBase& slot, const PackageLayer& layer);
void bind_layer_norm(SlotBase& slot, const PackageLayer& layer);
void bind_activation(SlotBase& slot, const PackageLayer& layer);
void bind_gated(SlotBase& slot, const PackageLayer& layer);
void bind_rotary(SlotBase& slot, const PackageLayer& layer);
void bind_linear(SlotBase& slot, const PackageLayer& layer);
void bind_cross_entropy(SlotBase& slot, const PackageLayer& layer);
void bind_linear_cross_entropy(SlotBase& slot, const PackageLayer& layer);

}  // namespace hotswap
