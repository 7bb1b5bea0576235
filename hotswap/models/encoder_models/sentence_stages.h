// What follows a sentence encoder's model, as modules.json lists it: pooling, dense layers, norms.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "hotswap/models/encoder_models/pooling.h"

namespace hotswap {

// One that changes a text's vector.
class VectorStage {
 public:
  virtual ~VectorStage() = default;
  virtual Tensor forward(const Tensor& x) const = 0;  // [texts, in] -> [texts, out]
  virtual int64_t out(int64_t in) const { return in; }
  virtual bool normalizes() const { return false; }  // to length 1
};

struct SentenceStages {
  std::filesystem::path model_folder;  // of the Transformer
  Pooling pooling;
  std::vector<std::unique_ptr<VectorStage>> after;
};

// Of a folder without modules.json: the mean of the tokens. Error naming a module that is not implemented.
SentenceStages read_sentence_stages(const std::filesystem::path& folder);

Tensor unit_length(const Tensor& x);  // [texts, dim], as torch's normalize

}  // namespace hotswap
