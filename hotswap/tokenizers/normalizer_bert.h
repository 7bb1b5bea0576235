// The normalizers of BERT's family: BertNormalizer, StripAccents, Nmt.
#pragma once

#include "hotswap/tokenizers/normalizer.h"

namespace hotswap::tokenizers {

std::unique_ptr<Normalizer> read_bert_normalizer(const Json& json);
std::unique_ptr<Normalizer> make_strip_accents();
std::unique_ptr<Normalizer> make_nmt();

}  // namespace hotswap::tokenizers
