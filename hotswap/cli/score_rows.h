// A model's loss on rows of ids.
#pragma once

#include "hotswap/cli/flags/model_flags.h"

namespace hotswap {

struct Score {
  double loss = 0;  // mean over every prediction of every row
  int64_t tokens = 0;
};

// Row by row: memory stays that of the longest one. Rows have two ids at least; `logits`, where given, gets those of
// each row, float32 on the CPU.
Score score_rows(CausalLM& model, const Rows& rows, std::vector<Tensor>* logits = nullptr);

}  // namespace hotswap
