// Packing: examples into bins of a length, as TRL's SFTConfig has it under packing_strategy. For sources of this room.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hotswap/training/data/dataset.h"

namespace hotswap {

// Best fit decreasing: the longest example first, each into the bin with the least space that takes it, among equals
// the one that has had this space for longest; a new bin where none does. Bins in the order of their first example, as
// indices of `lengths`, which are from 1 to capacity. As TRL, whose datasets are mapped in batches of 1000: no bin has
// examples of two such batches.
std::vector<std::vector<int64_t>> best_fit_decreasing(const std::vector<int64_t>& lengths, int64_t capacity);

enum class Packing { kNone, kBestFit, kBestFitSplit, kWrapped };
// "bfd", "bfd_split", "wrapped"; Error for another name.
Packing packing_from(const std::string& strategy);

// kBestFit: bins of whole examples. kBestFitSplit: examples that are longer than `capacity` are cut into pieces of it
// first. kWrapped: all in one stream, cut every `capacity` tokens, where the documents see each other. An example of
// the dataset is a bin. A batch of bins is one row without padding: position_ids start at 0 in each document, which
// attention keeps apart by cu_seqlens, and the label of its first token is -100.
std::shared_ptr<const Dataset> packed_examples(std::vector<Example> examples, Packing packing, int64_t capacity);

}  // namespace hotswap
