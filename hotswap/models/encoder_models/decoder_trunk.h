// A family of decoders read as a text model: its trunk without the output head. Embeddings, rerankers and classifiers
// are made of it.
#pragma once

#include "hotswap/models/encoder_models/text_family.h"

namespace hotswap {

struct Family;

TextFamily decoder_text_family(const Family& family);

}  // namespace hotswap
