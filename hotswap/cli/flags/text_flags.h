// The flags of a model, as a text model takes them: encoders, embeddings, rerankers.
#pragma once

#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/models/encoder_models/text_model.h"

namespace hotswap {

// Error where a flag is of what text models have not: GGUF files, packed weights, adapters.
TextOptions text_options_of(const ModelFlags& model, const KernelFlags& kernels);

}  // namespace hotswap
