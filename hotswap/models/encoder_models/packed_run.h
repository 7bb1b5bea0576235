// Many texts through a TextModel in as few batches as its device likes: sorted by length, packed without padding, and
// on a CPU a batch for each of torch's threads at a time.
#pragma once

#include <functional>
#include <vector>

#include "hotswap/models/encoder_models/text_model.h"

namespace hotswap {

struct TextIds {
  std::vector<int64_t> ids;
  std::vector<int64_t> type_ids = {};  // or empty
};

// What becomes of a batch: the model's output and the lengths of its texts, in the order of its rows -> [texts, width]
using RowsOfBatch = std::function<Tensor(const TextOutput& out, const std::vector<int64_t>& lengths)>;

// [texts, width] float32 on the CPU, in the order of the texts. `rows_of` runs on several threads at once. Error for a
// text without tokens.
Tensor run_packed(TextModel& model, const std::vector<TextIds>& texts, int64_t width, const RowsOfBatch& rows_of);

}  // namespace hotswap
