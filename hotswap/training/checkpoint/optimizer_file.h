// optimizer.pt and scheduler.pt of a checkpoint, as torch.optim.AdamW's and LambdaLR's state_dict(). For sources of
// this room.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hotswap/training/optimizers/optimizer.h"

namespace hotswap {

struct LearningRates {
  double peak = 0;  // initial_lr, and base_lrs of the schedule
  double next = 0;  // of the update that follows
};

// Whether the model's parameters have the order that they have in transformers, by which torch reads states.
enum class ParameterOrder { kTransformers, kOwn };

// One name for each parameter, in the optimizer's order, which is transformers' for the same model.
struct ParameterNames {
  std::vector<std::string> names;
  ParameterOrder order = ParameterOrder::kTransformers;
};

// What another rank keeps of a parameter (AdamW::owns), on the CPU, contiguous, of that dtype and the parameter's
// shape. It is called in the order of the parameters, of one for average, average_square and, where there is one,
// master.
using FetchState = std::function<Tensor(size_t parameter, at::ScalarType dtype)>;

// The names are written as param_names, which torch leaves as they are; a master copy is written as `master` beside a
// parameter's exp_avg. A file in an order of our own has an empty group more, for which torch refuses it. `fetch` is
// needed where the optimizer does not own all of its parameters.
void save_optimizer(const std::filesystem::path& file, const AdamW& optimizer, const ParameterNames& parameters,
                    const LearningRates& rates, const FetchState& fetch = nullptr);

// By the names of the file where it has them, else by order, which is how torch reads it. States get the dtype that the
// optimizer's options have; of a parameter that the optimizer does not own only its count of steps is kept. Error
// where the file is of another optimizer, has other parameters or shapes, or settings that are not the optimizer's: the
// Error names the parameter or the setting, and nothing has been changed then.
void load_optimizer(const std::filesystem::path& file, AdamW& optimizer, const ParameterNames& parameters,
                    double peak_rate);

void save_scheduler(const std::filesystem::path& file, size_t groups, int64_t updates, const LearningRates& rates);
// Error unless the schedule has made `updates` steps.
void check_scheduler(const std::filesystem::path& file, int64_t updates);

}  // namespace hotswap
