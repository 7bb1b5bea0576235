// Folders of models that see, as they are published: only their text part is loaded.
#pragma once

#include <memory>

#include "hotswap/base/json.h"
#include "hotswap/layers/module.h"
#include "hotswap/models/formats/weights.h"

namespace hotswap {

// The text_config of such a config.json, with what the whole config has of it: special tokens, the weights' type. Any
// other config as it is.
Json text_part(const Json& config);

// Such a checkpoint under the names of a model of text; what belongs to images is skipped, with a warning.
// Any other as it is.
std::unique_ptr<const Checkpoint> text_part(std::unique_ptr<const Checkpoint> checkpoint, const Json& config,
                                            Module& model);

}  // namespace hotswap
