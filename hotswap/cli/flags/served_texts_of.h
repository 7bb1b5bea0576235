// Which of the two servers a model needs, and what the one of texts serves.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/serve/vectors/served_texts.h"

namespace hotswap {

// None where the model generates text: no encoder, no folder of sentence-transformers and no cross-encoder.
std::optional<serve::ServedTexts> served_texts_of(const ModelFlags& model, const KernelFlags& kernels,
                                                  const std::vector<std::string>& names);

}  // namespace hotswap
