// Which checkpoint a run goes on from, and whether it may. For sources of this room.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hotswap/training/checkpoint/optimizer_file.h"
#include "hotswap/training/trainer_parts.h"

namespace hotswap {

// Of resume_from_checkpoint: the folder that it names, or for "true" the last whole one of output_dir; those that are
// not whole are warned about. Error where there is none. What processes that were killed left in output_dir is removed.
std::filesystem::path checkpoint_to_resume(const std::string& resume_from, const std::filesystem::path& output_dir);

// Why no run can go on from a folder, such as a file that is missing or cut off; none where one can.
std::optional<std::string> why_not_whole(const std::filesystem::path& folder);

// Error where an argument that decides the order of the data is not the checkpoint's, with ignore_data_skip none;
// transformers' warnings for steps of the log, of evaluations and of checkpoints. Of a checkpoint of transformers' only
// what its trainer_state.json has is compared. Where the number of ranks changes, an update has to keep its examples.
struct ResumedRanks {
  int64_t saved = 1, own = 1;
};
void check_resumed_arguments(const std::filesystem::path& folder, const TrainerState& saved,
                             const TrainingArguments& arguments, const ResumedRanks& ranks = {});

// The weights of a folder into a model of the same tensors, in the model's dtype; where an adapter trains, the
// adapter's. Error that names the first tensor that differs, before any is changed.
void load_weights(CausalLM& model, const std::filesystem::path& folder);

// By the model's family; models/parity_test.cpp compares all of them with transformers.
ParameterOrder order_of(const CausalLM& model);

// The names of parameters by the model's tensors, in their order. Error where one is none of the model's.
std::vector<std::string> names_of(CausalLM& model, const std::vector<Tensor>& parameters);

}  // namespace hotswap
