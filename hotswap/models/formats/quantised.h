// Checkpoints whose weights are quantised, as quantization_config of config.json describes: each weight appears under
// the name that the model knows, X.weight, whatever tensors it is made of. One reader file a family of formats; all
// layouts are in one registry (quantised.cpp), and docs/formats.md has the table.
//
//   checkpoint = dequantising(std::move(checkpoint), config);   // as it is where nothing is quantised
//
// A reader makes a Weight (layers/weight.h) of the stored tensors, from which values are computed in float32 and
// rounded once; or which is kept, in blocks, where kernels read it (layers/weight_blocks.h). Scales of activations and
// of the key-value cache are not needed for that and not read: what this host computes has exact activations.
#pragma once

#include <memory>

#include "hotswap/base/json.h"
#include "hotswap/models/formats/weights.h"

namespace hotswap {

// Error, by name, for a quantisation of config.json that no reader has. mxfp4 is read by a family's own rules.
void check_quantisation(const Json& config, bool reads_mxfp4);

// Does the config name a quantisation that dequantising() reads?
bool is_quantised(const Json& config);

// The same, or one that a family's rules read: may weights stay as they are stored?
bool may_stay_packed(const Json& config);

std::unique_ptr<const Checkpoint> dequantising(std::unique_ptr<const Checkpoint> stored, const Json& config);

}  // namespace hotswap
