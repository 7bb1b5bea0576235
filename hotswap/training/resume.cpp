#include "hotswap/training/resume.h"

#include <ATen/core/grad_mode.h>

#include <map>

#include "hotswap/base/error.h"
#include "hotswap/base/log.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/training/checkpoint/folder.h"
#include "hotswap/training/checkpoint/zip_file.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kWeights[] = {"model.safetensors", "adapter_model.safetensors"};

// Opens what it names: that checks the lengths of all that is in it.
void open_weights(const fs::path& folder) {
  if (fs::exists(folder / kIndex)) {
    SafetensorsIndex{folder / kIndex};
    return;
  }
  for (const char* name : kWeights) {
    if (!fs::exists(folder / name)) continue;
    SafetensorsFile{folder / name};
    return;
  }
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = cat("model.safetensors in ", folder.string()),
               .got = "none",
               .next = "name a checkpoint's folder"});
}

void open_states(const fs::path& folder) {
  for (const char* name : {"optimizer.pt", "scheduler.pt"}) {
    if (!fs::exists(folder / name)) {
      throw Error({.kind = ErrorKind::kNotFound,
                   .wanted = cat("the optimizer's states in ", folder.string()),
                   .got = cat("no ", name, ", as with save_only_model"),
                   .next = "resume from another checkpoint, or start a new run from this one's model"});
    }
    ZipReader{folder / name};
  }
}

[[noreturn]] void none_to_resume(const std::string& expected, const std::string& got) {
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = expected,
               .got = got,
               .next = "start a run without resume_from_checkpoint, or name a checkpoint's folder"});
}

fs::path last_whole(const fs::path& output) {
  if (output.empty()) none_to_resume("an output_dir, for resume_from_checkpoint true", "none");
  remove_leftovers(output);
  const auto steps = checkpoint_steps(output);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    fs::path folder = checkpoint_folder(output, *step);
    const auto why = why_not_whole(folder);
    if (!why) return folder;
    log_warning(folder.string(), " is left out: ", *why);
  }
  none_to_resume(cat("a whole checkpoint in ", output.string()),
                 steps.empty() ? "no checkpoint" : cat(steps.size(), " that are not whole"));
}

// An argument that decides which examples an update reads.
struct DataArgument {
  const char* name;
  std::string saved, own;
};

std::vector<DataArgument> data_arguments(const TrainingArguments& saved, const TrainingArguments& own,
                                         const ResumedRanks& ranks) {
  const auto of = [](const char* name, const auto& a, const auto& b) { return DataArgument{name, cat(a), cat(b)}; };
  const auto in_update = [](const TrainingArguments& a, int64_t count) {
    return a.per_device_train_batch_size * a.gradient_accumulation_steps * count;
  };
  std::vector<DataArgument> sizes = {
      of("per_device_train_batch_size", saved.per_device_train_batch_size, own.per_device_train_batch_size),
      of("gradient_accumulation_steps", saved.gradient_accumulation_steps, own.gradient_accumulation_steps)};
  if (ranks.saved != ranks.own) {
    sizes = {of("per_device_train_batch_size * gradient_accumulation_steps * ranks of", in_update(saved, ranks.saved),
                in_update(own, ranks.own))};
  }
  std::vector<DataArgument> others = {
      of("train_sampling_strategy", saved.train_sampling_strategy, own.train_sampling_strategy),
      of("dataloader_drop_last", saved.dataloader_drop_last, own.dataloader_drop_last),
      of(saved.data_seed || own.data_seed ? "data_seed" : "seed", saved.data_seed.value_or(saved.seed),
         own.data_seed.value_or(own.seed))};
  sizes.insert(sizes.end(), others.begin(), others.end());
  return sizes;
}

void check_data_argument(const fs::path& folder, const DataArgument& argument) {
  if (argument.saved == argument.own) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(argument.name, " ", argument.saved, ", as in ", folder.string(),
                             ": with another one the run would go on with other examples"),
               .got = argument.own,
               .next = "resume with the checkpoint's value; with ignore_data_skip the epoch starts again"});
}

}  // namespace

std::optional<std::string> why_not_whole(const fs::path& folder) {
  try {
    TrainerState::read(folder / "trainer_state.json");
    open_weights(folder);
    open_states(folder);
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

fs::path checkpoint_to_resume(const std::string& resume_from, const fs::path& output_dir) {
  if (resume_from == "true") return last_whole(output_dir);
  if (!fs::is_directory(resume_from)) {
    none_to_resume("a checkpoint's folder to resume from",
                   cat(resume_from, fs::exists(resume_from) ? ", which is no folder" : ", which does not exist"));
  }
  if (!output_dir.empty()) remove_leftovers(output_dir);
  TrainerState::read(fs::path(resume_from) / "trainer_state.json");
  open_weights(resume_from);
  open_states(resume_from);
  return resume_from;
}

void check_resumed_arguments(const fs::path& folder, const TrainerState& saved, const TrainingArguments& arguments,
                             const ResumedRanks& ranks) {
  if (!arguments.ignore_data_skip) {
    if (fs::exists(folder / "training_arguments.json")) {
      const auto theirs =
          training_arguments_from(Json::read(folder / "training_arguments.json"), {}, ArgumentsAre::kPart);
      for (const DataArgument& one : data_arguments(theirs, arguments, ranks)) check_data_argument(folder, one);
    } else if (saved.train_batch_size > 0) {
      const char* name =
          ranks.saved == ranks.own ? "per_device_train_batch_size" : "per_device_train_batch_size * ranks of";
      check_data_argument(folder,
                          {name, cat(saved.train_batch_size * (ranks.saved == ranks.own ? 1 : ranks.saved)),
                           cat(arguments.per_device_train_batch_size * (ranks.saved == ranks.own ? 1 : ranks.own))});
      log_info(folder.string(),
               " has no training_arguments.json, and its training_args.bin, a pickled class, is not "
               "read: seed and gradient_accumulation_steps are taken to be the same");
    }
  }
  TrainerState own{.max_steps = saved.max_steps};
  own.set_steps(arguments);
  struct Steps {
    const char* name;
    const std::string& strategy;
    int64_t own, saved;
  };
  for (const Steps& steps : {Steps{"logging_steps", arguments.logging_strategy, own.logging_steps, saved.logging_steps},
                             Steps{"eval_steps", arguments.eval_strategy, own.eval_steps, saved.eval_steps},
                             Steps{"save_steps", arguments.save_strategy, own.save_steps, saved.save_steps}}) {
    if (steps.own == steps.saved || steps.strategy != "steps") continue;
    log_warning(steps.name, " is ", steps.own, ", and ", steps.saved, " in the trainer_state.json of ",
                folder.string());
  }
}

void load_weights(CausalLM& model, const fs::path& folder) {
  if (model.trains_adapter()) return model.restore_adapter(folder);  // the weights beside it do not change
  const at::NoGradGuard no_grad;
  const auto saved = AutoModelForCausalLM::from_pretrained(folder, {.device_map = "cpu"});
  std::map<std::string, Tensor> tensors;
  saved->each_tensor([&](const std::string& name, Tensor& tensor) { tensors.emplace(name, tensor); });
  const auto each = [&](const auto& visit) {
    model.each_tensor([&](const std::string& name, Tensor& tensor) {
      const auto found = tensors.find(name);
      visit(name, tensor, found == tensors.end() ? Tensor() : found->second);
    });
  };
  each([&](const std::string& name, const Tensor& tensor, const Tensor& other) {
    if (other.defined() && other.sizes() == tensor.sizes()) return;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a tensor ", name, " of shape ", tensor.sizes(), " in ", folder.string()),
                 .got = other.defined() ? cat("one of shape ", other.sizes()) : std::string("none"),
                 .next = "resume with the model that this checkpoint was written of"});
  });
  each([&](const std::string&, Tensor& tensor, const Tensor& other) { tensor.detach().copy_(other); });
}

ParameterOrder order_of(const CausalLM& model) {
  // Of an adapter the order was not compared with peft's.
  return model.trains_adapter() || model.family().own_parameter_order ? ParameterOrder::kOwn
                                                                      : ParameterOrder::kTransformers;
}

std::vector<std::string> names_of(CausalLM& model, const std::vector<Tensor>& parameters) {
  std::map<const void*, std::string> names;
  model.each_trained([&](const std::string& name, Tensor& tensor) { names[tensor.unsafeGetTensorImpl()] = name; });
  std::vector<std::string> found;
  for (const Tensor& parameter : parameters) {
    const auto name = names.find(parameter.unsafeGetTensorImpl());
    if (name == names.end()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "an optimizer over the model's parameters, for checkpoints that a run resumes from",
                   .got = cat("a parameter of shape ", parameter.sizes(), " that is none of the model's"),
                   .next = "make the optimizer of model->parameters(), or set save_only_model"});
    }
    found.push_back(name->second);
  }
  return found;
}

}  // namespace hotswap
