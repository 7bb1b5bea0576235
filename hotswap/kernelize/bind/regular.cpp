#include "hotswap/kernelize/bind/regular.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>

#include "hotswap/kernelize/bind/backward_impl.h"

namespace hotswap::binding {

using c10::OperatorHandle;
using torch::autograd::Edge;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Arguments = std::vector<c10::Argument>;

namespace {

constexpr size_t kNone = static_cast<size_t>(-1);

size_t index_of(const Arguments& list, const std::string& name) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const auto& item) { return item.name() == name; });
  return found == list.end() ? kNone : static_cast<size_t>(found - list.begin());
}

bool is_tensor(const c10::Argument& argument) {
  const std::string type = argument.type()->str();
  return type == "Tensor" || type == "Tensor?";
}

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

}  // namespace

bool is_gradient_of(const std::string& result, const std::string& argument) {
  if (!result.starts_with("d")) return false;
  const std::string of = result.substr(1);
  return of == argument || of.starts_with(argument + "_and_") || of.ends_with("_and_" + argument);
}

class RegularOps {
 public:
  // What forward keeps for backward.
  struct Saved {
    enum { kArgument, kResult, kGiven } from;  // kGiven: whether the argument was
    size_t index;
  };
  // An argument of a backward op.
  struct Source {
    enum { kGradient, kTensor, kValue } kind;
    size_t index;           // of the result, of the saved tensors, of the saved values
    size_t writes = kNone;  // the tensor whose gradient the op writes over it
    bool may_lack = false;  // a gradient: none instead of zeros
  };

  RegularOps(const LayerOps& of, Gradients reads)
      : layer(of),
        gradients(reads),
        forward(*find("forward")),
        train(find("forward_train")),
        backward(find("backward")),
        inplace(find("backward_inplace")) {
    const auto schema = parsed("forward");
    arguments = schema.arguments();
    outputs = schema.returns().size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (is_tensor(arguments[i])) tensors.push_back(i);
    }
    gradient_of.assign(tensors.size(), kNone);
    if (!layer.trains()) return;
    results_ = parsed("forward_train").returns();
    const auto back = parsed("backward");
    for (const auto& argument : back.arguments()) sources.push_back(source_of(argument));
    if (inplace) {
      const auto over = parsed("backward_inplace");
      for (const auto& argument : over.arguments()) inplace_sources.push_back(source_of(argument));
    }
    for (size_t t = 0; t < tensors.size(); ++t) {
      for (size_t i = 0; i < back.returns().size(); ++i) {
        if (is_gradient_of(back.returns()[i].name(), arguments[tensors[t]].name())) gradient_of[t] = i;
      }
      if (gradient_of[t] == kNone) without_gradient.push_back(tensors[t]);
    }
  }

  const LayerOps& layer;
  const Gradients gradients;
  OperatorHandle forward;
  std::optional<OperatorHandle> train, backward, inplace;
  Arguments arguments;                   // of forward and forward_train
  size_t outputs = 0;                    // the first of forward_train's results
  std::vector<size_t> tensors;           // those of the arguments that are
  std::vector<size_t> gradient_of;       // of each of the tensors: the result of backward, or none
  std::vector<size_t> without_gradient;  // the arguments that may not require one
  std::vector<Saved> saved_tensors, saved_values;
  std::vector<Source> sources, inplace_sources;  // of backward's arguments, of backward_inplace's

 private:
  std::optional<OperatorHandle> find(const char* role) const {
    const std::string name = layer.op(role);
    if (name.empty()) return std::nullopt;
    return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
  }

  c10::FunctionSchema parsed(const char* role) const {  // the contract's: an op may name its results otherwise
    return torch::jit::parseSchema("op" + layer.contract().roles.at(role).schema);
  }

  static size_t place_of(std::vector<Saved>& list, const Saved& wanted) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].from == wanted.from && list[i].index == wanted.index) return i;
    }
    list.push_back(wanted);
    return list.size() - 1;
  }

  Source source_of(const c10::Argument& wanted) {
    const std::string& name = wanted.name();
    if (const size_t i = name.starts_with("d") ? index_of(results_, name.substr(1)) : kNone; i < outputs) {
      return {Source::kGradient, i, kNone, wanted.type()->str() == "Tensor?"};
    }
    if (const size_t i = index_of(arguments, name); i != kNone) {
      if (!is_tensor(wanted)) return {Source::kValue, place_of(saved_values, {Saved::kArgument, i})};
      const auto tensor = std::find(tensors.begin(), tensors.end(), i) - tensors.begin();
      return {Source::kTensor, place_of(saved_tensors, {Saved::kArgument, i}),
              is_written(wanted) ? static_cast<size_t>(tensor) : kNone};
    }
    if (const size_t i = index_of(results_, name); i != kNone) {
      return {Source::kTensor, place_of(saved_tensors, {Saved::kResult, i})};
    }
    if (const size_t i = name.starts_with("with_") ? index_of(arguments, name.substr(5)) : kNone; i != kNone) {
      return {Source::kValue, place_of(saved_values, {Saved::kGiven, i})};
    }
    throw Error({.kind = ErrorKind::kInternal,
                 .wanted = cat("arguments of ", layer.contract().name, "'s backward that its other schemas have"),
                 .got = cat("'", name, "'"),
                 .next = "name it as kernelize/bind/regular.h says, or bind the contract by a function of its own"});
  }

  Arguments results_;
};

namespace {

class RegularBackward : public torch::autograd::Node {
 public:
  explicit RegularBackward(const RegularOps& ops) : ops_(ops) { tensors_.reserve(ops.saved_tensors.size()); }
  std::string name() const override { return ops_.layer.str() + " backward"; }

  void save_values(const Values& arguments) {
    values_.reserve(ops_.saved_values.size());
    for (const auto& [from, index] : ops_.saved_values) {
      const c10::IValue& value = arguments[index];
      values_.push_back(from == RegularOps::Saved::kGiven ? c10::IValue(!value.isNone()) : value);
    }
  }
  void save_tensor(const c10::IValue& value, bool is_output) {
    tensors_.emplace_back(value.isTensor() ? value.toTensor() : Tensor(), is_output);
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& tensor : tensors_) tensor.reset_data();
  }

 protected:
  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    check_backward(ops_.layer);
    variable_list saved;
    saved.reserve(tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const auto& [from, index] = ops_.saved_tensors[i];
      const bool is_output = from == RegularOps::Saved::kResult && index < ops_.outputs;
      saved.push_back(tensors_[i].unpack(is_output ? getptr() : nullptr));
    }
    variable_list found(ops_.tensors.size());
    const bool over = ops_.inplace && may_overwrite(saved);
    const auto& sources = over ? ops_.inplace_sources : ops_.sources;
    Values stack;
    stack.reserve(sources.size());
    for (const auto& [kind, index, writes, may_lack] : sources) {
      if (kind == RegularOps::Source::kGradient) {
        const bool lacks = may_lack && !gradients[index].defined();
        stack.push_back(lacks ? c10::IValue() : c10::IValue(readable(gradients[index], index)));
      } else if (kind == RegularOps::Source::kValue) {
        stack.push_back(values_[index]);
      } else if (writes != kNone) {
        found[writes] = saved[index].detach();
        stack.emplace_back(found[writes]);
      } else {
        stack.push_back(saved[index].defined() ? c10::IValue(saved[index]) : c10::IValue());
      }
    }
    const at::AutoDispatchBelowADInplaceOrView guard;
    (over ? *ops_.inplace : *ops_.backward).callBoxed(&stack);
    if (over) return found;
    for (size_t i = 0; i < found.size(); ++i) {
      if (ops_.gradient_of[i] != kNone && should_compute_output(i)) found[i] = stack[ops_.gradient_of[i]].toTensor();
    }
    return found;
  }

 private:
  Tensor readable(const Tensor& gradient, size_t output) const {
    if (!gradient.defined()) return input_metadata(output).zeros_like();
    if (ops_.gradients == Gradients::kAny) return gradient;
    return ops_.gradients == Gradients::kRows ? dense_rows(gradient) : dense(gradient);
  }

  const RegularOps& ops_;
  std::vector<SavedVariable> tensors_;
  Values values_;
};

// A node as torch holds it: by a std::shared_ptr until torch 2.12, by a c10::intrusive_ptr since 2.13.
using NodePointer = decltype(Edge::function);

template <typename NodeType, typename... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    // Found by the argument's type, because torch 2.13 and later declare no deleteNode.
    const auto destroy = [](auto* node) { deleteNode(node); };
    return std::shared_ptr<NodeType>(new NodeType(std::forward<Args>(args)...), destroy);
  } else {
    return c10::make_intrusive<NodeType>(std::forward<Args>(args)...);
  }
}

void run_with_gradients(const RegularOps& ops, Values& values) {
  for (const size_t i : ops.without_gradient) {
    if (!values[i].isTensor() || !values[i].toTensor().requires_grad()) continue;
    std::vector<std::string> names;
    for (const size_t j : ops.without_gradient) names.push_back(ops.arguments[j].name());
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat(join(names, " and "), " without gradient for ", ops.layer.str()),
                 .got = cat("one of them that requires it: ", ops.arguments[i].name()),
                 .next = cat("detach it, or unkernelize ", ops.layer.str())});
  }
  const auto node = make_node<RegularBackward>(ops);
  torch::autograd::edge_list edges;
  edges.reserve(ops.tensors.size());
  for (const size_t i : ops.tensors) {
    edges.push_back(values[i].isTensor() ? torch::autograd::impl::gradient_edge(values[i].toTensor()) : Edge());
  }
  node->set_next_edges(std::move(edges));
  Values kept;  // the op takes the stack
  if (ops.layer.trains()) {
    node->save_values(values);
    for (const auto& [from, index] : ops.saved_tensors) {
      kept.push_back(from == RegularOps::Saved::kArgument ? values[index] : c10::IValue());
    }
  }
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    (ops.layer.trains() ? *ops.train : ops.forward).callBoxed(&values);
  }
  for (size_t i = 0; i < ops.outputs; ++i) torch::autograd::set_history(values[i].toTensor(), node);
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto& [from, index] = ops.saved_tensors[i];
    const bool is_result = from == RegularOps::Saved::kResult;
    node->save_tensor(is_result ? values[index] : kept[i], is_result && index < ops.outputs);
  }
}

}  // namespace

const RegularOps* regular_ops(const LayerOps& layer, Gradients gradients) {
  static std::mutex mutex;
  static auto* all = new std::map<const LayerOps*, std::unique_ptr<RegularOps>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& ops = (*all)[&layer];
  if (!ops) ops = std::make_unique<RegularOps>(layer, gradients);
  return ops.get();
}

void run(const RegularOps& ops, Values& values) {
  // Cheap and first: a call under no_grad does not pay for autograd.
  const bool wants_grad =
      at::GradMode::is_enabled() && std::any_of(ops.tensors.begin(), ops.tensors.end(), [&](size_t i) {
        return values[i].isTensor() && values[i].toTensor().requires_grad();
      });
  if (wants_grad) return run_with_gradients(ops, values);
  const at::AutoDispatchBelowADInplaceOrView guard;
  ops.forward.callBoxed(&values);
}

}  // namespace hotswap::binding
