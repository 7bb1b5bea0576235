#include "hotswap/training/checkpoint/optimizer_file.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>

#include <map>

#include "hotswap/base/error.h"
#include "hotswap/training/checkpoint/torch_file.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

struct SavedGroup {
  std::vector<int64_t> ids;
  std::vector<std::string> names;  // empty where the file has none
  double weight_decay = 0;
};

[[noreturn]] void another_model(const std::string& where, const std::string& expected, const std::string& got) {
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(expected, " in ", where),
               .got = got,
               .next = "resume with the model that this checkpoint was written of"});
}

void check_setting(const PickleValue& group, const std::string& where, const char* key, const char* argument,
                   double value) {
  const double saved = group.at(key, where).number(cat(where, ": ", key));
  if (saved == value) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat(argument, " ", saved, ", as the checkpoint's optimizer has it in ", where),
               .got = cat(value),
               .next = "resume with the checkpoint's value, or start a new run from the checkpoint's model"});
}

void check_settings(const PickleValue& group, const std::string& where, const AdamWOptions& o, double peak_rate) {
  if (group.find("momentum", where) != nullptr || group.find("betas", where) == nullptr) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("the states of AdamW in ", where),
                 .got = "those of another optimizer",
                 .next = "resume a run whose optim was adamw_torch or adamw_torch_fused"});
  }
  for (const char* flag : {"amsgrad", "maximize"}) {
    const PickleValue* value = group.find(flag, where);
    if (value == nullptr || !value->boolean(cat(where, ": ", flag))) continue;
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("AdamW without ", flag, " in ", where),
                 .got = "one with it",
                 .next = "resume this run in Python"});
  }
  const auto& betas = group.at("betas", where).list(cat(where, ": betas"));
  if (betas.size() != 2) another_model(where, "two betas of AdamW", cat(betas.size()));
  const double saved[] = {betas[0]->number(where), betas[1]->number(where)}, own[] = {o.beta1, o.beta2};
  for (int i = 0; i < 2; ++i) {
    if (saved[i] == own[i]) continue;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("adam_beta", i + 1, " ", saved[i], ", as the checkpoint's optimizer has it in ", where),
                 .got = cat(own[i]),
                 .next = "resume with the checkpoint's value, or start a new run from the checkpoint's model"});
  }
  check_setting(group, where, "eps", "adam_epsilon", o.eps);
  if (group.find("initial_lr", where) != nullptr) {
    check_setting(group, where, "initial_lr", "learning_rate", peak_rate);
  }
}

SavedGroup group_of(const PickleValue& group, const std::string& where) {
  SavedGroup saved{.weight_decay = group.at("weight_decay", where).number(where)};
  for (const PickleValue* id : group.at("params", where).list(where)) saved.ids.push_back(id->integer(where));
  if (const PickleValue* names = group.find("param_names", where); names != nullptr) {
    for (const PickleValue* name : names->list(where)) saved.names.push_back(name->text(where));
    if (saved.names.size() != saved.ids.size()) {
      another_model(where, "a name for each parameter", cat(saved.names.size(), " for ", saved.ids.size()));
    }
  }
  return saved;
}

// Of each parameter of the optimizer: its number in the file, and the weight decay there.
struct SavedParameter {
  int64_t id;
  double weight_decay;
};
using Named = std::map<std::string, SavedParameter>;

std::vector<SavedParameter> by_name(const Named& saved, const std::vector<std::string>& names,
                                    const std::string& where) {
  std::vector<SavedParameter> found;
  for (const std::string& name : names) {
    const auto one = saved.find(name);
    if (one == saved.end()) another_model(where, cat("a state of the parameter ", name), "none");
    found.push_back(one->second);
  }
  return found;
}

std::vector<SavedParameter> parameters_of(const PickleValue& root, const std::string& where, const AdamW& optimizer,
                                          const ParameterNames& own, double peak_rate) {
  const auto& [names, order] = own;
  std::vector<SavedParameter> in_order;
  std::vector<size_t> sizes;
  Named named;
  for (const PickleValue* group : root.at("param_groups", where).list(where)) {
    check_settings(*group, where, optimizer.options(), peak_rate);
    const SavedGroup saved = group_of(*group, where);
    sizes.push_back(saved.ids.size());
    for (size_t i = 0; i < saved.ids.size(); ++i) {
      in_order.push_back({saved.ids[i], saved.weight_decay});
      if (!saved.names.empty()) named[saved.names[i]] = in_order.back();
    }
  }
  if (in_order.size() != names.size()) {
    another_model(where, cat("the states of ", names.size(), " parameters"), cat("those of ", in_order.size()));
  }
  if (!named.empty()) return by_name(named, names, where);
  if (order == ParameterOrder::kOwn) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("states with the parameters' names (param_names) in ", where),
                 .got = "none, and parameters of this family have another order in transformers",
                 .next = "resume this run in Python"});
  }
  if (sizes != optimizer.group_sizes()) {
    another_model(where, cat("groups of ", join(optimizer.group_sizes()), " parameters"),
                  cat("groups of ", join(sizes)));
  }
  return in_order;
}

Tensor checked(const PickleValue& state, const char* key, const std::string& where, const Tensor& parameter) {
  const PickleValue* value = state.find(key, where);
  if (value == nullptr) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("AdamW's ", key, " in ", where),
                 .got = "a state of another optimizer",
                 .next = "resume a run whose optim was adamw_torch or adamw_torch_fused"});
  }
  Tensor tensor = value->tensor(where);
  if (tensor.sizes() != parameter.sizes()) {
    another_model(where, cat(key, " of shape ", parameter.sizes()), cat("one of shape ", tensor.sizes()));
  }
  return tensor;
}

Tensor steps_of(const PickleValue& state, const std::string& where) {
  const PickleValue& value = state.at("step", where);
  if (const auto* tensor = std::get_if<Tensor>(&value.value)) {
    if (tensor->numel() != 1) another_model(where, "one count of steps", cat(tensor->numel()));
    return tensor->reshape({}).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }
  return at::scalar_tensor(value.number(where), at::TensorOptions(at::kFloat));
}

// Copies, since the file's tensors are not written to.
AdamWState state_of(const PickleValue& state, const std::string& where, const Tensor& parameter,
                    const StateKinds& kinds, bool owns) {
  const auto copied = [&](const char* key, at::ScalarType dtype) {
    const Tensor saved = checked(state, key, where, parameter);
    return owns ? saved.to(parameter.options().dtype(dtype), /*non_blocking=*/false, /*copy=*/true) : Tensor();
  };
  AdamWState own{.average = copied("exp_avg", kinds.moments),
                 .average_square = copied("exp_avg_sq", kinds.moments),
                 .steps = steps_of(state, where).to(parameter.device())};
  if (!kinds.master) return own;
  const bool has_master = state.find("master", where) != nullptr;
  if (has_master) own.master = copied("master", at::kFloat);
  if (!has_master && owns) own.master = parameter.detach().to(at::kFloat);
  return own;
}

void write_parameter_state(PickleWriter& out, const AdamW& optimizer, size_t index, const FetchState& fetch) {
  const AdamWState& state = optimizer.states()[index];
  const Tensor& parameter = optimizer.parameters()[index];
  const StateKinds kinds = state_kinds(optimizer.options().states, parameter.scalar_type());
  const auto tensor = [&](const char* key, const Tensor& own, at::ScalarType dtype) {
    out.text(key);
    if (optimizer.owns(index)) return out.tensor(own);
    out.tensor({.dtype = dtype, .sizes = parameter.sizes().vec(), .data = [&fetch, index, dtype] {
                  return fetch(index, dtype);
                }});
  };
  out.begin_dict();
  out.text("step");
  out.tensor(state.steps);
  tensor("exp_avg", state.average, kinds.moments);
  tensor("exp_avg_sq", state.average_square, kinds.moments);
  if (kinds.master) tensor("master", state.master, at::kFloat);
  out.end_dict();
}

void write_group(PickleWriter& out, const AdamW& optimizer, size_t first, size_t count,
                 const std::vector<std::string>& names, const LearningRates& rates) {
  const AdamWOptions& o = optimizer.options();
  out.begin_dict();
  const auto number = [&](const char* key, double value) {
    out.text(key);
    out.number(value);
  };
  const auto flag = [&](const char* key, bool value) {
    out.text(key);
    out.boolean(value);
  };
  number("lr", rates.next);
  out.text("betas");
  out.begin_tuple();
  out.number(o.beta1);
  out.number(o.beta2);
  out.end_tuple();
  number("eps", o.eps);
  number("weight_decay", count > 0 ? optimizer.states()[first].weight_decay : 0);
  flag("amsgrad", false);
  flag("maximize", false);
  out.text("foreach");
  out.none();
  flag("capturable", false);
  flag("differentiable", false);
  flag("fused", true);
  flag("decoupled_weight_decay", true);
  number("initial_lr", rates.peak);
  out.text("params");
  out.begin_list();
  for (size_t i = first; i < first + count; ++i) out.integer(static_cast<int64_t>(i));
  out.end_list();
  out.text("param_names");
  out.begin_list();
  for (size_t i = first; i < first + count; ++i) out.text(names.at(i));
  out.end_list();
  out.end_dict();
}

}  // namespace

void save_optimizer(const fs::path& file, const AdamW& optimizer, const ParameterNames& parameters,
                    const LearningRates& rates, const FetchState& fetch) {
  const std::vector<std::string>& names = parameters.names;
  TorchFileWriter writer;
  PickleWriter& out = writer.pickle();
  out.begin_dict();
  out.text("state");
  out.begin_dict();
  for (size_t i = 0; i < names.size(); ++i) {
    if (!optimizer.states()[i].steps.defined()) continue;  // it had no gradient yet
    out.integer(static_cast<int64_t>(i));
    write_parameter_state(out, optimizer, i, fetch);
  }
  out.end_dict();
  out.text("param_groups");
  out.begin_list();
  size_t first = 0;
  for (const size_t count : optimizer.group_sizes()) {
    write_group(out, optimizer, first, count, names, rates);
    first += count;
  }
  if (parameters.order == ParameterOrder::kOwn) write_group(out, optimizer, first, 0, names, rates);
  out.end_list();
  out.end_dict();
  writer.save(file);
}

void load_optimizer(const fs::path& file, AdamW& optimizer, const ParameterNames& parameters, double peak_rate) {
  const at::NoGradGuard no_grad;
  const std::vector<std::string>& names = parameters.names;
  const TorchFile read(file);
  const std::string where = file.string();
  const auto saved = parameters_of(read.root(), where, optimizer, parameters, peak_rate);
  std::map<int64_t, const PickleValue*> states;
  for (const auto& [id, state] : read.root().at("state", where).dict(where).items) states[id->integer(where)] = state;
  std::vector<AdamWState> own;
  for (size_t i = 0; i < names.size(); ++i) {
    const Tensor& parameter = optimizer.parameters()[i];
    const std::string at = cat(where, ": ", names[i]);
    const double decay = optimizer.states()[i].weight_decay;
    if (saved[i].weight_decay != decay) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("weight_decay ", saved[i].weight_decay, ", as the checkpoint has it for ", at),
                   .got = cat(decay),
                   .next = "resume with the checkpoint's value, or start a new run from the checkpoint's model"});
    }
    const auto state = states.find(saved[i].id);
    const StateKinds kinds = state_kinds(optimizer.options().states, parameter.scalar_type());
    own.push_back(state == states.end() ? AdamWState{}
                                        : state_of(*state->second, at, parameter, kinds, optimizer.owns(i)));
    own.back().weight_decay = decay;
  }
  optimizer.states() = std::move(own);
}

void save_scheduler(const fs::path& file, size_t groups, int64_t updates, const LearningRates& rates) {
  TorchFileWriter writer;
  PickleWriter& out = writer.pickle();
  const auto each_group = [&](const char* key, const auto& write) {
    out.text(key);
    out.begin_list();
    for (size_t i = 0; i < groups; ++i) write();
    out.end_list();
  };
  const auto count = [&](const char* key, int64_t value) {
    out.text(key);
    out.integer(value);
  };
  out.begin_dict();
  each_group("base_lrs", [&] { out.number(rates.peak); });
  count("last_epoch", updates);
  count("_step_count", updates + 1);
  for (const char* key : {"_is_initial", "_get_lr_called_within_step"}) {
    out.text(key);
    out.boolean(false);
  }
  each_group("_last_lr", [&] { out.number(rates.next); });
  each_group("lr_lambdas", [&] { out.none(); });
  out.end_dict();
  writer.save(file);
}

void check_scheduler(const fs::path& file, int64_t updates) {
  const TorchFile read(file);
  const int64_t saved = read.root().at("last_epoch", file.string()).integer(file.string());
  if (saved == updates) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("a schedule that made ", updates, " steps in ", file.string()),
               .got = cat("one that made ", saved, ", as after updates that a scaler of fp16 skipped"),
               .next = "resume this run in Python"});
}

}  // namespace hotswap
